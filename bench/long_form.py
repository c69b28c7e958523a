"""What the long form of a test found, for docs/reliability.md: runs a command and keeps what it prints.

    python -m bench.long_form NAME COMMAND...

NAME is that of the page's cell, such as "kills core". Nothing is kept of a command that fails.
"""

import argparse
import os
import subprocess
import sys

from .figures import FOLDER, load, today, write
from .machine import load_since, processor

STORED = FOLDER / "long.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.long_form", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("name", choices=list(load(STORED.stem)), metavar="NAME", help="of a cell of the page")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    options = parser.parse_args()
    before, lines = os.getloadavg()[0], []
    with subprocess.Popen(options.command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            sys.stdout.write(line)
            lines.append(" ".join(line.split()))
    if process.returncode == 0:
        record = {"found": "; ".join(filter(None, lines)), "date": today(), "machine": processor()}
        write(STORED, {**load(STORED.stem), options.name: {**record, "load": load_since(before)}})
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
