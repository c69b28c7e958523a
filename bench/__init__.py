"""What marlcore costs, and how it compares with other ways: `python -m bench NAME` runs a program of `__main__.py`."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests" / "support"), str(ROOT / "examples")]  # oracles, clusters and games
