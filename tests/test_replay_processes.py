"""A writer flat out in one process, a sampler in another: nothing torn, stale or across a boundary comes out.

Each frame carries its ticket, its episode, its place in the episode and words that follow from the ticket. So a
torn frame shows by itself, a stale one beside the batch's index, and a stack or step across a boundary by its episode.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from marlcore import Field, ReplayBuffer, TransitionSpec

EPISODE = 7  # transitions; every second episode ends with a boundary row

# The whole of the writer: rows flat out until it is killed. `words` is the size of a frame.
WRITER = """
    import sys
    import numpy as np
    from marlcore import ReplayBuffer
    replay, words = ReplayBuffer.attach(sys.argv[1]), int(sys.argv[2])
    pattern = np.arange(words, dtype=np.uint64)

    def fill(frame, ticket, episode, place):
        np.add(pattern, ticket * 1_000_003, out=frame)
        frame[:3] = ticket, episode, place

    with replay.writer() as writer:
        obs, final, ticket, episode = pattern.copy(), pattern.copy(), 0, 0
        print("ready", flush=True)
        while True:
            for place in range(7):
                fill(obs, ticket, episode, place)
                if place < 6:
                    writer.add(obs, ticket, 1.0)
                elif episode % 2:
                    fill(final, ticket + 1, episode, place + 1)
                    writer.add(obs, ticket, 1.0, truncated=True, final_obs=final)
                    ticket += 1
                else:
                    writer.add(obs, ticket, 1.0, terminated=True)
                ticket += 1
            episode += 1
"""


def torn(frames: np.ndarray) -> np.ndarray:
    """Which frames are no frame that was ever written."""
    pattern = np.arange(frames.shape[-1], dtype=np.uint64)
    expected = pattern + frames[..., :1] * np.uint64(1_000_003)
    return (frames[..., 3:] != expected[..., 3:]).any(-1)


def faults(batch, stack: int, n_step: int) -> Counter:
    """Rows of a batch that are torn, stale, or reach across a boundary."""
    obs, after = batch.obs, batch.next_obs
    if stack == 1:
        obs, after = obs[:, None], after[:, None]
    found = Counter()
    # Behind a terminated row next_obs means nothing, so only the frames that mean something are looked at.
    goes_on = ~batch.terminated
    found["torn"] = int(torn(obs).any(1).sum() + torn(after[goes_on]).any(1).sum())
    newest = obs[:, -1].astype(np.int64)
    ticket, episode, place = newest[:, 0], newest[:, 1], newest[:, 2]
    found["stale"] = int(((ticket != batch.index) | (batch.action != batch.index)).sum())

    def astray(frames, last, rows):
        """Frames of another episode, or not in the order of their places (the first one repeated before it)."""
        back = np.arange(stack - 1, -1, -1)
        places = np.maximum(last[:, None] - back, 0)
        return (
            (frames[..., 1] != episode[rows, None]) | (frames[..., 2].astype(np.int64) != places)
        ).any(1).sum()  # fmt: skip

    everywhere = np.ones(len(place), bool)
    steps = np.minimum(n_step, EPISODE - place)
    ends = batch.terminated | batch.truncated
    found["across"] = int(
        astray(obs, place, everywhere)
        + astray(after[goes_on], (place + steps)[goes_on], goes_on)
        + (ends != (place + n_step >= EPISODE)).sum()
        + (batch.truncated != (ends & (episode % 2 == 1))).sum()
        + (batch.reward != steps).sum()
        + (batch.discount != ~batch.terminated).sum()
        + (batch.valid.sum(1) != np.minimum(place + 1, stack)).sum()
    )
    return found


def sample(program, capacity, words, batch_size, enough, stack=1, n_step=1, trust=False):
    """Samples beside a writer flat out until `enough(rows, faults, stats)`; the faults and the stats."""
    spec = TransitionSpec(Field((words,), "uint64"), Field((), "int64"))
    with ReplayBuffer.create(spec, capacity) as replay:
        writer = program(WRITER, args=[replay.handle.path, words])
        assert writer.line() == "ready"
        sampler = replay.sampler(batch_size, stack=stack, n_step=n_step, gamma=1.0, seed=0, min_size=capacity // 2)
        if trust:  # the positive control: whatever was copied is believed
            sampler._drawing._validate = lambda n: 0
        found = Counter()
        while not enough(sampler.stats.drawn, found, sampler.stats):
            found += faults(sampler.sample(timeout=60), stack, n_step)
        writer.kill()
        # The writer is dead, perhaps inside an add: what it left is whole too.
        for _ in range(10):
            found += faults(sampler.sample(), stack, n_step)
        return found, sampler.stats


@pytest.mark.parametrize(
    ("capacity", "words", "batch_size", "stack", "n_step", "rows"),
    [
        (256, 16, 32, 1, 1, 150_000),  # in the record itself
        (256, 64, 32, 1, 1, 150_000),  # in a column of its own
        (256, 64, 16, 4, 1, 60_000),
        (256, 64, 16, 3, 3, 60_000),
    ],
)
def test_nothing_torn_stale_or_across_a_boundary_is_sampled(program, capacity, words, batch_size, stack, n_step, rows):
    found, stats = sample(
        program, capacity, words, batch_size,
        lambda drawn, found, stats: drawn >= rows and stats.lapped > 0, stack, n_step,
    )  # fmt: skip
    assert not +found, f"of {stats.drawn} rows"
    assert stats.drawn >= rows
    assert stats.lapped > 0


@pytest.mark.parametrize(("words", "fault"), [(512, "torn"), (16, "stale")])
def test_without_validation_torn_and_stale_rows_are_seen(program, words, fault):
    """So the test above would notice: the same check, with the validator made to accept everything."""
    found, _ = sample(
        program, 64, words, 64, lambda drawn, found, stats: found[fault] > 0 or drawn >= 2_000_000, trust=True
    )
    assert found[fault] > 0
