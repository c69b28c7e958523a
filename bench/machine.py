"""The machine on which a benchmark runs: what its figures depend on, and whether it is idle enough for them."""

import argparse
import os
import platform
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from .figures import today, write

MOST_LOAD = 0.5  # a core, of other programs: above it a figure says more of them than of marlcore


def parse_if_idle(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line of a program that measures, with --json and --anyway; ends it on a busy machine."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--anyway", action="store_true", help="measure on a machine that is not idle too")
    options = parser.parse_args()
    if busy() and not options.anyway:
        parser.error(f"{busy()}; --anyway measures anyway")
    return options


def busy() -> str:
    """The reason why the machine cannot measure well now; empty without one."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load <= MOST_LOAD * cores:
        return ""
    return f"load: expected at most {MOST_LOAD:g} a core, got {load:.2f} on {cores} cores"


def describe_machine() -> dict[str, str]:
    """The conditions of the figures, by name."""
    return {
        "machine": f"{processor()}, {platform.system()} {platform.release()}, "
        f"load {os.getloadavg()[0]:.1f} at the start",
        "software": f"{software()}, {torch.get_num_threads()} torch thread, "
        + ", ".join(f"{name} {_version(name) or 'not installed'}" for name in ("cpprb", "torchrl")),
    }


def software() -> str:
    return f"Python {platform.python_version()}, NumPy {np.__version__}, torch {torch.__version__}"


def load_since(before: float) -> str:
    priority = f", nice {os.nice(0)}" if os.nice(0) else ""
    return f"{before:.0f} to {os.getloadavg()[0]:.0f}{priority}"


def processor() -> str:
    """The model and the cores, of which figures on the same machine have the same."""
    named = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    model = next(named, "").partition(":")[2].strip() or platform.machine()
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def _version(package: str) -> str | None:
    return metadata.version(package) if find_spec(package) else None


def publish(machine: dict[str, str], parts: Iterable[object], width: int, *files: Path | None, **figures: Any) -> None:
    """Prints tables, in at least this many columns, and the machine; writes it and the figures to each file."""
    console = Console()
    console.width = max(console.width, width)
    console.print(*parts, *machine.values(), sep="\n")
    for file in filter(None, files):
        write(file, {"machine": machine, "date": today(), **figures})
