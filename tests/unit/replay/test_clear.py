"""A sampler that was cleared counts and draws only what is written later; what it draws, the replay machine checks."""

import numpy as np
import pytest

import marlcore as mc

SPEC = mc.TransitionSpec(obs=mc.Field((), "int64"), action=mc.Field((), "int64"))


def add(replay: mc.ReplayBuffer, first: int, end: int) -> None:
    """Transitions of both lanes, whose observations are their tickets; each ends its episode."""
    tickets = np.arange(first, end)
    for lane in range(2):
        with replay.writer(lane) as writer:
            writer.add_batch(tickets, tickets, np.zeros(end - first), np.ones(end - first, bool))


@pytest.mark.parametrize("limiter", [None, mc.RateLimiter(1.0, 10, 20.0)], ids=["free", "limited"])
def test_min_size_counts_from_the_clearing(limiter: mc.RateLimiter | None) -> None:
    """For this sampler, and one that has its state; a limiter lets writers add the rows that they lack."""
    with mc.ReplayBuffer.create(SPEC, 200, lanes=2, limiter=limiter) as replay:
        add(replay, 0, 10)
        sampler, other = replay.sampler(8, min_size=40), replay.sampler(8)
        sampler.clear()
        restored = replay.sampler(8, min_size=40)
        restored.load_state_dict(sampler.state_dict())
        assert not sampler.can_sample()
        add(replay, 10, 19)
        for cleared in (sampler, restored):
            with pytest.raises(mc.NotEnoughData, match="expected at least 40 transitions, got 18"):
                cleared.sample()
        add(replay, 19, 30)
        assert min(cleared.sample().obs.min() for cleared in (sampler, restored)) >= 10
        assert min(other.sample().obs.min() for _ in range(5)) < 10 and len(replay) == 60


def test_a_floor_above_the_replays_tickets_is_refused() -> None:
    with mc.ReplayBuffer.create(SPEC, 200, lanes=2) as replay:
        add(replay, 0, 60)
        sampler = replay.sampler(64)
        sampler.clear()
        with pytest.raises(ValueError, match="state: expected floor as tickets of this replay"):
            sampler.load_state_dict(sampler.state_dict() | {"floor": np.array([60, 1000])})
