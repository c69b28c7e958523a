"""The machine on which a program measures: what its figures depend on, and whether it is idle enough for them."""

import argparse
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markdown import Markdown

from .figures import FOLDER, origin, today, write

MOST_LOAD = 0.5  # a core, of other programs: above it a figure says more of them than of marlcore
WIDTH = 200  # columns that tables are printed in at least


def busy() -> str:
    """The reason why the machine cannot measure well now; empty without one."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load <= MOST_LOAD * cores:
        return ""
    return f"load: expected at most {MOST_LOAD:g} a core, got {load:.2f} on {cores} cores"


def system() -> str:
    return f"{processor()}, {platform.system()} {platform.release()}"


def software() -> str:
    return f"Python {platform.python_version()}, NumPy {np.__version__}, torch {metadata.version('torch')}"


def load_since(before: float) -> str:
    loads = dict.fromkeys(f"{load:.0f}" for load in (before, os.getloadavg()[0]))  # one, if they are the same
    return " to ".join(loads) + (f", nice {os.nice(0)}" if os.nice(0) else "")


def processor() -> str:
    """The model and the cores, the same for all figures of one machine."""
    named = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    model = next(named, "").partition(":")[2].strip() or platform.machine()
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def made(load: float) -> dict[str, str]:
    """What figures depend on, as a stored record; `load` is the load at the start."""
    return {"date": today(), "machine": processor(), "software": software(), "load": load_since(load)}


def cpu_seconds() -> float:
    """CPU-seconds of this process and of all that it has waited for."""
    return sum(os.times()[:4])


def say(text: str) -> None:
    """Prints a line, or several, at once: a program that measures for hours says what it has."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def publish(options: argparse.Namespace, text: str, stored: str = "", **figures: Any) -> None:
    """Prints Markdown, and what made the figures; with --store, writes them to docs/figures."""
    record = {"command": options.command, **made(options.load_before), "machine": system(), **figures}
    Console(width=max(Console().width, WIDTH)).print(Markdown(f"{text}\n\n{origin(record)}"))
    if stored and options.store:
        write(FOLDER / f"{stored}.json", record)
