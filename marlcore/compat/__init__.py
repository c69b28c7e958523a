"""marlcore's replay behind the interfaces of other libraries; each module imports its own library alone."""
