"""A sampler that was cleared draws only what is written later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import marlcore as mc

SPEC = mc.TransitionSpec(obs=mc.Field((), "int64"), action=mc.Field((), "int64"))
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "prioritized": {"prioritized": mc.Prioritized()},
    "stack and n steps": {"stack": 3, "n_step": 2},
    "sequences": {"sequence": mc.Sequence(4)},
}


class Filled:
    """Two lanes, whose observations are their tickets; episodes of 10 transitions."""

    def __init__(self, capacity: int = 200, limiter: mc.RateLimiter | None = None) -> None:
        self.replay = mc.ReplayBuffer.create(SPEC, capacity, lanes=2, limiter=limiter)
        self.writers = [self.replay.writer(lane) for lane in range(2)]
        self.tickets = [0, 0]

    def add(self, count: int) -> None:
        for lane, writer in enumerate(self.writers):
            for _ in range(count):
                t = self.tickets[lane]
                assert writer.add(t, 0, 1.0, terminated=t % 10 == 9) == t
                self.tickets[lane] += 1

    def close(self) -> None:
        for thing in (*self.writers, self.replay):
            thing.close()


@pytest.fixture
def filled() -> Iterator[Filled]:
    made = Filled()
    made.add(60)
    yield made
    made.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", [40, 250])
def test_only_later_transitions_are_drawn_and_all_of_them(filled: Filled, kind: str, more: int) -> None:
    """Also after the lanes were overwritten once more, when the point of the clearing is gone."""
    sampler = filled.replay.sampler(64, seed=1, **KINDS[kind])
    old = sampler.sample()
    assert old.index.min() // 2 < 60
    sampler.clear()
    with pytest.raises(mc.NotEnoughData):
        sampler.sample()
    filled.add(more)
    drawn = set()
    for _ in range(60):
        batch = sampler.sample()
        drawn |= set((batch.index // 2).tolist())
        seen = batch.obs[batch.mask] if batch.mask is not None else batch.obs  # unspecified after an episode's end
        assert seen.min() >= 60
        if kind == "prioritized":
            sampler.update_priorities(batch.index, np.ones(64))
    every = set(range(max(60, filled.tickets[0] - 100), filled.tickets[0]))  # the last one ends an episode
    assert drawn == every if kind in ("uniform", "prioritized") else drawn <= every and len(drawn) > len(every) // 6


@pytest.mark.parametrize("limiter", [None, mc.RateLimiter(1.0, 10, 16.0)], ids=["free", "limited"])
def test_min_size_counts_from_the_clearing(limiter: mc.RateLimiter | None) -> None:
    """For this sampler alone; a limiter lets writers add the rows that it lacks."""
    made = Filled(limiter=limiter)
    made.add(10)
    sampler, other = made.replay.sampler(8, min_size=40), made.replay.sampler(8)
    sampler.clear()
    assert not sampler.can_sample()
    made.add(9)
    with pytest.raises(mc.NotEnoughData, match="expected at least 40 transitions, got 18"):
        sampler.sample()
    made.add(11)
    assert sampler.sample().obs.min() >= 10
    assert min(other.sample().obs.min() for _ in range(5)) < 10 and len(made.replay) == 60
    made.close()


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
def test_a_restored_sampler_remembers_the_clearing(filled: Filled, kind: str) -> None:
    sampler = filled.replay.sampler(64, **KINDS[kind])
    sampler.clear()
    successor = filled.replay.sampler(64, **KINDS[kind])
    successor.load_state_dict(sampler.state_dict())
    filled.add(40)
    assert successor.sample().obs.min() >= 60
    state = sampler.state_dict() | {"floor": np.array([60, 1000])}
    with pytest.raises(ValueError, match="state: expected floor as tickets of this replay"):
        successor.load_state_dict(state)
