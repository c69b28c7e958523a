"""The replay's rows: add, add_batch, and sample, for transitions of a few floats and for frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marlcore import Field, ReplayBuffer, TransitionSpec

from .peers.ring import LockedRing
from .work import Budget, Row, Scale, Work, memcpy, shared_bytes

__all__ = ["HAS_CPPRB", "ROWS", "VECTOR", "vector_spec"]

BATCH = 256
STACK = 4
ADD_BATCH = 64
CHUNK = 500
SHADES = 251
FRAME_SHAPE = (84, 84)

VECTOR = np.arange(4, dtype=np.float32)
FRAME = (np.arange(84 * 84) % SHADES).astype(np.uint8).reshape(FRAME_SHAPE)
HAS_CPPRB = find_spec("cpprb") is not None
SCALARS_NBYTES = 8 + 4 + 1  # action, reward, done

Open = Callable[[Scale], AbstractContextManager[Work]]
Fields = tuple[NDArray[Any], ...]


def _spec(obs: NDArray[Any]) -> TransitionSpec:
    return TransitionSpec(Field(obs.shape, obs.dtype.name), Field((), "int64"))


def vector_spec() -> TransitionSpec:
    """Transitions of four floats."""
    return _spec(VECTOR)


def _rows(obs: NDArray[Any], scale: Scale) -> int:
    return scale.frames if obs is FRAME else scale.vectors


def _fields(batch: Any) -> Fields:
    return batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminated


# Adding, to rings that were filled once: their memory is mapped, as it is in a run's steady state


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
            ReplayBuffer.create(_spec(obs), _rows(obs, scale)) as replay,
            replay.writer() as writer,
        ):
            sampler = replay.sampler(ADD_BATCH // 2, seed=0)
            for _ in range(0, replay.capacity, ADD_BATCH):
                writer.add_batch(*_many(obs))

            def check(ticket: int) -> None:
                assert len(replay) == min(ticket + (ADD_BATCH if many else 1), replay.capacity)
                _check_added(obs, _fields(sampler.sample()))

            add = partial(writer.add_batch, *_many(obs)) if many else partial(writer.add, obs, 1, 0.5)
            yield Work(add, check)

    return open_work


def _seeds_add(obs: NDArray[Any], many: bool = False) -> Open:
    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        ring = LockedRing(_rows(obs, scale), obs.shape, obs.dtype.name)
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
        places = min(_rows(obs, scale), 65536) // (ADD_BATCH if many else 1)
        ring = shared_bytes(places * size)
        given = memoryview(source * (size // len(source)))
        yield memcpy((ring[at : at + size], given) for at in range(0, len(ring), size))

    return open_work


# Sampling: row t holds t + VECTOR, or a frame of the shade t mod SHADES; its action is t.


def _fill(obs: NDArray[Any], rows: int, add_batch: Callable[..., Any]) -> None:
    for first in range(0, rows, CHUNK):
        t = np.arange(first, min(first + CHUNK, rows))
        if obs is FRAME:
            filled = np.repeat((t % SHADES).astype(np.uint8), FRAME.size).reshape(-1, *FRAME_SHAPE)
        else:
            filled = (t[:, None] + VECTOR).astype(np.float32)
        add_batch(filled, t, (t % 7).astype(np.float32), np.zeros(len(t), np.bool_))


def _check_vectors(fields: Fields) -> None:
    obs, action, reward, next_obs, done = fields[:5]
    assert len(np.unique(action)) > BATCH // 2 and not done.any()
    assert (obs == action[:, None] + VECTOR).all() and (next_obs == obs + 1).all()
    assert (reward == action % 7).all()


def _check_frames(fields: Fields) -> None:
    obs, action, reward, next_obs, done = fields[:5]
    assert len(np.unique(action)) > BATCH // 2 and not done.any()
    for frames, newest in ((obs, action), (next_obs, action + 1)):
        shades = np.maximum(newest[:, None] - np.arange(STACK)[::-1], 0) % SHADES
        assert frames.shape == (BATCH, STACK, *FRAME_SHAPE)
        assert (frames == shades[:, :, None, None]).all()
    assert (reward == action % 7).all()


def _check_sample(obs: NDArray[Any]) -> Callable[[Fields], None]:
    return _check_frames if obs is FRAME else _check_vectors


def _marlcore_sample(obs: NDArray[Any]) -> Open:
    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        with ReplayBuffer.create(_spec(obs), _rows(obs, scale)) as replay:
            with replay.writer() as writer:
                _fill(obs, replay.capacity, writer.add_batch)
            sampler = replay.sampler(BATCH, stack=STACK if obs is FRAME else 1, seed=0)
            yield Work(lambda: _fields(sampler.sample()), _check_sample(obs))

    return open_work


def _seeds_sample(obs: NDArray[Any]) -> Open:
    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        ring = LockedRing(_rows(obs, scale), obs.shape, obs.dtype.name)
        _fill(obs, ring.capacity, ring.add_batch)
        sample = partial(ring.sample_stacked, BATCH, STACK) if obs is FRAME else partial(ring.sample, BATCH)
        yield Work(sample, _check_sample(obs))

    return open_work


def _memcpy_sample(obs: NDArray[Any]) -> Open:
    """The batch's bytes in one piece, from a random place of a ring; each frame once."""

    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        size = BATCH * (obs.nbytes * (STACK + 1 if obs is FRAME else 2) + SCALARS_NBYTES)
        ring = shared_bytes(_rows(obs, scale) * obs.nbytes)
        batch = memoryview(bytearray(size))
        rows = np.random.default_rng(0).integers((len(ring) - size) // obs.nbytes, size=1024)
        yield memcpy((batch, ring[at : at + size]) for at in rows * obs.nbytes)

    return open_work


# cpprb, where it is installed: transitions of a few floats


def _cpprb_add(many: bool = False) -> Open:
    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        from .peers import cpprb

        buffer = cpprb.make_buffer(scale.vectors, VECTOR.shape, VECTOR.dtype.name)
        obs, action, reward = _many(VECTOR) if many else (VECTOR, 1, 0.5)
        done = np.zeros(ADD_BATCH, np.bool_) if many else False
        add = partial(buffer.add, obs=obs, action=action, reward=reward, next_obs=obs, done=done)
        yield Work(add, lambda _: _check_added(VECTOR, cpprb.fields(buffer.sample(ADD_BATCH // 2))))

    return open_work


def _cpprb_sample() -> Open:
    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        from .peers import cpprb

        buffer = cpprb.make_buffer(scale.vectors, VECTOR.shape, VECTOR.dtype.name)

        def add_batch(obs: Any, action: Any, reward: Any, done: Any) -> None:
            buffer.add(obs=obs, action=action, reward=reward, next_obs=obs + 1, done=done)

        _fill(VECTOR, scale.vectors, add_batch)
        yield Work(lambda: cpprb.fields(buffer.sample(BATCH)), _check_sample(VECTOR))

    return open_work


def _adding(obs: NDArray[Any], many: bool = False) -> dict[str, Open]:
    libraries = {
        "marlcore": _marlcore_add(obs, many),
        "seeds": _seeds_add(obs, many),
        "memcpy": _memcpy_add(obs, many),
    }
    return libraries | {"cpprb": _cpprb_add(many)} if HAS_CPPRB and obs is VECTOR else libraries


def _sampling(obs: NDArray[Any]) -> dict[str, Open]:
    libraries = {"marlcore": _marlcore_sample(obs), "seeds": _seeds_sample(obs), "memcpy": _memcpy_sample(obs)}
    return libraries | {"cpprb": _cpprb_sample()} if HAS_CPPRB and obs is VECTOR else libraries


ROWS = (
    Row("add, 4 x float32", _adding(VECTOR), (Budget("seeds", 1 / 2.5), Budget("cpprb", 1 / 30))),
    Row("add, 84 x 84 uint8", _adding(FRAME)),
    Row("add_batch of 64, 4 x float32", _adding(VECTOR, many=True), (Budget("cpprb", 1 / 5),)),
    Row("sample 256 of 10^6, 4 x float32", _sampling(VECTOR), (Budget("cpprb", 1 / 2.5),)),
    Row("sample 256, 4 frames of 84 x 84", _sampling(FRAME), (Budget("memcpy", 1.25),)),
)
