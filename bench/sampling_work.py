"""The replay's rows that sample uniformly: of a few floats, and of stacked frames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marlcore import ReplayBuffer

from .peers import cpprb
from .peers.random_copies import random_copies
from .peers.ring import LockedRing
from .transitions import (
    BATCH,
    FRAME,
    HAS_CPPRB,
    HAS_TORCHRL,
    SCALARS_NBYTES,
    STACK,
    VECTOR,
    Open,
    check_sample,
    fields_of,
    fill,
    rows_of,
    spec_of,
)
from .work import Budget, Row, Scale, Work, memcpy, shared_bytes

# A row of 4 floats as marlcore stores it: from its flags on, its version, reward, action and obs; the next row's obs
STORED_NBYTES, STORED = 40, ((7, 33), (64, 16))


def _marlcore_sample(obs: NDArray[Any]) -> Open:
    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        with ReplayBuffer.create(spec_of(obs), rows_of(obs, scale)) as replay:
            with replay.writer() as writer:
                fill(obs, replay.capacity, writer.add_batch)
            sampler = replay.sampler(BATCH, stack=STACK if obs is FRAME else 1, seed=0)
            yield Work(lambda: fields_of(sampler.sample()), check_sample(obs))

    return open_work


def _seeds_sample(obs: NDArray[Any]) -> Open:
    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        ring = LockedRing(rows_of(obs, scale), obs.shape, obs.dtype.name)
        fill(obs, ring.capacity, ring.add_batch)
        sample = partial(ring.sample_stacked, BATCH, STACK) if obs is FRAME else partial(ring.sample, BATCH)
        yield Work(sample, check_sample(obs))

    return open_work


def memcpy_sample(obs: NDArray[Any]) -> Open:
    """The batch's bytes in one piece, from a random place of a ring; each frame once."""

    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        size = BATCH * (obs.nbytes * (STACK + 1 if obs is FRAME else 2) + SCALARS_NBYTES)
        ring = shared_bytes(rows_of(obs, scale) * obs.nbytes)
        batch = memoryview(bytearray(size))
        rows = np.random.default_rng(0).integers((len(ring) - size) // obs.nbytes, size=1024)
        yield memcpy((batch, ring[at : at + size]) for at in rows * obs.nbytes)

    return open_work


def floor_sample(obs: NDArray[Any]) -> Open:
    """The batch's bytes from where they lie in as many random rows as it has; each frame once."""

    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        if obs is FRAME:
            yield random_copies(scale.frames, obs.nbytes, ((0, obs.nbytes * (STACK + 1) + SCALARS_NBYTES),), BATCH)
        else:
            yield random_copies(scale.vectors, STORED_NBYTES, STORED, BATCH)

    return open_work


def _cpprb_sample() -> Open:
    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        from cpprb import MPReplayBuffer

        buffer = cpprb.make_buffer(MPReplayBuffer, VECTOR, scale.vectors)
        fill(VECTOR, scale.vectors, partial(cpprb.add_batch, buffer))
        yield Work(lambda: cpprb.fields(buffer.sample(BATCH)), check_sample(VECTOR))

    return open_work


def _torchrl_sample() -> Open:
    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        from .peers import torchrl

        buffer = torchrl.make_buffer(scale.vectors, BATCH)
        fill(VECTOR, scale.vectors, partial(torchrl.extend, buffer))
        check = check_sample(VECTOR)
        yield Work(buffer.sample, lambda batch: check(torchrl.fields(batch)))

    return open_work


def _libraries(obs: NDArray[Any]) -> dict[str, Open]:
    libraries = {
        "marlcore": _marlcore_sample(obs),
        "seeds": _seeds_sample(obs),
        "memcpy": memcpy_sample(obs),
        "floor": floor_sample(obs),
    }
    if obs is VECTOR and HAS_CPPRB:
        libraries["cpprb"] = _cpprb_sample()
    if obs is VECTOR and HAS_TORCHRL:
        libraries["torchrl"] = _torchrl_sample()
    return libraries


ROWS = (
    Row("sample 256 of 10^6, 4 x float32", _libraries(VECTOR), (Budget("floor", 2.5), Budget("cpprb", 1 / 4))),
    Row("sample 256, 4 frames of 84 x 84", _libraries(FRAME), (Budget("floor", 1.1),)),
)
