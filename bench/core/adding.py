"""Rows of the table that add to a full replay: one transition, 64 to a lane, or one to each of 64 lanes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marlcore import ReplayBuffer

from ..peers.buffers import LIBRARIES, Library
from ..peers.ring import LockedRing
from .transitions import FRAME, SCALARS_NBYTES, VECTOR, Fields, fields_of, spec_of
from .work import Row, Scale, Work, installed, memcpy, shared_bytes

MANY = 64


def _rows(obs: NDArray[Any], count: int) -> tuple[Any, ...]:
    """obs, action, reward, done: of one transition, or of MANY equal ones."""
    if count == 1:
        return obs, 1, 0.5, False
    rows = np.broadcast_to(obs, (MANY, *obs.shape)).copy()
    return rows, np.ones(MANY, np.int64), np.full(MANY, 0.5, np.float32), np.zeros(MANY, np.bool_)


def _check_added(obs: NDArray[Any], fields: Fields) -> None:
    """Every row that was added holds the same transition."""
    assert (fields[0] == obs).all() and (fields[3] == obs).all()
    assert (fields[1] == 1).all() and (fields[2] == 0.5).all() and not fields[4].any()


def _to_full(replay: ReplayBuffer, obs: NDArray[Any], add: Callable[[], object]) -> Work:
    sampler = replay.sampler(MANY // 2, seed=0)

    def check(_: object) -> None:
        assert len(replay) == replay.capacity
        _check_added(obs, fields_of(sampler.sample()))

    return Work(add, check)


@contextmanager
def _marlcore(scale: Scale, obs: NDArray[Any], count: int) -> Iterator[Work]:
    with ReplayBuffer.create(spec_of(obs), scale.rows(obs)) as replay, replay.writer() as writer:
        for _ in range(0, replay.capacity, MANY):
            writer.add_batch(*_rows(obs, MANY)[:3])
        yield _to_full(replay, obs, partial(writer.add if count == 1 else writer.add_batch, *_rows(obs, count)[:3]))


@contextmanager
def _lanes(scale: Scale, obs: NDArray[Any], count: int, vector: bool = True) -> Iterator[Work]:
    """A row to each of `count` lanes: by one call, or by one call of each lane's own writer."""
    with ReplayBuffer.create(spec_of(obs), scale.rows(obs), count) as replay, replay.vector_writer() as filling:
        add = partial(filling.add, *_rows(obs, count)[:3])
        for _ in range(0, replay.capacity, count):
            add()
        if not vector:
            filling.close()
            add = partial(_add_to_each, [replay.writer(lane).add for lane in range(count)], obs)
        yield _to_full(replay, obs, add)


def _add_to_each(adds: list[Callable[..., object]], obs: NDArray[Any]) -> None:
    for add in adds:
        add(obs, 1, 0.5)


def _locks(scale: Scale, obs: NDArray[Any], count: int) -> Work:
    ring = LockedRing(scale.rows(obs), obs)
    for _ in range(0, ring.capacity, MANY):
        ring.add_batch(*_rows(obs, MANY))
    add = partial(ring.add if count == 1 else ring.add_batch, *_rows(obs, count))
    return Work(add, lambda _: _check_added(obs, ring.sample(MANY // 2)))


def _memcpy(scale: Scale, obs: NDArray[Any], count: int) -> Work:
    """The transitions' bytes into the next place of a ring."""
    rows = memoryview((bytes(obs) + bytes(SCALARS_NBYTES)) * count)
    ring = shared_bytes(min(scale.rows(obs), 65536) // count * len(rows))
    return memcpy((ring[at : at + len(rows)], rows) for at in range(0, len(ring), len(rows)))


def _other(scale: Scale, obs: NDArray[Any], count: int, library: Library) -> Work:
    adding, sample, fields = library(obs, scale.vectors, count)
    rows = _rows(obs, count)
    add = adding(*rows, rows[0])
    for _ in range(MANY):
        add()
    return Work(add, lambda _: _check_added(obs, fields(sample(MANY // 2))))


PLAIN = {"marlcore": _marlcore, "locks": _locks, "memcpy": _memcpy}
PEERS = installed(PLAIN | {name: partial(_other, library=library) for name, library in LIBRARIES.items()})
LANES = {"marlcore": _lanes, "memcpy": _memcpy, "64 writers": partial(_lanes, vector=False), "add_batch": _marlcore}
ROWS = (
    Row("add, 4 x float32", PEERS, {"locks": 1 / 2.5, "cpprb": 1 / 45}, (VECTOR, 1)),
    Row("add, 84 x 84 uint8", PLAIN, sizes=(FRAME, 1)),
    Row("add_batch of 64, 4 x float32", PEERS, {"cpprb": 1 / 6}, (VECTOR, MANY)),
    Row("vector add: 64 rows to 64 lanes, 4 x float32", LANES, {"64 writers": 1 / 6, "add_batch": 2.5}, (VECTOR, MANY)),
    Row("vector add: 64 rows to 64 lanes, 84 x 84 uint8", LANES, sizes=(FRAME, MANY)),
)
