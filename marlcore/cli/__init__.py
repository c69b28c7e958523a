"""The command line: one module for each command of `marlcore`, and what they share.

It reads options, calls the other rooms, and prints. It never does work that Python code could not ask for too.
"""

from .options import parse

__all__ = ["parse"]
