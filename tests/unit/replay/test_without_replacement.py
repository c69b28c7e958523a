"""Draws without replacement: no batch has a row twice, and each set of rows is equally likely."""

from functools import partial
from itertools import combinations
from unittest import mock

import numpy as np
import pytest
from model import SPECS, allowed_in, chi_square_limit, filled
from refused import check_refused

import marlcore as mc
from marlcore.transitions import ReadPlan

SPEC = SPECS["vector"]
TICKETS = mc.TransitionSpec(mc.Field(), mc.Field((), "int64"))
WINDOWS = [{}, {"stack": 3, "n_step": 2}, {"sequence": mc.Sequence(4, 1)}]


def add_tickets(writer, count):
    for _ in range(count):
        writer.add(0.0, 0, 0.0)


@pytest.mark.parametrize("window", WINDOWS)
def test_no_batch_has_a_row_twice(window):
    """The batches are small, nearly all rows, and all of them; marks repeat after 255 batches."""
    replay, model = filled(SPEC, [60, 25], 40)
    with replay:
        allowed = allowed_in(model, window)
        most = len(allowed)
        sampler = replay.sampler(8, seed=1, min_size=1, replace=False, **window)
        for n in (*[2] * 300, 8, most // 2, most - 1, most, 1, most):
            assert sampler.can_sample()
            indices = model.check(sampler.sample(n), allowed=allowed, **window)
            assert len(set(indices)) == n
        with pytest.raises(mc.NotEnoughData):
            sampler.sample(most + 1)
        assert len(set(sampler.sample(most).index.tolist())) == most


def test_with_replacement_rows_come_twice():
    """This is the positive control of the test above."""
    replay, _ = filled(SPEC, [60, 25], 40)
    with replay:
        assert len(set(replay.sampler(30, seed=0).sample().index.tolist())) < 30


@pytest.mark.parametrize("options", [{}, {"sequence": mc.Sequence(2, period=2)}], ids=["rows", "sequences"])
def test_each_set_of_rows_is_equally_likely(options):
    """A boundary row or a row within a window cannot be drawn, and must not make its neighbours likelier."""
    with mc.ReplayBuffer.create(TICKETS, 32, lanes=2) as replay:
        with replay.writer(1) as writer:
            for ticket in range(12):
                ended = ticket % 4 == 3
                writer.add(ticket, ticket, 0.0, truncated=ended, final_obs=0.0 if ended else None)
        sampler = replay.sampler(3, seed=5, min_size=1, replace=False, **options)
        every = sorted({index for _ in range(200) for index in sampler.sample().index.tolist()})
        sets = dict.fromkeys(combinations(every, 3), 0)
        assert len(every) == (6 if options else 12)
        for _ in range(40 * len(sets)):
            sets[tuple(sorted(sampler.sample().index.tolist()))] += 1
        counts = np.array([*sets.values()])
        assert ((counts - 40) ** 2 / 40).sum() <= chi_square_limit(len(sets))


def test_rows_of_a_batch_differ_although_some_were_overwritten(monkeypatch):
    with mc.ReplayBuffer.create(TICKETS, 40) as replay, replay.writer() as writer:

        def add(count):
            for _ in range(count):
                writer.add(0.0, 0, 0.0, terminated=True)

        add(40)
        sampler, validate = replay.sampler(30, seed=0, replace=False), ReadPlan.lapped
        monkeypatch.setattr(ReadPlan, "lapped", lambda plan, filled: (add(1), validate(plan, filled))[1])
        for _ in range(20):
            assert len(set(sampler.sample().index.tolist())) == 30
        assert sampler.stats.lapped > 5


def test_a_batch_waits_for_enough_different_rows():
    with mc.ReplayBuffer.create(TICKETS, 40) as replay, replay.writer() as writer:
        sampler = replay.sampler(8, min_size=1, replace=False)
        for ticket in range(8):
            writer.add(ticket, ticket, 0.0)
            assert not sampler.can_sample()
            with pytest.raises(mc.NotEnoughData, match=r"expected 8 different transitions, got fewer among the \d"):
                sampler.sample()
        writer.add(8, 8, 0.0)
        assert sorted(sampler.sample().action.tolist()) == [*range(8)]


def test_mixtures_and_prefetches_draw_without_replacement_too():
    replay, model = filled(SPEC, [60, 25], 40)
    with replay:
        parts = {"lanes": [range(1), range(1, 2)]}
        mixture = mc.Mixture([replay] * 2, [0.5, 0.5], 30, seed=0, replace=False, **parts)
        held = [sum(index % 2 == lane for index in model.sampleable(1, 1)) for lane in range(2)]
        for n in (30, 2 * min(held), sum(held)):
            batch = mixture.sample(n)
            assert len(set(batch.index.tolist())) == n and mixture.can_sample()
        with pytest.raises(mc.NotEnoughData):
            mixture.sample(sum(held) + 1)
        with mc.Prefetch(replay.sampler(20, replace=False)) as batches:
            assert all(len(set(batches.sample(n).index.tolist())) == (n or 20) for n in (None, 30, None))


def test_what_cannot_be_without_replacement_is_refused():
    replay, _ = filled(SPEC, [60, 25], 40)
    with replay:
        sampler = partial(replay.sampler, 8, replace=False)
        says = "replace: expected True for priorities, which decide how often a row comes, got False"
        check_refused(partial(sampler, prioritized=mc.Prioritized()), ValueError, says)
        check_refused(partial(replay.sampler, 8, replace=0), TypeError, "replace: expected a bool, got 0")
        says = "batch_size: expected at most 80 rows, since no row comes twice, got 81"
        check_refused(partial(replay.sampler, 81, replace=False), ValueError, says)


def test_rows_of_a_failed_try_count_again_while_a_sampler_waits():
    with mc.ReplayBuffer.create(TICKETS, 100) as replay, replay.writer() as writer:
        sampler = replay.sampler(8, replace=False, min_size=1, seed=0)
        add_tickets(writer, 6)
        waits = iter([partial(add_tickets, writer, 4)])

        def wait(lacking, event, until, check_open):
            next(waits)()
            return lacking() == 0

        with mock.patch("marlcore.replay.sampler.sleep_until", wait):
            assert len({*sampler.sample(timeout=60.0).index.tolist()}) == 8


def test_a_mixture_that_can_draw_switches_no_limiter_off():
    limiter = mc.RateLimiter(samples_per_insert=1.0, min_size=1, tolerance=20)
    with (
        mc.ReplayBuffer.create(TICKETS, 1000, limiter=limiter) as limited,
        mc.ReplayBuffer.create(TICKETS, 1000) as free,
    ):
        writer = limited.writer(timeout=0.0)
        add_tickets(writer, 8)
        with free.writer() as other:
            add_tickets(other, 100)
        mixture = mc.Mixture([limited, free], [0.25, 0.75], 20, replace=False, seed=0)
        assert mixture.can_sample()
        with pytest.raises(TimeoutError):
            add_tickets(writer, 100)
