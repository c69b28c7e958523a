"""Batches of whole episodes, padded to one length, with a mask."""

from functools import partial

import numpy as np
import pytest
from model import SPECS, allowed_in, chi_square_limit, filled
from refused import check_refused
from tiers import long_but

import marlcore as mc

STATES = mc.TransitionSpec(
    mc.Field((3,)), mc.Field((), "int64"), {"h": mc.Field((2,), every=3), "state": mc.Field((70,), "float64")}
)
NAMES = {**SPECS, "states": STATES}
WINDOWS = [{}, {"stack": 3, "layout": "separate"}, {"n_step": 3, "gamma": 0.9}, {"prioritized": mc.Prioritized()}]
CASES = [(name, window) for name in NAMES if not NAMES[name].next_obs for window in WINDOWS]
QUICK = [("vector", WINDOWS[0]), ("vector", WINDOWS[2]), ("states", WINDOWS[1])]
LENGTH = 5


@pytest.mark.parametrize(("name", "window"), long_but(QUICK, CASES))
def test_every_whole_episode_is_drawn_as_the_oracle_says(name, window):
    replay, model = filled(NAMES[name], [90, 30], 60)
    with replay:
        sequence = mc.Sequence(LENGTH, whole=True)
        sampler = replay.sampler(16, seed=2, min_size=1, sequence=sequence, **window)
        given = {key: value for key, value in window.items() if key in ("stack", "n_step", "gamma")}
        allowed = allowed_in(model, given | {"sequence": sequence})
        longest = max(len(episode.rows) for episode, _ in allowed.values())
        lengths = [len(e.rows) for lane in model.lanes for e in lane.episodes if e.ended]
        assert len(allowed) > 8 and max(lengths) > LENGTH >= longest, "some are too long"
        weighted, seen = "prioritized" in window, set()
        for _ in range(40):
            batch = sampler.sample()
            seen.update(model.check(batch, sequence=sequence, allowed=allowed, weighted=weighted, **given))
            assert batch.mask.shape == batch.reward.shape == (16, LENGTH)
        assert seen == set(allowed)


def test_each_episode_is_equally_likely_whatever_its_length():
    replay, model = filled(SPECS["vector"], [90, 30], 60)
    with replay:
        sequence = mc.Sequence(LENGTH, whole=True)
        allowed = sorted(model.sampleable(1, 1, sequence))
        for options in ({}, {"replace": False}):
            sampler = replay.sampler(8, seed=4, min_size=1, sequence=sequence, **options)
            batches = [sampler.sample().index.tolist() for _ in range(400)]
            seen, counts = np.unique(batches, return_counts=True)
            expected = 400 * 8 / len(allowed)
            assert seen.tolist() == allowed
            assert ((counts - expected) ** 2 / expected).sum() <= chi_square_limit(len(allowed))
            assert "replace" not in options or all(len(set(batch)) == 8 for batch in batches)


def test_an_episode_is_drawn_from_its_end_on_until_its_first_row_is_overwritten():
    with mc.ReplayBuffer.create(mc.TransitionSpec(mc.Field(), mc.Field((), "int64")), 16) as replay:
        sampler = replay.sampler(4, min_size=1, sequence=mc.Sequence(6, whole=True))
        with replay.writer() as writer:
            for ticket in range(22):  # 0 to 4, 5 to 12, which is too long, and 13 to 17
                writer.add(ticket, ticket, 0.0, terminated=ticket in (4, 12, 17))
                held = [first for first, end in ((0, 4), (13, 17)) if end <= ticket < first + 16]
                assert sampler.can_sample() == bool(held)
                if held:
                    batch = sampler.sample(64)
                    assert set(batch.index.tolist()) == set(held) and (batch.mask.sum(1) == 5).all()


def test_an_episode_that_a_seam_cuts_is_never_drawn():
    """The row behind the seam ends an episode of its own at once, and must not end the one before."""
    with mc.ReplayBuffer.create(mc.TransitionSpec(mc.Field(), mc.Field((), "int64")), 16) as replay:
        for first, last in ((0, 2), (3, 3), (4, 5), (6, 7)):
            with replay.writer() as writer:
                for ticket in range(first, last + 1):
                    writer.add(ticket, ticket, 0.0, terminated=ticket in (3, 7))
        sampler = replay.sampler(64, seed=0, min_size=1, sequence=mc.Sequence(4, whole=True))
        assert set(sampler.sample().index.tolist()) == {3, 6}


def test_mixtures_prefetches_and_tensors_have_whole_episodes():
    replay, model = filled(SPECS["vector"], [90, 30], 60)
    sequence = mc.Sequence(LENGTH, whole=True)
    with replay:
        mixture = mc.Mixture([replay] * 2, [0.5, 0.5], 8, sequence=sequence, lanes=[range(1), range(1, 2)])
        with mc.Prefetch(mixture) as batches:
            batch = batches.sample()
        assert batch.mask.any(1).all() and batch.mask.shape == (8, LENGTH)
        again = replay.read([*model.sampleable(1, 1, sequence)], sequence=sequence)
        assert model.check(again, sequence=sequence) == [*model.sampleable(1, 1, sequence)]
        pytest.importorskip("torch")
        tensors = replay.sampler(8, min_size=1, sequence=sequence).sample().torch()
        steps = int(tensors.mask.sum(1).max())
        assert tensors.obs[:, :steps].shape == (8, steps, 4)
        assert repr(tensors) == f"<TorchBatch 8 x {LENGTH} of obs, action, log_prob, done>"


def test_whole_episodes_that_cannot_be_are_refused():
    says = "sequence.burn_in, sequence.period: expected 0 and None for whole=True, got"
    check_refused(partial(mc.Sequence, 8, 2, whole=True), ValueError, f"{says} 2 and None")
    check_refused(partial(mc.Sequence, 8, 0, 4, whole=True), ValueError, f"{says} 0 and 4")
    check_refused(partial(mc.Sequence, 8, whole=1), TypeError, "sequence.whole: expected a bool, got 1")
    replay, _ = filled(SPECS["vector"], [0], 8)
    with replay:
        sampler = partial(replay.sampler, 4, sequence=mc.Sequence(8, whole=True))
        check_refused(sampler, ValueError, "expected at most the 8 rows of a lane, got 1 + 1 + 7")
