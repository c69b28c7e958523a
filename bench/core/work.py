"""The rows of the benchmark, and how their libraries are timed side by side."""

import gc
import mmap
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from timeit import repeat, timeit
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..processes import in_turns

Clock = Callable[[], float]

NOISE = 2**26  # bytes


@dataclass(frozen=True)
class Scale:
    """Rows of the rings, of a few floats each and of one frame each; and runs before the first that counts."""

    vectors: int
    frames: int
    warm_runs: int

    def rows(self, obs: NDArray[Any]) -> int:
        return self.frames if obs.ndim > 1 else self.vectors


FULL = Scale(vectors=1_000_000, frames=20_000, warm_runs=64)  # 141 MB of frames: more than the caches hold
SMALL = Scale(vectors=2_000, frames=2_000, warm_runs=1)


@dataclass(frozen=True)
class Work:
    """One library doing one row's work."""

    run: Callable[[], Any]  # what is timed
    check: Callable[[Any], None]  # asserts that what `run` returned, and left behind, is right
    prepare: Callable[[], Any] | None = None  # before each run, not timed

    def warm_up(self, runs: int) -> Any:
        """Runs `runs` times; returns the last result."""
        result = None
        for _ in range(runs):
            if self.prepare:
                self.prepare()
            result = self.run()
        return result

    def seconds(self, runs: int, clock: Clock = time.thread_time) -> float:
        if self.prepare:
            return sum(repeat(self.run, self.prepare, clock, runs, 1)) / runs
        return timeit(self.run, timer=clock, number=runs) / runs


Open = Callable[..., Work | AbstractContextManager[Work]]  # the latter where something must be closed


@dataclass(frozen=True)
class Row:
    """One kind of work, and how each library does it: library(scale, *sizes)."""

    name: str
    libraries: Mapping[str, Open]
    # By peer: the most that marlcore's time may be, as a multiple of the peer's
    budgets: Mapping[str, float] = field(default_factory=dict)
    sizes: tuple[Any, ...] = ()
    clock: Clock = time.thread_time  # CPU time; for work that waits for another process, time itself

    def open(self, library: str, scale: Scale) -> AbstractContextManager[Work]:
        opened = self.libraries[library](scale, *self.sizes)
        return nullcontext(opened) if isinstance(opened, Work) else opened


def installed(libraries: Mapping[str, Open]) -> dict[str, Open]:
    """Returns the libraries whose package is installed; the first word of "cpprb single" names one."""
    missing = {package for package in ("cpprb", "torchrl", "rlox", "stable_baselines3") if find_spec(package) is None}
    return {name: open_work for name, open_work in libraries.items() if name.split()[0] not in missing}


def time_row(row: Row, scale: Scale, rounds: int, round_s: float) -> dict[str, list[float]]:
    """Each library's time of one run in each round, in seconds; the libraries take turns, round by round."""
    with ExitStack() as stack:
        works = {name: stack.enter_context(row.open(name, scale)) for name in row.libraries}
        runs = {}
        for name, work in works.items():
            work.check(work.warm_up(scale.warm_runs + 1))
            runs[name] = max(1, int(round_s / work.seconds(8, row.clock)))
        gc.collect()
        gc.disable()
        try:
            return in_turns({name: partial(works[name].seconds, runs[name], row.clock) for name in works}, rounds)
        finally:
            gc.enable()


def shared_bytes(nbytes: int) -> memoryview:
    """Memory as processes share it, filled with noise."""
    memory = memoryview(mmap.mmap(-1, nbytes))
    noise = np.random.default_rng(0).bytes(min(nbytes, NOISE))
    for first in range(0, nbytes, NOISE):
        part = memory[first : first + NOISE]
        part[:] = noise[: len(part)]
    return memory


def memcpy(pairs: Iterable[tuple[memoryview, memoryview]], prepare: Callable[[], Any] | None = None) -> Work:
    """Each run makes the next of the (to, source) copies, over and over: the bound that nothing can beat."""
    turn = cycle(list(pairs))

    def run() -> tuple[memoryview, memoryview]:
        to, source = pair = next(turn)
        to[:] = source
        return pair

    def check(pair: tuple[memoryview, memoryview]) -> None:
        assert pair[0] == pair[1]

    return Work(run, check, prepare)
