"""`marlcore warmup`: compile every kernel, so that no first sample has to wait for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ..kernels import jit
from ..training import warm_up
from .options import parse

__all__ = ["main"]


@dataclass(frozen=True)
class WarmupOptions:
    """Compile all kernels and keep them on disk, which takes about half a minute once for each machine and version.

    NUMBA_CACHE_DIR names the directory to keep them in; without it they lie beside the package, or below the home
    directory.
    """


def main(arguments: list[str]) -> int:
    """Runs `marlcore warmup`; 0, or 1 when the kernels cannot be kept."""
    parse(WarmupOptions, arguments, "warmup")
    with jit.quietly():
        seconds = warm_up()
    cache = jit.cache_directory()
    if cache is None:
        return 1  # it was said why
    sys.stdout.write(f"kernels are compiled, in {seconds:.1f} s; they are kept in {cache}\n")
    return 0
