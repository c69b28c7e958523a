"""Rows of the table that add to a full replay: one transition, 64 to a lane, or one to each of 64 lanes."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marlcore import ReplayBuffer

from ..peers import cpprb
from ..peers.ring import LockedRing
from ..peers.single import LIBRARIES, Library
from .transitions import FRAME, SCALARS_NBYTES, VECTOR, Fields, fields_of, installed, rows_of, spec_of
from .work import Row, Scale, Work, memcpy, shared_bytes

MANY = 64
NONE_DONE = np.zeros(MANY, np.bool_)


def _check_added(obs: NDArray[Any], fields: Fields) -> None:
    """Every row that was added holds the same transition."""
    assert (fields[0] == obs).all() and (fields[3] == obs).all()
    assert (fields[1] == 1).all() and (fields[2] == 0.5).all() and not fields[4].any()


def _many(obs: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    rows = np.broadcast_to(obs, (MANY, *obs.shape)).copy()
    return rows, np.ones(MANY, np.int64), np.full(MANY, 0.5, np.float32)


@contextmanager
def _marlcore(scale: Scale, obs: NDArray[Any], count: int) -> Iterator[Work]:
    with ReplayBuffer.create(spec_of(obs), rows_of(obs, scale)) as replay, replay.writer() as writer:
        sampler = replay.sampler(MANY // 2, seed=0)
        for _ in range(0, replay.capacity, MANY):
            writer.add_batch(*_many(obs))

        def check(ticket: int) -> None:
            assert len(replay) == min(ticket + count, replay.capacity)
            _check_added(obs, fields_of(sampler.sample()))

        add = partial(writer.add_batch, *_many(obs)) if count == MANY else partial(writer.add, obs, 1, 0.5)
        yield Work(add, check)


@contextmanager
def _lanes(scale: Scale, obs: NDArray[Any], count: int, vector: bool = True) -> Iterator[Work]:
    """A row to each of `count` lanes: by one call, or by one call of each lane's own writer."""
    rows = _many(obs)
    with ReplayBuffer.create(spec_of(obs), rows_of(obs, scale), count) as replay, replay.vector_writer() as filling:
        sampler = replay.sampler(MANY // 2, seed=0)
        for _ in range(0, replay.capacity, count):
            filling.add(*rows)

        def check(_: object) -> None:
            assert len(replay) == replay.capacity
            _check_added(obs, fields_of(sampler.sample()))

        if vector:
            yield Work(partial(filling.add, *rows), check)
            return
        filling.close()
        adds = [replay.writer(lane).add for lane in range(count)]

        def add_each() -> None:
            for add in adds:
                add(obs, 1, 0.5)

        yield Work(add_each, check)


def _locks(scale: Scale, obs: NDArray[Any], count: int) -> Work:
    ring = LockedRing(rows_of(obs, scale), obs.shape, obs.dtype.name)
    add_batch = partial(ring.add_batch, *_many(obs), NONE_DONE)
    for _ in range(0, ring.capacity, MANY):
        add_batch()
    add = add_batch if count == MANY else partial(ring.add, obs, 1, 0.5, False)
    return Work(add, lambda _: _check_added(obs, ring.sample(MANY // 2)))


def _memcpy(scale: Scale, obs: NDArray[Any], count: int) -> Work:
    """The transitions' bytes into the next place of a ring."""
    rows = memoryview((bytes(obs) + bytes(SCALARS_NBYTES)) * count)
    ring = shared_bytes(min(rows_of(obs, scale), 65536) // count * len(rows))
    return memcpy((ring[at : at + len(rows)], rows) for at in range(0, len(ring), len(rows)))


def _cpprb(scale: Scale, obs: NDArray[Any], count: int, kind: str = "MPReplayBuffer") -> Work:
    buffer = cpprb.make_buffer(kind, obs, scale.vectors)
    obs_added, action, reward = _many(obs) if count == MANY else (obs, 1, 0.5)
    done = NONE_DONE if count == MANY else False
    add = partial(buffer.add, obs=obs_added, action=action, reward=reward, next_obs=obs_added, done=done)
    return Work(add, lambda _: _check_added(obs, cpprb.fields(buffer.sample(MANY // 2))))


def _single(scale: Scale, obs: NDArray[Any], count: int, library: Library) -> Work:
    adding, sample, fields = library(obs, scale.vectors, count)
    rows, *others = (*_many(obs), NONE_DONE) if count == MANY else (obs, 1, 0.5, False)
    add = adding(rows, *others, rows)
    for _ in range(MANY):
        add()
    return Work(add, lambda _: _check_added(obs, fields(sample(MANY // 2))))


PLAIN = {"marlcore": _marlcore, "locks": _locks, "memcpy": _memcpy}
SINGLE = {"cpprb single": partial(_cpprb, kind="ReplayBuffer")}
SINGLE |= {name: partial(_single, library=library) for name, library in LIBRARIES.items()}
PEERS = installed({**PLAIN, "cpprb": _cpprb, **SINGLE})
LANES = {"marlcore": _lanes, "memcpy": _memcpy, "64 writers": partial(_lanes, vector=False), "add_batch": _marlcore}
LANE_BUDGETS = {"64 writers": 1 / 6, "add_batch": 2.5}
ROWS = (
    Row("add, 4 x float32", PEERS, {"locks": 1 / 2.5, "cpprb": 1 / 45}, (VECTOR, 1)),
    Row("add, 84 x 84 uint8", PLAIN, sizes=(FRAME, 1)),
    Row("add_batch of 64, 4 x float32", PEERS, {"cpprb": 1 / 6}, (VECTOR, MANY)),
    Row("vector add: 64 rows to 64 lanes, 4 x float32", LANES, LANE_BUDGETS, (VECTOR, MANY)),
    Row("vector add: 64 rows to 64 lanes, 84 x 84 uint8", LANES, sizes=(FRAME, MANY)),
)
