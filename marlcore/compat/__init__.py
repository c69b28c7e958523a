"""marlcore's replay behind the interfaces of other libraries; each module imports only its own library."""
