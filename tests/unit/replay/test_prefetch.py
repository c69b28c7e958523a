"""Prefetch: a thread draws a sampler's batches ahead of time."""

import contextlib
import gc
import threading
import time
import traceback
from functools import partial

import numpy as np
import pytest
from meanwhile import soon
from processes import until
from refused import refused

import marlcore as mc
from marlcore.errors import TimedOut
from marlcore.replay.prefetch_work import Work
from marlcore.transitions import TorchBatch

SPEC = mc.TransitionSpec(mc.Field((3,)), mc.Field((), "int64"))


@pytest.fixture
def replay():
    with mc.ReplayBuffer.create(SPEC, 200) as replay:
        yield replay


def fill(replay, count=50):
    with replay.writer() as writer:
        for t in range(count):
            writer.add(np.full(3, t, np.float32), t, float(t))


@pytest.fixture
def filled(replay):
    fill(replay)
    return replay


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "marlcore-prefetch"]


class Counting:
    """A sampler whose batches are numbers; it fails at a chosen number, and counts the calls inside it."""

    stats = "its stats"

    def __init__(self, fails_at=None):
        self.number, self.inside, self.fails_at, self.updates = 0, 0, fails_at, []

    def can_sample(self):
        return True

    def sample(self, timeout=None):
        self.inside += 1
        time.sleep(0.001)
        self.number += 1
        if self.number == self.fails_at:
            raise OSError("the disk is gone")
        self.inside -= 1
        return self.number

    def update_priorities(self, index, priority):
        assert self.inside == 0
        self.updates.append((index, priority, self.number))


def test_batches_are_the_samplers_own_in_its_order(filled):
    plain = filled.sampler(8, seed=3)
    with mc.Prefetch(filled.sampler(8, seed=3), depth=3) as batches:
        held = [(batches.sample(), plain.sample()) for _ in range(50)]  # which later ones do not overwrite
        for batch, expected in held:
            np.testing.assert_array_equal(batch.index, expected.index)
            np.testing.assert_array_equal(batch.obs, expected.obs)
        assert batches.stats.drawn >= 400


def test_it_waits_for_data_as_its_sampler_does(replay):
    """After a draw without data, the thread finds new rows at once, also for a call without a timeout."""
    with mc.Prefetch(replay.sampler(8)) as batches:
        for sampler in (replay.sampler(8), batches):
            assert not sampler.can_sample()
            for error, timeout in ((mc.NotEnoughData, None), (TimedOut, 0.02), (TimedOut, 0)) * 2:
                with pytest.raises(error, match="expected at least 8 transitions, got 0"):
                    sampler.sample(timeout=timeout)
        fill(replay)
        assert batches.can_sample()
        assert len(batches.sample()) == len(batches.sample(timeout=0)) == 8


@pytest.mark.parametrize("timeout", [60, *(pytest.param(s, marks=pytest.mark.long) for s in (1e10, float("inf")))])
def test_a_timeout_of_any_length_waits_for_a_writer(replay, timeout):
    with mc.Prefetch(replay.sampler(8)) as batches, soon(fill, replay):
        assert len(batches.sample(timeout=timeout)) == 8


def test_the_threads_error_comes_once_behind_its_batches():
    """The error has the thread's traceback."""
    with mc.Prefetch(Counting(fails_at=3)) as batches:
        assert [batches.sample(), batches.sample()] == [1, 2]
        with pytest.raises(OSError, match="the disk is gone") as caught:
            batches.sample()
        assert "raise OSError" in "".join(traceback.format_exception(caught.value))
        for call in (batches.sample, batches.can_sample):
            with pytest.raises(mc.ClosedError, match="the prefetch ended: OSError: the disk is gone"):
                call()
    assert not threads()


def test_priorities_are_updated_between_draws():
    sampler = Counting()
    with mc.Prefetch(sampler, depth=2) as batches:
        for i in range(30):
            batches.sample()
            batches.update_priorities([i], [0.5])
        assert [index for index, _, _ in sampler.updates] == [[i] for i in range(30)]
        # no more than `depth` batches are drawn ahead
        assert all(seen <= i + 1 + 2 for i, (_, _, seen) in enumerate(sampler.updates))
        assert batches.stats == "its stats"


@pytest.mark.parametrize("count", [0, 50])
@pytest.mark.parametrize("end", ["closed", "abandoned"])
def test_its_thread_ends_with_it(replay, count, end):
    """The thread ends whether it waits for data or for room."""
    fill(replay, count)
    batches = mc.Prefetch(replay.sampler(8), depth=4)
    if count:
        batches.sample()
    if end == "closed":
        batches.close()
        batches.close()
        for call in (batches.sample, batches.can_sample, lambda: batches.update_priorities([0], [1.0])):
            with pytest.raises(mc.ClosedError, match="the prefetch was closed"):
                call()
    batches = None
    gc.collect()
    assert not threads()


@pytest.mark.long
@pytest.mark.parametrize("min_size", [8, 90])
def test_the_interpreter_exits_beside_the_thread(program, min_size):
    code = """
        import sys, numpy as np, marlcore as mc
        replay = mc.ReplayBuffer.create(mc.TransitionSpec(mc.Field((3,)), mc.Field((), "int64")), 100)
        with replay.writer() as writer:
            for t in range(50):
                writer.add(np.zeros(3, np.float32), 0, 0.0)
        batches = mc.Prefetch(replay.sampler(8, min_size=int(sys.argv[1])))
        print(batches.can_sample())
    """
    assert program(code, args=[min_size]).finish() == str(min_size == 8)


def test_pinning_is_a_bool_and_needs_an_accelerator(replay, monkeypatch):
    torch = pytest.importorskip("torch")
    with refused(TypeError, "pin_memory: expected a bool, got 'no'"):
        mc.Prefetch(replay.sampler(8), pin_memory="no")

    def empty(*shape, pin_memory):
        raise RuntimeError("no\nallocator")

    monkeypatch.setattr(torch, "empty", empty)
    for label, option in {"pin_memory": True, "device": "cuda"}.items():
        line = f"{label}: expected an accelerator, which pins memory, got none (RuntimeError('no\\nallocator'))"
        with refused(RuntimeError, line):
            mc.Prefetch(replay.sampler(8), **{label: option})
    assert not threads()


def test_a_sampler_without_the_method_is_refused(filled):
    with (
        mc.Prefetch(Counting()) as batches,
        pytest.raises(TypeError, match=r"^state_dict: expected a sampler with this method"),
    ):
        filled.save("unused", batches)


def test_a_saved_state_counts_ready_batches_as_drawn(filled, tmp_path):
    plain = filled.sampler(8, seed=3, prioritized=mc.Prioritized())
    with mc.Prefetch(filled.sampler(8, seed=3, prioritized=mc.Prioritized()), depth=2) as batches:
        batches.sample()
        while batches.stats.drawn < 3 * 8:  # then nothing is drawn until one is taken
            time.sleep(0.001)
        filled.save(tmp_path / "save", batches)
        drawn = batches.stats.drawn // 8
    for _ in range(drawn):
        plain.sample()
    with mc.ReplayBuffer.load(tmp_path / "save") as saved:
        state = saved.sampler_state
    assert {k: v.tolist() for k, v in state.items()} == {k: v.tolist() for k, v in plain.state_dict().items()}


def test_after_a_state_was_loaded_the_next_batch_is_its_first(filled):
    plain = filled.sampler(8, seed=7)
    with mc.Prefetch(filled.sampler(8, seed=3), depth=3) as batches:
        for _ in range(20):
            batches.sample()
            batches.load_state_dict(plain.state_dict())
            for _ in range(2):
                np.testing.assert_array_equal(batches.sample().index, plain.sample().index)
        ready = len(batches._work._ready)
        with pytest.raises(ValueError, match="generator"):
            batches.load_state_dict({})
        assert len(batches._work._ready) >= ready


def test_a_batch_on_its_way_while_a_state_is_loaded_is_dropped():
    class Stateful(Counting):
        def load_state_dict(self, state):
            self.number = state

        def can_sample(self):
            return False

    class Slow(contextlib.nullcontext):
        def __init__(self):
            super().__init__()
            self.moving, self.go_on = threading.Event(), threading.Event()

        def move(self, batch):
            self.moving.set()
            self.go_on.wait()
            return batch

    work = Work(Stateful(), 1, Slow())
    thread = threading.Thread(target=work.run)
    thread.start()
    work.mover.moving.wait()
    work.call("load_state_dict", 100, drop=True)
    work.mover.go_on.set()
    until(lambda: work._ready)
    assert not work.can_take()
    assert work.take(None) == 101
    work.stop(thread)


def test_every_wait_refuses_what_is_no_timeout(filled):
    """Other tests check the timeouts of adds and of the queue's reader."""
    weights = {"weight": np.zeros(2)}
    store = mc.ParameterStore.create(weights)
    with store, mc.Prefetch(filled.sampler(8)) as batches, mc.Workers() as workers:
        subscriber = store.subscriber(weights)
        optional = [filled.sampler(8).sample, mc.Mixture([filled], [1.0], 8).sample, batches.sample, workers.wait]
        refusals = [(wait, " or None") for wait in optional]
        refusals += [(subscriber.pull, ""), (partial(subscriber.wait, 0), "")]
        for wait, or_none in refusals:
            for bad in ("x", -1, float("nan"), True):
                with refused(ValueError, f"timeout: expected seconds of at least 0{or_none}, got {bad!r}"):
                    wait(timeout=bad)


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [{"device": "cuda"}, {"device": "cuda:0", "pin_memory": True}, {"pin_memory": True}]
)
@pytest.mark.parametrize("kind", ["transitions", "sequences", "mixture"])
def test_batches_for_a_device_are_the_samplers_field_by_field(filled, cuda_double, options, kind):
    from cuda_double import same  # which imports torch

    def make():
        if kind == "mixture":
            return mc.Mixture([filled, filled], [0.5, 0.5], 8, seed=3)
        return filled.sampler(8, seed=3, sequence=mc.Sequence(5, burn_in=2) if kind == "sequences" else None)

    plain = make()
    with mc.Prefetch(make(), **options) as batches:
        for _ in range(5):
            batch = batches.sample()
            assert isinstance(batch, TorchBatch)
            same(batch, plain.sample())
        assert isinstance(batches.stats, list) == (kind == "mixture")
    assert not cuda_double.wrong and (cuda_double.pinned > 0) == ("device" not in options)


@pytest.mark.long
@pytest.mark.parametrize("options", [{"device": "cuda"}, {"pin_memory": True}], ids=str)
def test_a_batch_on_a_device_is_the_samplers(cuda, filled, options):
    """Without CUDA, the Prefetch refuses to be made."""
    if not cuda:
        with pytest.raises(RuntimeError):
            mc.Prefetch(filled.sampler(8), **options)
        return
    plain = filled.sampler(8, stack=2, seed=3)
    with mc.Prefetch(filled.sampler(8, stack=2, seed=3), **options) as batches:
        for _ in range(20):
            batch, expected = batches.sample(), plain.sample()
            assert batch.obs.device.type == options.get("device", "cpu")
            np.testing.assert_array_equal(batch.obs.cpu().numpy(), expected.obs)
            np.testing.assert_array_equal(batch.index.cpu().numpy(), expected.index)
