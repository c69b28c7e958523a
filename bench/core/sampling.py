"""Rows of the table that sample from a replay: uniformly, or in proportion to priorities, renewed after each batch.

cpprb has a buffer for several processes, and one without lock and shared memory for a single process, as rlox and
Stable-Baselines3 have. TorchRL's prioritized one is left out: its extension does not load beside the pinned torch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import marlcore as mc
from marlcore.compat.cpprb import MPPrioritizedReplayBuffer

from ..peers.buffers import LIBRARIES, Library, fields_of_cpprb, make_cpprb, torchrl
from ..peers.ring import LockedRing
from .random_copies import random_copies
from .transitions import BATCH, CHUNK, FRAME, SCALARS_NBYTES, STACK, VECTOR, check_draw, fields_of, fill, filled_replay
from .work import Row, Scale, Work, installed, memcpy, shared_bytes

# A row of 4 floats as marlcore stores it: from its flags on, its version, reward, action and obs; the next row's obs
STORED_NBYTES, STORED = 40, ((7, 33), (64, 16))
HIGH = 1e12

Drawn = tuple[Any, NDArray[Any], NDArray[Any]]  # fields, weights, indices


def drawing(replay: mc.ReplayBuffer, obs: NDArray[Any], layout: mc.replay.Layout | None = None) -> Work:
    sampler = replay.sampler(BATCH, stack=STACK if obs is FRAME else 1, seed=0, layout=layout)
    return Work(lambda: fields_of(sampler.sample()), partial(check_draw, obs))


@contextmanager
def by_marlcore(scale: Scale, obs: NDArray[Any], draw: Callable[..., Work] = drawing, **options: Any) -> Iterator[Work]:
    with filled_replay(obs, scale.rows(obs)) as replay:
        yield draw(replay, obs, **options)


def _locks(scale: Scale, obs: NDArray[Any]) -> Work:
    ring = LockedRing(scale.rows(obs), obs)
    fill(obs, ring.capacity, ring.add_batch)
    sample = partial(ring.sample_stacked, BATCH, STACK) if obs is FRAME else partial(ring.sample, BATCH)
    return Work(sample, partial(check_draw, obs))


def _memcpy(scale: Scale, obs: NDArray[Any]) -> Work:
    """The batch's bytes in one piece, from a random place of a ring; each frame once."""
    size = BATCH * (obs.nbytes * (STACK + 1 if obs is FRAME else 2) + SCALARS_NBYTES)
    ring = shared_bytes(scale.rows(obs) * obs.nbytes)
    batch = memoryview(bytearray(size))
    rows = np.random.default_rng(0).integers((len(ring) - size) // obs.nbytes, size=1024)
    return memcpy((batch, ring[at : at + size]) for at in rows * obs.nbytes)


def _floor(scale: Scale, obs: NDArray[Any]) -> Work:
    """The batch's bytes from as many random rows as the batch has; each frame once."""
    if obs is FRAME:
        return random_copies(scale.frames, obs.nbytes, ((0, obs.nbytes * (STACK + 1) + SCALARS_NBYTES),), BATCH)
    return random_copies(scale.vectors, STORED_NBYTES, STORED, BATCH)


def _other(scale: Scale, obs: NDArray[Any], library: Library) -> Work:
    adding, sample, of_batch = library(obs, scale.vectors, CHUNK)
    fill(obs, scale.vectors, lambda obs, *others: adding(obs, *others, obs + 1)())
    return Work(partial(sample, BATCH), lambda batch: check_draw(obs, of_batch(batch)))


def _prioritized(sample: Callable[[], Drawn], update: Callable[[NDArray[Any], NDArray[Any]], object]) -> Work:
    priorities = np.random.default_rng(0).random(BATCH)

    def run() -> Drawn:
        drawn = sample()
        update(drawn[2], priorities)
        return drawn

    def check(drawn: Drawn) -> None:
        fields, weights, indices = drawn
        check_draw(VECTOR, fields)
        assert (weights > 0).all() and (weights <= 1 + 1e-6).all()
        update(indices, np.full(BATCH, HIGH))
        again = sample()[0]
        update(indices, np.ones(BATCH))
        assert np.isin(again[1], fields[1]).mean() > 0.9  # they have nearly all of the mass

    return Work(run, check)


def drawing_by_priority(replay: mc.ReplayBuffer, _: NDArray[Any] = VECTOR) -> Work:
    sampler = replay.sampler(BATCH, seed=0, prioritized=mc.Prioritized())

    def sample() -> Drawn:
        batch = sampler.sample()
        return fields_of(batch), batch.weight, batch.index

    return _prioritized(sample, sampler.update_priorities)


def _of_interface(scale: Scale, obs: NDArray[Any], kind: str | type) -> Work:
    """A buffer of a class with cpprb's interface, or of one of cpprb's by its name."""
    buffer, adding = make_cpprb(kind, obs, scale.vectors)
    fill(obs, scale.vectors, lambda obs, *others: adding(obs, *others, obs + 1)())

    def sample() -> Drawn:
        batch = buffer.sample(BATCH)
        return fields_of_cpprb(batch), batch["weights"], batch["indexes"]

    return _prioritized(sample, buffer.update_priorities)


BOUNDS = {"memcpy": _memcpy, "floor": _floor}
PLAIN = {"marlcore": by_marlcore, "locks": _locks, **BOUNDS}
CPPRB = {
    "cpprb": partial(_of_interface, kind="MPPrioritizedReplayBuffer"),
    "cpprb single": partial(_of_interface, kind="PrioritizedReplayBuffer"),
}
# obs and next_obs in blocks of their own, as marlcore has them without a stack, or in one block, as with a stack
SEPARATE, SHARED = "marlcore separate", "marlcore shared"
FRAMES = {**PLAIN, SEPARATE: partial(by_marlcore, layout="separate")}
OTHERS = {name: partial(_other, library=library) for name, library in {"torchrl": torchrl, **LIBRARIES}.items()}
UNIFORM = installed({**PLAIN, SHARED: partial(by_marlcore, layout="shared"), **OTHERS})
PRIORITIZED = installed({"marlcore": partial(by_marlcore, draw=drawing_by_priority), **BOUNDS, **CPPRB})
ALIKE = installed({"marlcore": partial(_of_interface, kind=MPPrioritizedReplayBuffer), **CPPRB})
OF_PRIORITIZED = {"floor": 8, "cpprb": 1 / 60, "cpprb single": 1 / 7}
ROWS = (
    Row("sample 256 of 10^6, 4 x float32", UNIFORM, {"floor": 2.5, "cpprb": 1 / 4, SHARED: 1.05}, (VECTOR,)),
    Row("sample 256, 4 frames of 84 x 84", FRAMES, {"floor": 1.1}, (FRAME,)),
    Row("prioritized sample + update, 256 of 10^6", PRIORITIZED, OF_PRIORITIZED, (VECTOR,)),
    Row("the same through cpprb's interface", ALIKE, {"cpprb": 1 / 30, "cpprb single": 1}, (VECTOR,)),
)
