"""Transitions from one writing process to one reader, in order: by marlcore and by multiprocessing.Queue.

The writer writes flat out; what is timed is the reader, from full pipes on, so that the slower side decides. Episodes
have 128 steps, and so have the reader's batches; step t's action is t, its obs that of the same place in any episode.
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
from .work import Budget, Row, Scale, Work, memcpy, shared_bytes

STEPS = 128  # of an episode, and of a batch
READS = 16

Read = Callable[[], Fields]
Values = Callable[[NDArray[Any]], Iterator[tuple[Any, ...]]]


def _reads(scale: Scale) -> int:
    """Batches that a run reads, and that may be under way."""
    return min(READS, scale.frames // 512)


def _episode(obs: NDArray[Any]) -> NDArray[Any]:
    return (np.arange(STEPS).reshape(-1, *[1] * obs.ndim) + obs).astype(obs.dtype)


def _steps(obs: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    """(obs, action, reward, done), for ever."""
    episode = list(_episode(obs))
    for t in count():
        place = t % STEPS
        yield episode[place], t, 0.5, place == STEPS - 1


def _trajectories(obs: NDArray[Any]) -> Iterator[Fields]:
    """The same as arrays, an episode at a time."""
    episode, reward, done = _episode(obs), np.full(STEPS, 0.5, np.float32), np.arange(STEPS) == STEPS - 1
    for first in count(step=STEPS):
        yield episode, np.arange(first, first + STEPS), reward, done


def _collected(obs: NDArray[Any]) -> Iterator[Fields]:
    """The same by an actor that gathers its steps until an episode is whole."""
    steps = _steps(obs)
    while True:
        yield tuple(map(np.array, zip(*islice(steps, STEPS), strict=True)))


def _add(queue: TrajectoryQueue, obs: NDArray[Any], values: Values, method: str) -> None:
    with queue, queue.writer() as writer:
        add = getattr(writer, method)
        for value in values(obs):
            add(*value)


def _put(queue: Any, obs: NDArray[Any], values: Values) -> None:
    for value in values(obs):
        queue.put(value)


def _get_each(queue: Any) -> Fields:
    steps = [queue.get() for _ in range(STEPS)]
    return tuple(map(np.array, zip(*steps, strict=True)))


def _get_trajectory(queue: Any) -> Fields:
    trajectory: Fields = queue.get()
    return tuple(map(np.copy, trajectory))


@contextmanager
def _reading(obs: NDArray[Any], scale: Scale, write: Callable[..., None], queue: Any, read: Read) -> Iterator[Work]:
    """Reading what another process writes: so many batches a run."""
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

    def drain() -> None:  # what had time to gather while others were timed
        for _ in range(reads):
            read()

    writer = get_context("spawn").Process(target=write, args=(queue, obs))
    writer.start()
    try:
        yield Work(run, check, drain)
    finally:
        writer.kill()
        writer.join()
        writer.close()


@contextmanager
def _marlcore(scale: Scale, obs: NDArray[Any], write: Callable[..., None]) -> Iterator[Work]:
    with TrajectoryQueue.create(spec_of(obs), _reads(scale) * STEPS) as queue, queue.reader(STEPS) as reader:

        def read() -> Fields:
            batch = reader.read(timeout=600.0)
            return batch.obs, batch.action, batch.reward, batch.terminated, batch.next_obs

        with _reading(obs, scale, write, queue, read) as work:
            yield work


@contextmanager
def _mp_queue(
    scale: Scale, obs: NDArray[Any], write: Callable[..., None], get: Callable[[Any], Fields], steps: int
) -> Iterator[Work]:
    queue = get_context("spawn").Queue(_reads(scale) * STEPS // steps)
    with _reading(obs, scale, write, queue, partial(get, queue)) as work:
        yield work
    queue.close()


@contextmanager
def _memcpy(scale: Scale, obs: NDArray[Any]) -> Iterator[Work]:
    source = shared_bytes(_reads(scale) * STEPS * (obs.nbytes + SCALARS_NBYTES))
    yield memcpy([(memoryview(bytearray(len(source))), source)])


EACH = {
    "marlcore": partial(_marlcore, write=partial(_add, values=_steps, method="add")),
    "mp.Queue": partial(_mp_queue, write=partial(_put, values=_steps), get=_get_each, steps=1),
    "mp.Queue 128": partial(_mp_queue, write=partial(_put, values=_collected), get=_get_trajectory, steps=STEPS),
    "memcpy": _memcpy,
}
AT_ONCE = {
    "marlcore": partial(_marlcore, write=partial(_add, values=_trajectories, method="add_batch")),
    "mp.Queue 128": partial(_mp_queue, write=partial(_put, values=_trajectories), get=_get_trajectory, steps=STEPS),
    "memcpy": _memcpy,
}
ONE, MANY = Budget("mp.Queue", 1 / 5), Budget("mp.Queue 128", 1)
TOTAL = READS * STEPS
ROWS = (
    Row(f"pass on {TOTAL} steps, 4 x float32", EACH, (ONE, MANY), (VECTOR,), time.perf_counter),
    Row(f"pass on {TOTAL}, 128 at once, 4 x float32", AT_ONCE, (MANY,), (VECTOR,), time.perf_counter),
    Row(f"pass on {TOTAL} steps, 84 x 84", EACH, (ONE, MANY), (FRAME,), time.perf_counter),
    Row(f"pass on {TOTAL}, 128 at once, 84 x 84", AT_ONCE, (MANY,), (FRAME,), time.perf_counter),
)
