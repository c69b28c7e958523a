"""What a test's long form prints, kept for a cell of docs/reliability.md: `python -m bench long_form NAME COMMAND`."""

import argparse
import subprocess

from ..figures import FOLDER, load, today, write
from ..machine import load_since, processor, say

STORED = FOLDER / "long.json"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=list(load(STORED.stem)), metavar="NAME", help="name of a cell of the page")
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar="COMMAND")


def main(options: argparse.Namespace) -> int:
    lines = []
    with subprocess.Popen(options.command_line, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            say(line.rstrip("\n"))
            lines.append(" ".join(line.split()))
    if process.returncode == 0:
        record = {"found": "; ".join(filter(None, lines)), "date": today(), "machine": processor()}
        write(STORED, {**load(STORED.stem), options.name: {**record, "load": load_since(options.load_before)}})
    return process.returncode
