"""Clearing a replay: every process sees only the rows from after it, and samplers start anew."""

import multiprocessing
import threading
from functools import partial

import numpy as np
import pytest
from mapped import Mapped
from model import SPECS, Model, Priorities, allowed_in, fill, filled
from refused import check_refused

import marlcore as mc
from marlcore.memory import claim_clearing

SPEC = SPECS["vector"]
TICKETS = mc.TransitionSpec(mc.Field(), mc.Field((), "int64"))
OPTIONS = [
    {}, {"stack": 3, "n_step": 2}, {"sequence": mc.Sequence(4, 1)}, {"sequence": mc.Sequence(9, whole=True)},
    {"replace": False},
]  # fmt: skip


def window_of(options):
    return {name: options[name] for name in ("stack", "n_step", "sequence") if name in options}


def clear(replay, model):
    replay.clear()
    for lane in model.lanes:
        lane.clear()


@pytest.mark.parametrize("options", OPTIONS, ids=["rows", "stacks", "sequences", "episodes", "different"])
def test_only_rows_from_after_a_clear_are_drawn_read_and_saved(options, tmp_path):
    """The model's floor says which rows there are; samplers were made before the clear, or after it."""
    replay, model = filled(SPEC, [70, 20], 40)
    window, rng = window_of(options), np.random.default_rng(4)
    with replay:
        make = partial(replay.sampler, 4, seed=0, min_size=1, **options)
        samplers, part = [make()], replay.sampler(1, lanes=range(1, 2))
        samplers[0].sample()
        for more in ([30, 9], [9, 55]):
            clear(replay, model)
            assert len(replay) == len(model) == 0 and not any(sampler.can_sample() for sampler in [*samplers, part])
            assert [*replay.batches(8)] == [*replay.episodes()] == []
            fill(replay, model, rng, more)
            allowed, samplers = allowed_in(model, options), [*samplers, make()]
            for sampler in samplers:
                seen = {i for _ in range(300) for i in model.check(sampler.sample(), allowed=allowed, **window)}
                assert seen == set(allowed)
            assert len(replay) == len(model)
            held = model.sampleable(1, 1)
            assert sorted(i for batch in replay.batches(8) for i in model.check(batch, allowed=held)) == sorted(held)
        replay.save(tmp_path / "save")
        with mc.ReplayBuffer.load(tmp_path / "save") as loaded:
            assert len(loaded) == len(model)
            assert set(model.check(loaded.sampler(8, min_size=1, **options).sample(), allowed=allowed, **window))


def test_a_sampler_without_a_clear_draws_the_older_rows():
    """This is the control of the test above: the model's floor notices them."""
    replay, model = filled(SPEC, [70, 20], 40)
    with replay:
        for lane in model.lanes:
            lane.clear()
        with pytest.raises(AssertionError, match="may not be drawn"):
            model.check(replay.sampler(8, min_size=1).sample())


def test_priorities_are_forgotten_also_the_highest():
    options = mc.Prioritized(epsilon=0.01)
    with mc.ReplayBuffer.create(SPEC, 80, lanes=2) as replay:
        model, rng = Model(SPEC, 2, 40), np.random.default_rng(5)
        fill(replay, model, rng, [30, 60])
        sampler = replay.sampler(8, seed=0, min_size=1, prioritized=options)
        batch = sampler.sample()
        sampler.update_priorities(batch.index, np.full(8, 50.0))
        clear(replay, model)
        sampler.update_priorities(batch.index, np.full(8, 70.0))
        assert sampler.stats.ignored == 8
        fill(replay, model, rng, [20, 50])
        known = Priorities(model, options, stack=1, n_step=1)
        known.ignored = 8
        assert sampler.can_sample()  # sees the new rows before it is asked for a batch
        for _ in range(3):
            model.check(batch := sampler.sample(), allowed=known.catch_up(), weighted=True)
            known.check(batch, sampler, 0.4)
            known.check_masses(sampler)


def test_min_size_counts_from_the_clear():
    with mc.ReplayBuffer.create(TICKETS, 40) as replay, replay.writer() as writer:
        sampler = replay.sampler(2, min_size=10)
        for start in (0, 30):
            for ticket in range(start, start + 10):
                check_refused(
                    sampler.sample, mc.NotEnoughData, f"expected at least 10 transitions, got {ticket - start}"
                )
                writer.add(ticket, ticket, 0.0, terminated=True)
            assert sampler.sample().index.min() >= start
            for ticket in range(20):
                writer.add(ticket, ticket, 0.0, terminated=True)
            replay.clear()


def test_a_limiters_counts_go_on():
    limiter = mc.RateLimiter(samples_per_insert=1.0, min_size=10, tolerance=8.0)
    with mc.ReplayBuffer.create(TICKETS, 64, limiter=limiter) as replay, replay.writer(timeout=0.0) as writer:
        sampler, added = replay.sampler(4), 0
        for _ in range(18):
            writer.add(0.0, 0, 0.0, terminated=True)
        with pytest.raises(TimeoutError):
            writer.add(0.0, 0, 0.0, terminated=True)
        replay.clear()
        with pytest.raises(mc.NotEnoughData, match="expected at least 4 transitions, got 0"):
            sampler.sample()  # which lets the writer pass
        while not sampler.can_sample():
            writer.add(0.0, 0, 0.0, terminated=True)
            added += 1
        assert added == 4
        for _ in range(5):
            sampler.sample()
        with pytest.raises(mc.NotEnoughData, match="the limiter expects at least 26 transitions inserted, got 22"):
            sampler.sample()


def test_a_writer_goes_on_and_its_episode_is_cut():
    with mc.ReplayBuffer.create(TICKETS, 40) as replay, replay.writer() as writer:
        for ticket in range(16):
            if ticket == 6:
                replay.clear()
            writer.add(ticket, ticket, 0.0, terminated=ticket in (9, 14))
        assert [episode.action.tolist() for episode in replay.episodes()] == [[10, 11, 12, 13, 14]]
        assert {*replay.sampler(64, stack=2, min_size=1, seed=0).sample().index.tolist()} == {7, 8, 9, *range(10, 15)}
        assert replay.read([6]).action == 6
        check_refused(partial(replay.read, [5]), IndexError, "such as 5, ticket 5 of lane 0")


def attached_clear(replay):
    with replay:
        replay.clear()


def test_any_process_may_clear_and_several_take_turns():
    replay, model = filled(SPEC, [70, 20], 40)
    with replay:
        sampler = replay.sampler(4)
        sampler.sample()
        child = multiprocessing.get_context("spawn").Process(target=attached_clear, args=(replay,))
        held = claim_clearing(replay._segment, replay._mapped.geometry)
        child.start()
        other = threading.Thread(target=replay.clear)
        other.start()
        other.join(0.05)
        assert other.is_alive() and len(replay) == len(model)
        held.close()
        other.join()
        child.join()
        assert child.exitcode == 0 and len(replay) == 0 and not sampler.can_sample()


def test_a_late_look_of_another_thread_shows_nothing_that_a_second_clear_hid():
    """It read the floors of the first clear, and stores them once a reader has looked at those of the second."""
    with mc.ReplayBuffer.create(TICKETS, 40) as replay:
        native, reached, go_on = replay._mapped.native, threading.Event(), threading.Event()
        look, load = native.cleared, native._lines.load
        late = threading.Thread(target=look)

        def load_late(word):
            floor = load(word)
            if threading.current_thread() is late:
                reached.set()
                go_on.wait()
            return floor

        def look_before_the_late_one():
            seen = look()
            go_on.set()
            late.join()
            return seen

        native._lines.load, native.cleared = load_late, look_before_the_late_one
        replay.clear()
        late.start()
        reached.wait()
        with replay.writer() as writer:
            writer.add(0.0, 0, 0.0, terminated=True)
        replay.clear()
        assert [*replay.batches(8)] == []


def test_a_floor_above_its_lanes_rows_is_refused():
    replay, _ = filled(SPEC, [70, 20], 40)
    with replay:
        sampler = replay.sampler(4)
        mapped = Mapped(replay)
        mapped.words(mapped.geometry.counters_offset(1))[7] = 10**6
        mapped.words(mapped.geometry.counters_offset(0))[8] = 1
        for call in (sampler.sample, replay.__len__, partial(replay.batches, 4), replay.episodes):
            check_refused(call, mc.errors.SegmentCorrupt, "contradict one another")


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_a_clear_counts_on_from_a_damaged_number(number):
    """Whatever another process writes there, the one that clears must not end by an undocumented error."""
    replay, _ = filled(SPEC, [70, 20], 40)
    with replay:
        sampler = replay.sampler(4, min_size=1)
        mapped = Mapped(replay)
        mapped.words(mapped.geometry.counters_offset(0))[8] = number
        replay.clear()
        assert not sampler.can_sample() and [*replay.batches(4)] == []


def test_a_process_that_watches_may_not_clear():
    replay, _ = filled(SPEC, [70, 20], 40)
    with replay, mc.ReplayBuffer.watch(replay.handle) as watching:
        replay.clear()
        assert len(watching) == 0
        check_refused(watching.clear, mc.MarlcoreError, "got one that only watches it")


def test_a_save_after_a_clear_counts_on(tmp_path):
    """Its limiter needs the number of rows ever inserted, though the save holds none of them."""
    limiter = mc.RateLimiter(samples_per_insert=1.0, min_size=10, tolerance=100)
    with mc.ReplayBuffer.create(TICKETS, 80, limiter=limiter) as replay:
        with replay.writer() as writer:
            for ticket in range(32):
                writer.add(ticket, ticket, 0.0)
        replay.clear()
        replay.save(tmp_path / "save")
    with mc.ReplayBuffer.load(tmp_path / "save") as copy, copy.writer(timeout=0.0) as writer:
        assert len(copy) == 0 and not copy.sampler(8).can_sample()
        for ticket in range(20):
            writer.add(ticket, ticket, 0.0)
        assert len(copy.sampler(8).sample()) == 8
        assert copy.view().native.inserted() == 52
