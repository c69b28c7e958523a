"""The command line: one module for each command of `marlcore`, and their shared options.

A command reads options, calls other packages and prints. Everything that it does is available from Python, too.
"""

from .options import CommandLine
