"""Transitions from one writing process to one reader, in order: by marlcore and by multiprocessing.Queue.

The writer writes flat out. The reader is timed, from full pipes on, so the slower side decides. Episodes and batches
have 128 steps; step t's action is t, and its obs depends on its place in the episode alone.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count, islice
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marlcore import TrajectoryQueue

from .transitions import FRAME, SCALARS_NBYTES, VECTOR, Fields, spec_of
from .work import Row, Scale, Work, memcpy, shared_bytes

STEPS = 128  # of an episode, and of a batch
READS = 16

Steps = Callable[[NDArray[Any]], Iterator[tuple[Any, ...]]]


def _reads(scale: Scale) -> int:
    """The number of batches that a run reads, and that may be under way."""
    return min(READS, scale.frames // 512)


def _episode(obs: NDArray[Any]) -> NDArray[Any]:
    return (np.arange(STEPS).reshape(-1, *[1] * obs.ndim) + obs).astype(obs.dtype)


def _steps(obs: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    """(obs, action, reward, done), for ever."""
    episode = list(_episode(obs))
    for t in count():
        yield episode[t % STEPS], t, 0.5, t % STEPS == STEPS - 1


def _trajectories(obs: NDArray[Any]) -> Iterator[Fields]:
    """Yields the steps as arrays, an episode at a time."""
    episode, reward, done = _episode(obs), np.full(STEPS, 0.5, np.float32), np.arange(STEPS) == STEPS - 1
    for first in count(step=STEPS):
        yield episode, np.arange(first, first + STEPS), reward, done


def _collected(obs: NDArray[Any]) -> Iterator[Fields]:
    """Yields the episodes of an actor that gathers its steps until one is whole."""
    steps = _steps(obs)
    while True:
        yield tuple(map(np.array, zip(*islice(steps, STEPS), strict=True)))


def _write(queue: Any, obs: NDArray[Any], steps: Steps, method: str) -> None:
    """Writes, in a process of its own: to marlcore's queue by its writer's method, to another queue by put."""
    if method == "put":
        for step in steps(obs):
            queue.put(step)
    with queue, queue.writer() as writer:
        add = getattr(writer, method)
        for step in steps(obs):
            add(*step)


@contextmanager
def _reading(
    obs: NDArray[Any], scale: Scale, steps: Steps, method: str, queue: Any, read: Callable[[], Fields]
) -> Iterator[Work]:
    """Reads what another process writes, a number of batches a run."""
    reads = _reads(scale)

    def run() -> tuple[int, Fields]:
        first = int(read()[1][0])
        for _ in range(reads - 2):
            read()
        return first, read()

    def check(result: tuple[int, Fields]) -> None:
        first, (obs_read, action, reward, done, *_) = result
        assert (action == np.arange(first, first + reads * STEPS)[-STEPS:]).all()
        assert (obs_read == _episode(obs)[action % STEPS]).all()
        assert (reward == 0.5).all() and (done == (action % STEPS == STEPS - 1)).all()

    writer = get_context("spawn").Process(target=_write, args=(queue, obs, steps, method))
    writer.start()
    try:
        yield Work(run, check, prepare=run)  # steps may have gathered while others were timed
    finally:
        writer.kill()
        writer.join()
        writer.close()


@contextmanager
def _marlcore(scale: Scale, obs: NDArray[Any], steps: Steps, method: str) -> Iterator[Work]:
    def read() -> Fields:
        batch = reader.read(timeout=600.0)
        return batch.obs, batch.action, batch.reward, batch.terminated, batch.next_obs

    with (
        TrajectoryQueue.create(spec_of(obs), _reads(scale) * STEPS) as queue,
        queue.reader(STEPS) as reader,
        _reading(obs, scale, steps, method, queue, read) as work,
    ):
        yield work


@contextmanager
def _mp_queue(scale: Scale, obs: NDArray[Any], steps: Steps) -> Iterator[Work]:
    each = steps is _steps

    def read() -> Fields:
        taken = zip(*(queue.get() for _ in range(STEPS)), strict=True) if each else queue.get()
        return tuple(map(np.array, taken))

    queue = get_context("spawn").Queue(_reads(scale) * (STEPS if each else 1))
    with _reading(obs, scale, steps, "put", queue, read) as work:
        yield work
    queue.close()


def _memcpy(scale: Scale, obs: NDArray[Any]) -> Work:
    source = shared_bytes(_reads(scale) * STEPS * (obs.nbytes + SCALARS_NBYTES))
    return memcpy([(memoryview(bytearray(len(source))), source)])


EACH = {
    "marlcore": partial(_marlcore, steps=_steps, method="add"),
    "mp.Queue": partial(_mp_queue, steps=_steps),
    "mp.Queue 128": partial(_mp_queue, steps=_collected),
    "memcpy": _memcpy,
}
AT_ONCE = {
    "marlcore": partial(_marlcore, steps=_trajectories, method="add_batch"),
    "mp.Queue 128": partial(_mp_queue, steps=_trajectories),
    "memcpy": _memcpy,
}
ONE, MANY = {"mp.Queue": 1 / 5, "mp.Queue 128": 1}, {"mp.Queue 128": 1}
TOTAL = READS * STEPS
ROWS = (
    Row(f"pass on {TOTAL} steps, 4 x float32", EACH, ONE, (VECTOR,), time.perf_counter),
    Row(f"pass on {TOTAL}, 128 at once, 4 x float32", AT_ONCE, MANY, (VECTOR,), time.perf_counter),
    Row(f"pass on {TOTAL} steps, 84 x 84", EACH, ONE, (FRAME,), time.perf_counter),
    Row(f"pass on {TOTAL}, 128 at once, 84 x 84", AT_ONCE, MANY, (FRAME,), time.perf_counter),
)
