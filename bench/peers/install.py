"""Sample Factory in an environment of its own, since it needs older packages: `python -m bench.peers.install`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
FOLDER = CACHE / "marlcore-bench" / "sample-factory"
PYTHON = FOLDER / "bin" / "python"
PACKAGES = ("sample-factory==2.1.1", "gymnasium==0.29.1", "numpy==1.26.4")
PROGRAM = Path(__file__).with_name("sample_factory_cartpole.py")
MISSING = "`python -m bench.peers.install` installs it in an environment of its own"


def installed() -> bool:
    return PYTHON.exists()


def appo_rate() -> float:
    """Frames a second of Sample Factory's run, as it counts them."""
    found = subprocess.run([PYTHON, PROGRAM], check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return float(re.findall(r"FPS: ([0-9.]+)", found.stdout)[-1])


def main() -> None:
    if not installed():
        venv.create(FOLDER, with_pip=True)
    subprocess.run([PYTHON, "-m", "pip", "install", *PACKAGES], check=True)
    sys.stdout.write(f"installed in {FOLDER}\n")


if __name__ == "__main__":
    main()
