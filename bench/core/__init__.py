"""The calls of the core, each beside other ways of doing the same work: one table of rows."""
