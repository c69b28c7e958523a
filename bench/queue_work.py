"""Transitions from one writing process to one reader, in order: by marlcore and by multiprocessing.Queue.

The writer writes flat out; what is timed is the reader, from full pipes on, so that the slower side decides. Episodes
have 128 steps, and so have the reader's batches; step t's action is t, its obs that of the same place in any episode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count, islice
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marlcore import TrajectoryQueue

from .transitions import FRAME, SCALARS_NBYTES, VECTOR, Fields, Open, spec_of
from .work import Budget, Row, Scale, Work, memcpy, shared_bytes

STEPS = 128  # of an episode, and of a batch
READS = 16

Read = Callable[[], Fields]


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


def _add_each(queue: TrajectoryQueue, obs: NDArray[Any]) -> None:
    with queue, queue.writer() as writer:
        for step in _steps(obs):
            writer.add(*step)


def _add_trajectories(queue: TrajectoryQueue, obs: NDArray[Any]) -> None:
    with queue, queue.writer() as writer:
        for trajectory in _trajectories(obs):
            writer.add_batch(*trajectory)


def _put_each(queue: Any, obs: NDArray[Any]) -> None:
    for step in _steps(obs):
        queue.put(step)


def _put_trajectories(queue: Any, obs: NDArray[Any]) -> None:
    for trajectory in _trajectories(obs):
        queue.put(trajectory)


def _collect_and_put(queue: Any, obs: NDArray[Any]) -> None:
    """An actor's steps, put when an episode is whole."""
    steps = _steps(obs)
    while True:
        queue.put(tuple(map(np.array, zip(*islice(steps, STEPS), strict=True))))


def _get_each(queue: Any) -> Fields:
    steps = [queue.get() for _ in range(STEPS)]
    return tuple(map(np.array, zip(*steps, strict=True)))


def _get_trajectory(queue: Any) -> Fields:
    trajectories = [queue.get() for _ in range(1)]
    return tuple(map(np.concatenate, zip(*trajectories, strict=True)))


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


def _marlcore(obs: NDArray[Any], write: Callable[..., None]) -> Open:
    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        with TrajectoryQueue.create(spec_of(obs), _reads(scale) * STEPS) as queue, queue.reader(STEPS) as reader:

            def read() -> Fields:
                batch = reader.read(timeout=600.0)
                return batch.obs, batch.action, batch.reward, batch.terminated, batch.next_obs

            with _reading(obs, scale, write, queue, read) as work:
                yield work

    return open_work


def _mp_queue(obs: NDArray[Any], write: Callable[..., None], steps: int, get: Callable[[Any], Fields]) -> Open:
    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        queue = get_context("spawn").Queue(_reads(scale) * STEPS // steps)
        with _reading(obs, scale, write, queue, partial(get, queue)) as work:
            yield work
        queue.close()

    return open_work


def _memcpy(obs: NDArray[Any]) -> Open:
    """The bytes of a run in one piece, once."""

    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        source = shared_bytes(_reads(scale) * STEPS * (obs.nbytes + SCALARS_NBYTES))
        yield memcpy([(memoryview(bytearray(len(source))), source)])

    return open_work


def _rows(obs: NDArray[Any], name: str) -> tuple[Row, Row]:
    each = {
        "marlcore": _marlcore(obs, _add_each),
        "mp.Queue": _mp_queue(obs, _put_each, 1, _get_each),
        "mp.Queue 128": _mp_queue(obs, _collect_and_put, STEPS, _get_trajectory),
        "memcpy": _memcpy(obs),
    }
    at_once = {
        "marlcore": _marlcore(obs, _add_trajectories),
        "mp.Queue 128": _mp_queue(obs, _put_trajectories, STEPS, _get_trajectory),
        "memcpy": _memcpy(obs),
    }
    beside_one, beside_many = Budget("mp.Queue", 1 / 5), Budget("mp.Queue 128", 1)
    total = READS * STEPS
    return (
        Row(f"pass on {total} steps, {name}", each, (beside_one, beside_many)),
        Row(f"pass on {total}, 128 at once, {name}", at_once, (beside_many,)),
    )


ROWS = (*_rows(VECTOR, "4 x float32"), *_rows(FRAME, "84 x 84"))
