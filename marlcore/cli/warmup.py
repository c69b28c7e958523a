"""`marlcore warmup`: compiles every kernel, so that no first sample waits for the compiler."""

import sys
from dataclasses import dataclass

from .. import planning
from ..kernels import jit
from ..run import warm_up
from .options import CommandLine


@dataclass(frozen=True)
class WarmupOptions:
    """Compile all kernels and keep them on disk; this takes some ten seconds, once per machine and version.

    The kernels are kept in marlcore/kernels of the user's cache, ~/.cache or XDG_CACHE_HOME, or in NUMBA_CACHE_DIR.
    """


def main(arguments: list[str]) -> int:
    CommandLine("warmup", arguments).parse(WarmupOptions)
    jit.announced()
    seconds = warm_up(planning.warm_up)
    if jit.cache_directory() is None:
        return 1  # the reason was printed above
    sys.stdout.write(f"kernels compiled in {seconds:.1f} s; they are kept in {jit.cache_directory()}\n")
    return 0
