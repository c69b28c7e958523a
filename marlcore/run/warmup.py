"""Compiles kernels in advance, side by side, so that no first sample waits for the compiler."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..cgroup import processors
from ..errors import WorkerFailed
from ..interfaces import QueueSource, ReplaySource
from ..kernels import columns, hindsight, inorder, jit, policies, priorities, reading, sumtree, uniform
from ..kernels.plan import COLUMN, PLAN
from ..notices import say
from ..processes import Pool
from ..transitions import Window

NO_ROWS, LISTED, FLOATS = np.zeros(0, np.int64), np.zeros((2, 1), np.int64), np.zeros(1, np.float32)
NO_LANES, COLUMNS, BATCH = PLANNED = np.zeros(1, PLAN), np.zeros(1, COLUMN), 0
MASSES, LEVELS, RECORD = np.zeros(17), sumtree.level_offsets(16), np.zeros(1, priorities.PRIORITIES)
RECORD["tree"], RECORD["nodes"] = MASSES.ctypes.data, 1

# By kind of batch: each kernel, with arguments for a call that does nothing
PARTS: dict[str, list[tuple[Any, ...]]] = {
    "prioritized": [
        (priorities.catch_up, NO_LANES, RECORD),
        (priorities.draw, *PLANNED, NO_ROWS, RECORD),
        (priorities.weigh, NO_LANES, BATCH, NO_ROWS, RECORD, 1.0),
        (priorities.update, NO_LANES, RECORD, NO_ROWS, MASSES[:0]),
        (priorities.first_bad, MASSES, 1.0),
        (sumtree.repair_range, MASSES, LEVELS, 0, 0, 0),
    ],
    "uniform": [
        (uniform.draw, *PLANNED, NO_ROWS),
        (uniform.list_sampleable, NO_LANES, LISTED),
        (uniform.draw_listed, *PLANNED, NO_ROWS, LISTED, 0),
    ],
    "queue": [
        (inorder.read, *PLANNED, 0, 0, np.zeros((3, 4, 1), np.int64), np.zeros((5, 1), np.int64)),
        (policies.trace, *[FLOATS] * 4, np.zeros(1, np.bool_), FLOATS, 1.0, 1.0, 1.0, FLOATS, FLOATS),
    ],
    "reading": [
        (reading.read, *PLANNED, NO_ROWS, NO_ROWS),
        (reading.find_episodes, NO_LANES, np.zeros((3, 0), np.int64)),
    ],
    "hindsight": [(hindsight.relabel, *PLANNED, NO_ROWS, 0, np.zeros(1, hindsight.HINDSIGHT))],
    "drop_ins": [
        (columns.gather, COLUMNS, 1, NO_ROWS, np.zeros(0, np.uint8)),
        (sumtree.repair, MASSES, LEVELS, NO_ROWS, 0),
        (sumtree.repair, MASSES, LEVELS, NO_ROWS, 0, True),
        (sumtree.find, MASSES, LEVELS, MASSES[:0], NO_ROWS, 0),
    ],
}

log = logging.getLogger(__name__)


def compile_before_a_run(*sources: ReplaySource | QueueSource) -> None:
    """Compiles these sources' kernels, with a notice to the user, unless this machine has compiled them before."""
    cache = jit.cache_directory()
    names = dict.fromkeys(name for source in sources for name in _parts_of(source))
    missing = [name for name in names if cache is not None and not (cache / f"warm-{name}").exists()]
    if missing:
        say(jit.FIRST_COMPILATION)
        log.info("the kernels are compiled, in %.1f s", _compile(missing))


def warm_up(meanwhile: Callable[[], object] = lambda: None) -> float:
    """Compiles or loads all kernels of replays and queues, and calls `meanwhile`; returns the seconds taken."""
    return _compile([*PARTS], meanwhile)


def _compile(names: Sequence[str], meanwhile: Callable[[], object] = lambda: None) -> float:
    """Compiles kernels, in parallel in other processes where possible; returns the seconds taken.

    Then loads them here, and compiles what is missing.
    """
    began, cache, size = time.monotonic(), jit.cache_directory(), min(len(names), processors())
    unless_failed = suppress(OSError, WorkerFailed)
    with Pool(lambda: _load, size, name="compiler", fork=None) as pool:
        with unless_failed:
            for number in range(size if size > 1 and cache is not None else 0):
                pool.ask(number, " ".join(names[number::size]).encode())
        meanwhile()
        with unless_failed:
            while pool.free < size:
                pool.replies(None)
    for name in names:
        _load(name.encode())
        if cache is not None:
            (cache / f"warm-{name}").touch()  # all its kernels are cached
    return time.monotonic() - began


def _load(names: bytes) -> bytes:
    jit.announced()
    for name in names.decode().split():
        for kernel, *arguments in PARTS[name]:
            kernel(*arguments)
    return b""


def _parts_of(source: ReplaySource | QueueSource) -> list[str]:
    if isinstance(source, QueueSource):
        return ["queue"]
    by_priority = source.prioritized is not None or Window(sequence=source.sequence).period > 1
    return ["prioritized" if by_priority else "uniform", *([] if source.hindsight is None else ["hindsight"])]
