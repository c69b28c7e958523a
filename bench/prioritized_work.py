"""The replay's rows with priorities: a batch is drawn in proportion to them, and is given new ones.

The seeds' tree of sums is Python in the learner's process; so is marlcore's, in Numba. cpprb has one buffer for several
processes and one for a single process, where no lock and no shared memory slows it down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import marlcore as mc
from marlcore.compat.cpprb import MPPrioritizedReplayBuffer

from .peers import cpprb
from .peers.ring import LockedRing
from .peers.sumtree import PrioritizedRing
from .sampling_work import floor_sample, memcpy_sample
from .transitions import BATCH, HAS_CPPRB, VECTOR, Fields, Open, check_sample, fields_of, fill, spec_of
from .work import Budget, Row, Scale, Work

HIGH = 1e9

Drawn = tuple[Fields, NDArray[Any], NDArray[Any]]  # fields, weights, indices


def _work(sample: Callable[[], Drawn], update: Callable[[NDArray[Any], NDArray[Any]], object]) -> Work:
    priorities = np.random.default_rng(0).random(BATCH)

    def run() -> Drawn:
        drawn = sample()
        update(drawn[2], priorities)
        return drawn

    def check(drawn: Drawn) -> None:
        fields, weights, indices = drawn
        check_sample(VECTOR)(fields)
        assert (weights > 0).all() and (weights <= 1 + 1e-6).all()
        update(indices, np.full(BATCH, HIGH))
        again = sample()[0]
        update(indices, np.ones(BATCH))
        assert np.isin(again[1], fields[1]).mean() > 0.9  # they have nearly all of the mass

    return Work(run, check)


@contextmanager
def _marlcore(scale: Scale) -> Iterator[Work]:
    with mc.ReplayBuffer.create(spec_of(VECTOR), scale.vectors) as replay:
        with replay.writer() as writer:
            fill(VECTOR, replay.capacity, writer.add_batch)
        sampler = replay.sampler(BATCH, seed=0, prioritized=mc.Prioritized())

        def sample() -> Drawn:
            batch = sampler.sample()
            return fields_of(batch), batch.weight, batch.index

        yield _work(sample, sampler.update_priorities)


@contextmanager
def _seeds(scale: Scale) -> Iterator[Work]:
    ring = LockedRing(scale.vectors, VECTOR.shape, VECTOR.dtype.name)
    fill(VECTOR, ring.capacity, ring.add_batch)
    prioritized = PrioritizedRing(ring)
    yield _work(partial(prioritized.sample, BATCH), prioritized.update)


def _of_interface(find_class: Callable[[], Any]) -> Open:
    """A class with the interface of cpprb's."""

    @contextmanager
    def open_work(scale: Scale) -> Iterator[Work]:
        buffer = cpprb.make_buffer(find_class(), VECTOR, scale.vectors)
        fill(VECTOR, scale.vectors, partial(cpprb.add_batch, buffer))

        def sample() -> Drawn:
            batch = buffer.sample(BATCH)
            return cpprb.fields(batch), batch["weights"], batch["indexes"]

        yield _work(sample, buffer.update_priorities)

    return open_work


def _of_cpprb(name: str) -> Open:
    return _of_interface(lambda: getattr(__import__("cpprb"), name))


CPPRB: dict[str, Open] = {
    "cpprb": _of_cpprb("MPPrioritizedReplayBuffer"),
    "cpprb single": _of_cpprb("PrioritizedReplayBuffer"),
} if HAS_CPPRB else {}  # fmt: skip

ROWS = (
    Row(
        "prioritized sample + update, 256 of 10^6",
        {
            "marlcore": _marlcore,
            "seeds": _seeds,
            "memcpy": memcpy_sample(VECTOR),
            "floor": floor_sample(VECTOR),
            **CPPRB,
        },
        (Budget("floor", 8), Budget("cpprb", 1 / 60), Budget("cpprb single", 1 / 7)),
    ),
    Row(
        "the same through cpprb's interface",
        {"marlcore": _of_interface(lambda: MPPrioritizedReplayBuffer), **CPPRB},
        (Budget("cpprb", 1 / 30), Budget("cpprb single", 1)),
    ),
)
