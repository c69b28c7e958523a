"""Whole training runs of marlcore beside those of other libraries, each in an environment of its own."""
