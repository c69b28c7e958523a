"""Parts of one replay's lanes: sampled apart, mixed in fixed shares, under one limiter."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from marlcore import Field, Mixture, NotEnoughData, Prioritized, RateLimiter, ReplayBuffer, TransitionSpec
from marlcore.replay.gates import SampleGate

SPEC = TransitionSpec(Field((2,)), Field((), "int64"), extras={"frame": Field((64,), "uint8")})
PARTS = [range(1), range(1, 4), range(4, 6)]


@pytest.fixture
def replay() -> Iterator[ReplayBuffer]:
    with ReplayBuffer.create(SPEC, 600, lanes=6) as made:
        yield made


def write(replay: ReplayBuffer, lane: int, rows: int, **options: Any) -> None:
    """Row t of lane l holds the action 1000 l + t."""
    with replay.writer(lane, **options) as writer:
        for t in range(rows):
            frame = np.full(64, (lane + t) % 256, np.uint8)
            writer.add(np.float32([lane, t]), 1000 * lane + t, 1.0, terminated=t % 10 == 9, frame=frame)


@pytest.mark.parametrize("prioritized", [None, Prioritized()])
@pytest.mark.parametrize("lanes", PARTS)
def test_a_part_draws_from_its_lanes_alone(replay: ReplayBuffer, lanes: range, prioritized: Any) -> None:
    for lane in range(6):
        write(replay, lane, 130)  # each lane is lapped once
    sampler = replay.sampler(256, n_step=2, seed=0, prioritized=prioritized, lanes=lanes)
    drawn = set()
    for _ in range(30):
        batch = sampler.sample()
        lane, t = np.divmod(batch.action, 1000)
        assert (batch.obs == np.stack([lane, t], 1)).all()
        assert (batch.extras["frame"] == ((lane + t) % 256)[:, None]).all()
        drawn |= set(zip(lane.tolist(), t.tolist(), strict=True))
        if prioritized is not None:
            sampler.update_priorities(batch.index, np.ones(256))
    assert {lane for lane, _ in drawn} == set(lanes)
    held = {(lane, t) for lane in lanes for t in range(31, 128)}
    assert held <= drawn and min(t for _, t in drawn) >= 30


def test_parts_are_mixed_in_fixed_shares(replay: ReplayBuffer) -> None:
    mixture = Mixture([replay] * 3, [0.5, 0.25, 0.25], 64, seed=1, lanes=PARTS)
    with pytest.raises(NotEnoughData, match="no replay has anything to draw from"):
        mixture.sample()
    write(replay, 2, 50)
    assert mixture.sample().source.tolist() == [1] * 64
    for lane in (0, 1, 3, 4):
        write(replay, lane, 50)
    counts = np.zeros(3)
    for _ in range(20):
        batch = mixture.sample()
        own = np.array([0, 1, 1, 1, 2, 2])[batch.action // 1000]
        assert (own == batch.source).all()
        counts += np.bincount(batch.source, minlength=3)
    assert counts.tolist() == [640, 320, 320]


def test_the_state_of_parts_is_saved_with_the_replay(replay: ReplayBuffer, tmp_path: Any) -> None:
    for lane in range(6):
        write(replay, lane, 40)
    options: dict[str, Any] = {"prioritized": Prioritized(), "lanes": PARTS}
    mixture = Mixture([replay] * 3, [0.3, 0.3, 0.4], 32, seed=1, **options)
    batch = mixture.sample()
    mixture.update_priorities(batch.index, np.arange(32.0))
    replay.save(tmp_path / "save", mixture)
    with ReplayBuffer.load(tmp_path / "save") as loaded:
        again = Mixture([loaded] * 3, [0.3, 0.3, 0.4], 32, seed=2, **options)
        assert loaded.sampler_state is not None
        again.load_state_dict(loaded.sampler_state)
        for _ in range(5):
            one, other = mixture.sample(), again.sample()
            assert np.array_equal(one.action, other.action) and np.array_equal(one.weight, other.weight)


LIMITER = RateLimiter(samples_per_insert=2.0, min_size=20, tolerance=64.0, lead=0.0)


@pytest.fixture
def limited() -> Iterator[ReplayBuffer]:
    with ReplayBuffer.create(SPEC, 600, lanes=6, limiter=LIMITER) as made:
        yield made


def fills(replay: ReplayBuffer, lane: int) -> int:
    """Rows that fit before the limiter stops the lane's writer."""
    before = len(replay)
    with pytest.raises(TimeoutError):
        write(replay, lane, 1000, timeout=0)
    return len(replay) - before


@pytest.mark.parametrize("empty_asks", [False, True])
def test_one_limiter_counts_all_parts_together(limited: ReplayBuffer, empty_asks: bool) -> None:
    """A part without rows does not set the writers free as long as the others give its share."""
    mixture = Mixture([limited] * 3, [0.25, 0.5, 0.25], 16, seed=1, lanes=PARTS)
    assert fills(limited, 1) == 20 + 64 / 2
    for _ in range(4):
        assert mixture.due
        if empty_asks:
            assert mixture.can_sample()
        assert mixture.sample().source.tolist() == [1] * 16
        assert fills(limited, 2) == 16 / 2
    with pytest.raises(TimeoutError):
        write(limited, 3, 1, timeout=0)
    drawn = 0
    while mixture.can_sample():
        assert len(mixture.sample()) == 16
        drawn += 1
    assert drawn == 4 and not mixture.due


def test_a_mixture_that_can_draw_nothing_sets_the_writers_free(limited: ReplayBuffer) -> None:
    mixture = Mixture([limited] * 2, [0.5, 0.5], 16, lanes=[range(1), range(1, 2)])
    assert fills(limited, 2) == 52
    assert not mixture.can_sample()
    write(limited, 2, 30, timeout=0)
    write(limited, 1, 5, timeout=0)
    assert len(mixture.sample()) == 16
    with pytest.raises(TimeoutError):
        write(limited, 2, 1, timeout=0)


def test_an_empty_part_never_sets_the_writers_free(limited: ReplayBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even while a batch is drawn, when a writer of another process would notice."""
    asked: list[SampleGate] = []
    monkeypatch.setattr(SampleGate, "starve", asked.append)
    mixture = Mixture([limited] * 3, [0.25, 0.5, 0.25], 16, lanes=PARTS)
    assert fills(limited, 1) == 52
    assert mixture.can_sample() and len(mixture.sample()) == 16
    assert not asked


@pytest.mark.long
def test_parts_hold_the_ratio_against_free_running_writers(limited: ReplayBuffer) -> None:
    mixture = Mixture([limited] * 3, [0.25, 0.5, 0.25], 16, seed=1, lanes=PARTS)
    threads = [threading.Thread(target=write, args=(limited, lane, 2000)) for lane in (0, 2)]
    for thread in threads:
        thread.start()
    drawn = 0
    while any(thread.is_alive() for thread in threads) or mixture.due:
        try:
            drawn += len(mixture.sample(timeout=0.05))
        except TimeoutError:
            continue
    for thread in threads:
        thread.join()
    assert abs(drawn - 2 * (4000 - 20)) <= 16
