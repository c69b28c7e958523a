"""A number without a keyword means rows, whatever the batch_size."""

import sys
from functools import partial

import numpy as np
import pytest
from model import SPECS, Model, fill
from refused import check_refused

import marlcore as mc
from marlcore.kernels import uniform

SPEC = SPECS["vector"]
WHOLE = mc.TransitionSpec(mc.Field((), "int64"), mc.Field((), "int64"))
PREFERRED = {"prioritized": mc.Prioritized()}


def filled(rows=60, lanes=2, **options):
    replay, model = mc.ReplayBuffer.create(SPEC, 80, lanes, **options), Model(SPEC, lanes, 80 // lanes)
    fill(replay, model, np.random.default_rng(1), [rows // lanes] * lanes)
    return replay, model


@pytest.mark.parametrize("window", [{}, {"stack": 3, "n_step": 2}, {"sequence": mc.Sequence(4)}])
@pytest.mark.parametrize("options", [{}, PREFERRED])
def test_a_call_draws_its_rows_as_a_sampler_made_for_them(window, options):
    replay, model = filled()
    with replay:
        one, other = (replay.sampler(size, seed=0, min_size=1, **window, **options) for size in (32, 7))
        held, compiled = [], len(uniform.draw.signatures)
        for n in (1, 256, None, 7, 33, 5, 1):
            batch = one.sample(n)
            held.append((batch, batch.obs.copy()))
            indices = model.check(batch, **window, weighted=bool(options))
            assert len(indices) == (n or 32) and indices == other.sample(n or 32).index.tolist()
        assert all((batch.obs == obs).all() for batch, obs in held) and len(uniform.draw.signatures) == compiled


def test_a_batch_needs_as_many_transitions_as_it_has_rows():
    replay, _ = filled(20)
    with replay:
        usual = replay.sampler(256)
        assert len(usual.sample(len(replay))) == len(replay) and not usual.can_sample()
        with pytest.raises(mc.NotEnoughData, match=f"transitions, got {len(replay)}$"):
            usual.sample(len(replay) + 1)


def test_the_limiter_counts_the_rows_of_each_call():
    replay, _ = filled(60, 1, limiter=mc.RateLimiter(1.0, 40, 64.0, lead=0.0))
    with replay:
        due, sampler = len(replay) - 40, replay.sampler(8, min_size=1)
        with pytest.raises(mc.NotEnoughData, match="the limiter expects at least"):
            sampler.sample(due + 1)
        sampler.sample(due - 8)
        assert sampler.due and len(sampler.sample()) == 8 and not sampler.can_sample()
        with pytest.raises(ValueError, match="tolerance: expected at least the batch_size 65, got a limiter with 64"):
            sampler.sample(65)


def test_mixtures_prefetches_and_readers_take_a_number_too():
    replay, _ = filled()
    with replay, mc.Prefetch(replay.sampler(32), depth=2) as batches:
        mixture = mc.Mixture([replay, replay], [0.25, 0.75], 32)
        assert [np.bincount(mixture.sample(n).source).tolist() for n in (4, 100, None)] == [[1, 3], [25, 75], [8, 24]]
        assert [len(batches.sample(n)) for n in (None, 8, 8, 40, None, 8)] == [32, 8, 8, 40, 32, 8]
    with mc.TrajectoryQueue.create(WHOLE, 200) as queue, queue.writer() as writer, queue.reader(3) as reader:
        writer.add_batch(np.arange(40), np.arange(40), np.zeros(40))
        taken = [reader.read(n).action.tolist() for n in (None, 5, 1, 20, None)]
        assert [*map(len, taken)] == [3, 5, 1, 20, 3] and np.concatenate(taken).tolist() == [*range(32)]


def test_a_batch_of_a_queue_that_was_begun_keeps_its_size():
    with mc.TrajectoryQueue.create(WHOLE, 8) as queue, queue.writer(timeout=0.0) as writer, queue.reader(12) as reader:
        with pytest.raises(TimeoutError):
            for t in range(9):
                writer.add(t, t, 0.0)
        with pytest.raises(mc.NotEnoughData):
            reader.read()
        with pytest.raises(ValueError, match=r"^n: expected 12, since \d of them were taken already, got 4$"):
            reader.read(4)


def test_what_is_no_number_of_rows_is_refused():
    replay, _ = filled()
    with replay, mc.TrajectoryQueue.create(SPEC, 8) as queue, mc.Prefetch(replay.sampler(4)) as ahead:
        mixture, reader = mc.Mixture([replay], [1.0], 4), queue.reader(2)
        for call in (replay.sampler(4).sample, mixture.sample, ahead.sample, reader.read):
            for n in (0, 0.5, True):
                check_refused(partial(call, n), ValueError, f"n: expected an integer of at least 1, got {n}")
            check_refused(partial(call, 4, 60.0), TypeError, "positional argument")
    sections = mc.ActorConfig, mc.LearnerConfig, mc.StopConfig, mc.EvaluationConfig
    for call in (partial(mc.Prefetch, None), mc.Workers, partial(mc.Prioritized, 0.6, 0.4), *sections):
        check_refused(partial(call, 256), TypeError, "positional argument")


def test_numbers_of_numpy_are_numbers():
    replay, _ = filled()
    with replay, mc.TrajectoryQueue.create(WHOLE, 400) as queue, queue.writer() as writer, queue.reader(2) as reader:
        assert len(replay.sampler(8, min_size=np.uint64(3)).sample(np.uint8(9))) == 9
        for i in range(260):
            writer.add(i, i, 1.0)
        assert [len(reader.read(n)) for n in (np.uint8(200), np.int8(50))] == [200, 50]


def test_a_number_of_rows_that_is_refused_ends_no_prefetch():
    replay, _ = filled()
    with replay, mc.Prefetch(replay.sampler(4)) as prefetch:
        with pytest.raises(ValueError, match="batch_size: expected"):
            prefetch.sample(2**40)
        assert [len(prefetch.sample(n, timeout=60.0)) for n in (None, 7)] == [4, 7]


@pytest.mark.parametrize("options", [{}, PREFERRED])
def test_an_interrupt_while_the_number_changes_leaves_a_sampler_whole(options):
    """Interrupts the calls that a change of the number makes, at each line in turn."""
    replay, model = filled()
    with replay:
        for line in range(100):
            sampler = replay.sampler(64, min_size=1, **options)
            sampler.sample(7)
            sampler.sample(2)
            if not interrupted(partial(sampler._rows.resize, 7), line):
                break
            for n in (2, None, 7, 64):
                assert len(model.check(sampler.sample(n), weighted=bool(options))) == (n or 64)
        assert 5 < line < 99


def interrupted(call, line):
    """Calls, and raises KeyboardInterrupt before the line of this number; returns whether the call reached it."""
    left = line

    def trace(frame, event, _):
        nonlocal left
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
