"""The programs of csrc/test, which tests compile and run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

CORE = Path(__file__).parent.parent / "csrc"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, CORE / "test" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


mutants = _load("mutants")
spin_models = _load("spin_models")


def run(command: Sequence[str | Path], timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
