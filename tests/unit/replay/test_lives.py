"""Writers and samplers: closing ends them and their waits, and each belongs to one process."""

import gc
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from mapped import Mapped
from meanwhile import Rang, ring
from refused import stale_in_a_fork

import marlcore as mc
from marlcore.memory import add_lock

SPEC = mc.TransitionSpec(mc.Field(), mc.Field((), "int64"), next_obs=True)
ROW: dict[str, Any] = {"obs": 0.0, "action": 0, "reward": 0.0, "next_obs": 0.0}
ROWS = {name: np.zeros(2, np.int64 if name == "action" else np.float32) for name in ROW}
FULL = 8  # rows that the limiter below admits without a sampler


class End(NamedTuple):
    """A writer or sampler, and the calls that use it."""

    end: Any
    uses: list[Callable[[], object]]


def writer(replay: mc.ReplayBuffer, **options: Any) -> End:
    end = replay.writer(**options)
    return End(end, [lambda: end.add(**ROW), lambda: end.add_batch(**ROWS), end.check_open])


def vector_writer(replay: mc.ReplayBuffer) -> End:
    end = replay.vector_writer([0, 1])
    return End(end, [lambda: end.add(**ROWS), end.check_open])


def sampler(end: Any) -> End:
    return End(end, [end.sample, end.can_sample, lambda: end.update_priorities([0], [1.0]), end.clear])


PREFERRED = mc.Prioritized()
WRITERS: dict[str, Callable[[mc.ReplayBuffer], End]] = {
    "writer": writer,
    "shared writer": lambda replay: writer(replay, shared=True),
    "vector writer": vector_writer,
}
SAMPLERS: dict[str, Callable[[mc.ReplayBuffer], End]] = {
    "sampler": lambda replay: sampler(replay.sampler(2, prioritized=PREFERRED)),
    "mixture": lambda replay: sampler(mc.Mixture([replay], [1.0], 2, prioritized=PREFERRED)),
    "prefetch": lambda replay: sampler(mc.Prefetch(replay.sampler(2, prioritized=PREFERRED))),
}
KINDS = WRITERS | SAMPLERS


@pytest.fixture
def replay() -> Iterator[mc.ReplayBuffer]:
    """A replay of three lanes; the last lane has rows."""
    with mc.ReplayBuffer.create(SPEC, 300, lanes=3) as made:
        with made.writer(2) as writer:
            writer.add_batch(**ROWS)
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_closed_refuses_every_use(replay, kind):
    """A writer can be closed alone; closing the replay closes its writers and samplers too."""
    end, uses = KINDS[kind](replay)
    if kind in WRITERS:
        end.close()
        end.close()
        for use in uses:
            with pytest.raises(mc.ClosedError, match="the writer was closed"):
                use()
        end, uses = KINDS[kind](replay)
    replay.close()
    for use in uses:
        with pytest.raises(mc.ClosedError):
            for _ in range(4):  # a prefetch first gives the batches that are ready
                use()
    if kind == "prefetch":
        end.close()


@pytest.mark.parametrize("nested", [False, True])
def test_a_writer_gives_its_lane_back_with_its_last_reference(nested):
    """At once, without the collector of cycles."""
    spec = mc.TransitionSpec({"a": {"b": mc.Field()}}, {"c": mc.Field()}, reward=mc.Field((2,))) if nested else SPEC
    with mc.ReplayBuffer.create(spec, 30, lanes=3) as replay:
        gc.disable()
        try:
            for make in (replay.writer, lambda: replay.vector_writer([0, 1])) * 2:
                end = make()
                end.new_episode()
                del end
        finally:
            gc.enable()


def test_a_closed_replay_refuses_every_use(replay):
    batch = replay.sampler(2).sample()
    replay.close()
    replay.close()
    for use in (lambda: len(replay), replay.writer, replay.vector_writer, lambda: replay.sampler(1)):
        with pytest.raises(mc.ClosedError, match="it was closed"):
            use()
    assert batch.obs.tolist() == [0, 0]
    with pytest.raises(mc.SegmentNotFound):
        mc.ReplayBuffer.attach(replay.handle)
    assert not issubclass(mc.ClosedError, mc.StaleHandle)


@pytest.mark.parametrize("kind", [*WRITERS, "prefetch"])
def test_a_forked_child_may_not_use_it_and_the_parent_may(replay, kind):
    end, uses = KINDS[kind](replay)
    rows = len(replay)
    assert stale_in_a_fork(*uses)
    assert len(replay) == rows
    uses[0]()
    if kind in WRITERS:
        with pytest.raises(mc.LaneBusy):
            replay.writer(0)
    if kind == "prefetch":
        end.close()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mixture"])
def test_it_cannot_be_pickled(replay, kind):
    end = KINDS[kind](replay).end
    with pytest.raises(TypeError, match=f"a {type(end).__name__} belongs to one process"):
        pickle.dumps(end)
    if kind == "prefetch":
        end.close()


def test_a_forked_child_attaches_anew(replay):
    with replay.writer() as writer:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                writer.close()
                again = mc.ReplayBuffer.attach(replay.handle)
                with pytest.raises(mc.LaneBusy):
                    again.writer(0)
                with again.writer(1) as other:
                    other.add(**ROW)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        writer.add(**ROW)
        assert len(replay) == 4


@pytest.fixture
def full() -> Iterator[mc.ReplayBuffer]:
    """A replay whose limiter admits no more rows."""
    with mc.ReplayBuffer.create(SPEC, 300, lanes=3, limiter=mc.RateLimiter(2.0, 4, 8.0)) as made:
        with made.writer(2) as writer:
            for _ in range(FULL):
                writer.add(**ROW)
        yield made


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("error", [Rang, mc.ClosedError])
def test_a_signal_or_closing_ends_a_wait_for_room(full, kind, error, alarm):
    """The add writes nothing."""
    end, (add, *_) = WRITERS[kind](full)
    alarm(ring if error is Rang else end.close)
    with pytest.raises(error):
        add()
    assert Mapped(full).lanes.inserted() == FULL


def test_closing_the_replay_ends_a_samplers_wait(full, alarm):
    sampler = full.sampler(8)
    sampler.sample()
    sampler.sample()
    alarm(full.close)
    with pytest.raises(mc.ClosedError):
        sampler.sample(timeout=600.0)


@pytest.mark.parametrize("interruption", ["raises", "closes", "lets in"])
def test_what_ends_a_wait_for_a_turn_in_a_shared_lane(replay, interruption, alarm):
    """The wait ends if a signal's handler raises or closes the writer; it continues if the handler returns."""
    end, (add, *_) = writer(replay, shared=True)
    held = Mapped(replay).segment.lock(add_lock(3, 0))
    handler, error = {"raises": (ring, Rang), "closes": (end.close, mc.ClosedError), "lets in": (held.close, None)}[
        interruption
    ]
    alarm(handler)
    if error is None:
        assert add() == 0
        return
    with pytest.raises(error):
        add()
    held.close()
    assert len(replay) == 2


def test_each_shows_what_it_is(replay):
    path = replay.handle.path
    assert repr(replay) == f"<ReplayBuffer {path} capacity=300 lanes=3>" and "/marlcore-replay-" in path
    assert repr(replay.sampler(2)) == f"<Sampler of {path} batch_size=2>"
    assert repr(replay.writer()) == "<Writer of lane 0>"
    assert repr(replay.vector_writer([1, 2])) == "<VectorWriter of 2 lanes>"
