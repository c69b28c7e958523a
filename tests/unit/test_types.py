"""The types of the public names, as a user's program sees them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
PROGRAM = Path(ROOT, "tests", "support", "typed_program.py")


@pytest.mark.long  # mypy takes some 20 seconds without its cache
def test_what_the_documentation_shows_passes_mypy_strict(tmp_path: Path) -> None:
    settings = tmp_path / "mypy.ini"  # silent about marlcore, as if it were installed
    settings.write_text("[mypy]\nstrict = True\nfollow_imports = silent\nfollow_imports_for_stubs = True\n")
    options = ["--config-file", str(settings), "--cache-dir", str(tmp_path)]
    command = [sys.executable, "-m", "mypy", *options, str(PROGRAM)]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "MYPYPATH": ROOT}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
