"""The types of the public names, as a user's program sees them, and the stubs that list them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "typed_program.py"


@pytest.mark.long  # mypy takes some 20 seconds without a cache
def test_what_the_documentation_shows_passes_mypy_strict(tmp_path: Path) -> None:
    """mypy reports nothing about marlcore itself, as if it were installed, and reuses the cache of other libraries."""
    settings, cache = tmp_path / "mypy.ini", tmp_path / "cache"
    settings.write_text(
        "[mypy]\nstrict = True\nimplicit_reexport = True\n"
        "[mypy-marlcore.*]\nimplicit_reexport = False\nfollow_imports = silent\nfollow_imports_for_stubs = True\n"
    )
    if (kept := ROOT / ".mypy_cache").exists():
        shutil.copytree(kept, cache)
    options = ["--config-file", str(settings), "--cache-dir", str(cache)]
    command = [sys.executable, "-m", "mypy", *options, str(PROGRAM)]
    paths = {"MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


STUBTEST = """
import sys
from mypy import stubtest
from mypy.options import Options

options = Options()
options.python_executable = None  # types of torch and other libraries are not needed, and take long
options.ignore_missing_imports, options.follow_imports = True, "silent"
for room in stubtest.build_stubs(sys.argv[1:], options, find_submodules=False):  # submodules have no stubs
    for error in stubtest.test_module(room):
        print(error.get_description(concise=True))
"""


@pytest.mark.long  # 6 seconds
def test_the_stubs_agree_with_what_is_imported(tmp_path: Path) -> None:
    """In a copy of the package, a name that does not exist is added to the stub: stubtest finds only this name."""
    package = tmp_path / "marlcore"
    shutil.copytree(ROOT / "marlcore", package, ignore=shutil.ignore_patterns("__pycache__"))
    rooms = [".".join(stub.parent.relative_to(tmp_path).parts) for stub in package.rglob("__init__.pyi")]
    with open(package / "__init__.pyi", "a") as stub:
        stub.write("control: int\n")
    paths = dict.fromkeys(("MYPYPATH", "PYTHONPATH"), str(tmp_path))
    command = [sys.executable, "-c", STUBTEST, *rooms]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [line for line in done.stdout.splitlines() if ".__all__ " not in line]  # that depends on what is installed
    assert found == ["marlcore.control is not present at runtime"]
