"""The programs that measure: `python -m bench NAME`, each with its options.

A program is a file in a folder beside this one, with `main(options)`, which may return an exit code, and with
`add_options(parser)` if it has options. One with STORE, which says what is stored, gets the option `--store`. One with
IDLE refuses a busy machine unless it is called with `--anyway`. A program whose parser sets `rest` gets the unknown
options in `options.rest`.
"""

import argparse
import os
import shlex
import sys
from importlib import import_module
from pathlib import Path

from .machine import busy

FILES = sorted(Path(__file__).parent.glob("*/*.py"))
PROGRAMS = {file.stem: file.parent.name for file in FILES if "\ndef main(options:" in file.read_text()}


def main(arguments: list[str]) -> int:
    first = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    first.add_argument("program", choices=PROGRAMS)
    name = first.parse_args(arguments[:1]).program
    try:
        program = import_module(f"bench.{PROGRAMS[name]}.{name}")
    except ModuleNotFoundError as error:
        first.error(f"{name} needs {error.name}: python -m pip install -c constraints.txt -e '.[test]'")
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"python -m bench {name}", description=program.__doc__, formatter_class=form)
    if hasattr(program, "add_options"):
        program.add_options(parser)
    if hasattr(program, "STORE"):
        parser.add_argument("--store", action="store_true", help=program.STORE)
    if hasattr(program, "IDLE"):
        parser.add_argument("--anyway", action="store_true", help="measure on a machine that is not idle too")
    options, others = parser.parse_known_args(arguments[1:])
    if others and not hasattr(options, "rest"):
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    options.rest = others
    if not getattr(options, "anyway", True) and busy():
        parser.error(f"{busy()}; --anyway measures anyway")
    options.command = f"python -m bench {shlex.join(word for word in arguments if word != '--store')}"
    options.load_before = os.getloadavg()[0]
    return int(program.main(options) or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
