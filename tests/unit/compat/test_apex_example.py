"""The example of Ape-X on cpprb's interface."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[3] / "examples" / "apex_cpprb.py"


@pytest.mark.long
def test_it_learns_and_leaves_nothing_behind() -> None:
    """An untrained network returns 10 in an episode, random play 22."""
    command = [sys.executable, str(FILE), "4000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    said = re.fullmatch(r"4000 updates, (\d+) transitions held, mean return (\S+)\n", done.stdout)
    assert said, done.stdout
    assert int(said[1]) >= 1_000 and int(said[1]) % 100 == 0, "they come in pieces of 100"
    assert float(said[2]) > 60
