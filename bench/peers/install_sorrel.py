"""sorrel in an environment of its own, beside marlcore's dependencies: `python -m bench.peers.install_sorrel`.

sorrel 1.6.0 needs Python 3.12 and 6 GB. marlcore itself is found by PYTHONPATH, so that this checkout is what runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

from .install import CACHE

FOLDER = CACHE / "marlcore-bench" / "sorrel"
PYTHON = FOLDER / "bin" / "python"
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
PACKAGES = ("sorrel==1.6.0", "hypothesis", "pytest-benchmark")
MISSING = "`python -m bench.peers.install_sorrel` installs it in an environment of its own"
LEAST = (3, 12)


def installed() -> bool:
    return PYTHON.exists()


def interpreters() -> list[str]:
    """Python programs that may be new enough, the present one first."""
    found = [sys.executable, *(shutil.which(f"python3.{minor}") or "" for minor in range(LEAST[1], LEAST[1] + 3))]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return [path for path in (*found, *map(str, sorted(versions.glob("3.*/bin/python")))) if path]


def is_new_enough(python: str) -> bool:
    asked = subprocess.run([python, "-c", f"import sys; sys.exit(sys.version_info < {LEAST})"], capture_output=True)
    return asked.returncode == 0


def main() -> None:
    python = next(filter(is_new_enough, interpreters()), None)
    if python is None:
        sys.exit("sorrel 1.6.0 needs Python 3.12 or newer, and none was found")
    if not installed():
        subprocess.run([python, "-m", "venv", FOLDER], check=True)
    ours = [one for one in requires("marlcore") or [] if "extra ==" not in one]
    subprocess.run([PYTHON, "-m", "pip", "install", *PACKAGES, *ours], check=True)
    sys.stdout.write(
        f"installed in {FOLDER}\ntests: PYTHONPATH={ROOT} {PYTHON} -m pytest --long tests/runs/test_sorrel_itself.py\n"
    )


if __name__ == "__main__":
    main()
