"""The programs that measure: `python -m bench NAME`, each with its options.

A program is a module with `main(options)`, which may return an exit code, and with `add_options(parser)` if it has any.
One that takes `--anyway` refuses a busy machine without it; one with a default of `rest` gets all other options there.
"""

import argparse
import os
import shlex
import sys
from importlib import import_module

from .machine import busy

PROGRAMS = {
    "report": "core.report",
    "networks": "core.networks",
    "growth": "costs.growth",
    "instructions": "costs.instructions",
    "soak": "costs.soak",
    "planning": "costs.planning",
    "gpu": "costs.gpu",
    "throughput": "runs.throughput",
    "results": "runs.results",
    "self_play": "runs.self_play",
    "sorrel": "runs.sorrel",
    "gallery": "runs.gallery",
    "zoo": "zoo.zoo",
    "defaults": "zoo.defaults",
    "teams": "zoo.teams",
    "cluster_rows": "cluster.rows",
    "cluster_weights": "cluster.weights",
    "cluster_peers": "cluster.beside_rllib",
    "pages": "pages.pages",
    "long_form": "pages.long_form",
    "install": "peers.install",
}


def main(arguments: list[str]) -> int:
    first = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    first.add_argument("program", choices=PROGRAMS)
    name = first.parse_args(arguments[:1]).program
    program = import_module(f"bench.{PROGRAMS[name]}")
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {name}",
        description=program.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if hasattr(program, "add_options"):
        program.add_options(parser)
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
