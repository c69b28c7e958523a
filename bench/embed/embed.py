"""marlcore's parts in six codebases: lines of the edits, values and costs beside their own buffers, and whole runs.

DIR holds a folder for each codebase: checkouts of `cleanrl`, `epymarl` and `lerobot`, and in `tianshou` and `pfrl` what
`pip install --target` writes. Those that are missing are left out. `python -m bench install` makes the environments
`embed` and `lerobot`.
"""

import argparse
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from ..figures import FOLDER, load, write
from ..machine import cpu_seconds, made, say
from ..peers.install import EMBED, LEROBOT, WITH_MARLCORE, Environment
from .edits import changed, embed
from .hosts import HOSTS
from .patches import PATCHES

STORED = FOLDER / "embed.json"
STORE = f"keep the figures in {STORED}"
RETURN = re.compile(r"(?:episodic_return=\[?|\breturn_mean: +)(-?[\d.]+(?:e[-+]\d+)?)")

VERSIONS = """
import json, platform, numpy, torch
software = f"Python {platform.python_version()}, NumPy {numpy.__version__}, torch {torch.__version__}"
print(json.dumps({"software": software}))
"""


def run(environment: Environment, name: str, sources: Path, side: str, seed: str) -> dict[str, Any]:
    """A whole run: its returns in order, and what it took."""
    begin, used = time.perf_counter(), cpu_seconds()
    command = [environment.python, "-m", "bench.embed.hosts", name, sources, side, seed]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "check": True}
    printed = subprocess.run([*map(str, command)], env=WITH_MARLCORE, **options).stdout
    spent = {"cpu_s": cpu_seconds() - used, "seconds": time.perf_counter() - begin}
    return {"returns": [*map(float, RETURN.findall(printed))], **spent}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sources", type=Path, required=True, metavar="DIR")
    parser.add_argument("--runs", metavar="SEEDS", default="", help="whole runs by both sides instead, such as 1,2")


def main(options: argparse.Namespace) -> None:
    stored = load(STORED.stem) if STORED.exists() else {}
    for name, patch in PATCHES.items():
        path = options.sources / patch.file
        environment = LEROBOT if name == "LeRobot" else EMBED
        if not path.exists() or environment.missing:
            say(f"{name}: left out, {environment.missing or f'no {path}'}")
            continue
        found = stored.setdefault(name, {})
        if options.runs:
            for seed in options.runs.split(","):
                sides = {side: run(environment, name, options.sources, side, seed) for side in ("theirs", "ours")}
                found.setdefault("runs", {})[seed] = sides
        else:
            source = path.read_text()
            found["lines"] = [*changed(source, embed(source, patch.edits))]
            if name in HOSTS:
                command = "-m", "bench.embed.hosts", name, options.sources, "compare"
                found |= environment.run(*command, env=WITH_MARLCORE)
        versions = environment.run("-c", VERSIONS)
        found["runs_made" if options.runs else "made"] = made(options.load_before) | versions
        say(f"{name}: {found}")
        if options.store:
            write(STORED, stored)
