"""Starts a worker of Ray in the place of Ray's program of this name, which first imports Ray for nothing."""

import os
import sys

LEFT_OUT = "--language=", "--serialized-runtime-env-context="  # always Python's, and empty

if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, *(each for each in sys.argv[1:] if not each.startswith(LEFT_OUT))])
