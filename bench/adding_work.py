"""The replay's rows that add: one transition, 64 to a lane, and one to each of 64 lanes; the rings were filled once.

So their memory is mapped, as it is in a run's steady state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marlcore import ReplayBuffer

from .peers import cpprb
from .peers.ring import LockedRing
from .transitions import FRAME, HAS_CPPRB, SCALARS_NBYTES, VECTOR, Fields, Open, fields_of, rows_of, spec_of
from .work import Budget, Row, Scale, Work, memcpy, shared_bytes

ADD_BATCH = 64


def _check_added(obs: NDArray[Any], fields: Fields) -> None:
    """Every row that was added holds the same transition."""
    assert (fields[0] == obs).all() and (fields[3] == obs).all()
    assert (fields[1] == 1).all() and (fields[2] == 0.5).all() and not fields[4].any()


def _many(obs: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    rows = np.broadcast_to(obs, (ADD_BATCH, *obs.shape)).copy()
    return rows, np.ones(ADD_BATCH, np.int64), np.full(ADD_BATCH, 0.5, np.float32)


def _marlcore_add(obs: NDArray[Any], many: bool = False) -> Open:
    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        with (
            ReplayBuffer.create(spec_of(obs), rows_of(obs, scale)) as replay,
            replay.writer() as writer,
        ):
            sampler = replay.sampler(ADD_BATCH // 2, seed=0)
            for _ in range(0, replay.capacity, ADD_BATCH):
                writer.add_batch(*_many(obs))

            def check(ticket: int) -> None:
                assert len(replay) == min(ticket + (ADD_BATCH if many else 1), replay.capacity)
                _check_added(obs, fields_of(sampler.sample()))

            add = partial(writer.add_batch, *_many(obs)) if many else partial(writer.add, obs, 1, 0.5)
            yield Work(add, check)

    return open_work


def _marlcore_lanes(obs: NDArray[Any], vector: bool) -> Open:
    """A row to each of 64 lanes: by one call, or by one call of each lane's own writer."""

    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        rows = _many(obs)
        with (
            ReplayBuffer.create(spec_of(obs), rows_of(obs, scale), ADD_BATCH) as replay,
            replay.vector_writer() as filling,
        ):
            sampler = replay.sampler(ADD_BATCH // 2, seed=0)
            for _ in range(0, replay.capacity, ADD_BATCH):
                filling.add(*rows)

            def check(_: object) -> None:
                assert len(replay) == replay.capacity
                _check_added(obs, fields_of(sampler.sample()))

            if vector:
                yield Work(partial(filling.add, *rows), check)
                return
            filling.close()
            adds = [replay.writer(lane).add for lane in range(ADD_BATCH)]

            def add_each() -> None:
                for add in adds:
                    add(obs, 1, 0.5)

            yield Work(add_each, check)

    return open_work


def _seeds_add(obs: NDArray[Any], many: bool = False) -> Open:
    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        ring = LockedRing(rows_of(obs, scale), obs.shape, obs.dtype.name)
        none_done = np.zeros(ADD_BATCH, np.bool_)
        for _ in range(0, ring.capacity, ADD_BATCH):
            ring.add_batch(*_many(obs), none_done)

        def check(_: None) -> None:
            _check_added(obs, ring.sample(ADD_BATCH // 2))

        if many:
            yield Work(partial(ring.add_batch, *_many(obs), none_done), check)
        else:
            yield Work(partial(ring.add, obs, 1, 0.5, False), check)

    return open_work


def _memcpy_add(obs: NDArray[Any], many: bool = False) -> Open:
    """The transition's bytes into the next place of a ring."""

    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        source = bytes(obs) + bytes(SCALARS_NBYTES)
        size = len(source) * (ADD_BATCH if many else 1)
        places = min(rows_of(obs, scale), 65536) // (ADD_BATCH if many else 1)
        ring = shared_bytes(places * size)
        given = memoryview(source * (size // len(source)))
        yield memcpy((ring[at : at + size], given) for at in range(0, len(ring), size))

    return open_work


def _cpprb_add(many: bool = False) -> Open:
    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        from cpprb import MPReplayBuffer

        buffer = cpprb.make_buffer(MPReplayBuffer, VECTOR, scale.vectors)
        obs, action, reward = _many(VECTOR) if many else (VECTOR, 1, 0.5)
        done = np.zeros(ADD_BATCH, np.bool_) if many else False
        add = partial(buffer.add, obs=obs, action=action, reward=reward, next_obs=obs, done=done)
        yield Work(add, lambda _: _check_added(VECTOR, cpprb.fields(buffer.sample(ADD_BATCH // 2))))

    return open_work


def _libraries(obs: NDArray[Any], many: bool = False) -> dict[str, Open]:
    libraries = {
        "marlcore": _marlcore_add(obs, many),
        "seeds": _seeds_add(obs, many),
        "memcpy": _memcpy_add(obs, many),
    }
    return libraries | {"cpprb": _cpprb_add(many)} if HAS_CPPRB and obs is VECTOR else libraries


def _lane_libraries(obs: NDArray[Any]) -> dict[str, Open]:
    return {
        "marlcore": _marlcore_lanes(obs, vector=True),
        "memcpy": _memcpy_add(obs, many=True),
        "64 writers": _marlcore_lanes(obs, vector=False),
        "add_batch": _marlcore_add(obs, many=True),
    }


ROWS = (
    Row("add, 4 x float32", _libraries(VECTOR), (Budget("seeds", 1 / 2.5), Budget("cpprb", 1 / 45))),
    Row("add, 84 x 84 uint8", _libraries(FRAME)),
    Row("add_batch of 64, 4 x float32", _libraries(VECTOR, many=True), (Budget("cpprb", 1 / 6),)),
    Row(
        "vector add: 64 rows to 64 lanes, 4 x float32",
        _lane_libraries(VECTOR),
        (Budget("64 writers", 1 / 6), Budget("add_batch", 2.5)),
    ),
    Row("vector add: 64 rows to 64 lanes, 84 x 84 uint8", _lane_libraries(FRAME)),
)
