"""Refused arguments of a trajectory queue's doors: the queue itself, its writers and its reader."""

import math
import pickle
from collections.abc import Callable
from functools import partial

from refused import Refused, refusals

from marlcore import Field, LayoutMismatch, ReplayBuffer, SegmentCorrupt, TrajectoryQueue, TransitionSpec

SPEC = TransitionSpec(Field((), "int64"), Field((), "int64"))
NEXT_OBS = TransitionSpec(Field((), "int64"), Field((), "int64"), next_obs=True)
STATE = TransitionSpec(Field((), "int64"), Field((), "int64"), {"h": Field((2,), every=4)})
OTHER = TransitionSpec(Field((), "int64"), Field())


def create(**arguments) -> Callable[[], object]:
    return partial(TrajectoryQueue.create, **{"spec": SPEC, "capacity": 64} | arguments)


def on(call: Callable[[TrajectoryQueue], object], spec=SPEC, capacity=16, lanes=1) -> Callable[[], object]:
    """A call with a new queue."""

    def with_queue() -> None:
        with TrajectoryQueue.create(spec, capacity, lanes) as queue:
            call(queue)

    return with_queue


def reader(spec=SPEC, capacity=16, **options) -> Callable[[], object]:
    return on(lambda queue: queue.reader(**{"batch_size": 2} | options), spec, capacity)


def read(timeout) -> Callable[[], object]:
    return on(lambda queue: queue.reader(2).read(timeout))


def pickled(open_end: Callable[[TrajectoryQueue], object]) -> Callable[[], object]:
    return on(lambda queue: pickle.dumps(open_end(queue)))


def attach_to_replay() -> None:
    with ReplayBuffer.create(SPEC, 64) as replay:
        TrajectoryQueue.attach(replay.handle)


INTEGER = "expected an integer of at least 1, got"
WHEN_FULL = "when_full: expected one of wait, drop_oldest, drop_newest, got"
TIMEOUT = "timeout: expected seconds of at least 0 or None, got"
ROWS = "reader: expected a queue of at least"

REFUSED: dict[str, Refused] = {
    "spec": (create(spec=None), TypeError, "spec: expected a TransitionSpec, got None"),
    "no capacity": (create(capacity=0), ValueError, f"capacity: {INTEGER} 0"),
    "too few rows a lane": (create(capacity=5, lanes=2), ValueError, "capacity: expected at least 6, 3 rows a lane"),
    "too many rows": (create(capacity=2**32), ValueError, "capacity: expected from 1 rows, one a lane, to 4294967295"),
    "lanes": (create(lanes=True), ValueError, f"lanes: {INTEGER} True"),
    "when_full 'drop'": (create(when_full="drop"), ValueError, f"{WHEN_FULL} 'drop'"),
    "when_full None": (create(when_full=None), ValueError, f"{WHEN_FULL} None"),
    "name": (create(name="a/b"), ValueError, "name: expected letters, digits, '_' and '.', got 'a/b'"),
    "max_unread 0": (create(max_unread=0), ValueError, f"max_unread: {INTEGER} 0"),
    "max_unread without waiting": (
        create(when_full="drop_oldest", max_unread=8), ValueError,
        "max_unread: expected None with when_full='drop_oldest', got 8",
    ),
    "another kind": (attach_to_replay, SegmentCorrupt, "expected a queue, got another kind of segment"),
    "a queue as a replay": (
        on(lambda queue: ReplayBuffer.attach(queue.handle)), SegmentCorrupt,
        "expected a replay, got another kind of segment",
    ),
    "another spec": (
        on(lambda queue: TrajectoryQueue.attach(queue.handle, OTHER)), LayoutMismatch,
        "spec action: expected int64 (), got float32 ()",
    ),
    **{
        f"lane {n!r}": (on(lambda q, n=n: q.writer(n), lanes=2), ValueError, f"lane: expected 0 to 1, got {n!r}")
        for n in (-1, 2, 0.0)
    },
    **{
        f"{name} timeout {t!r}": (call, ValueError, f"{TIMEOUT} {t!r}")
        for t in (-1, -0.5, math.nan, "1")
        for name, call in {"writer": on(lambda q, t=t: q.writer(timeout=t)), "read": read(t)}.items()
    },
    **{
        f"{name}={n!r}": (reader(**{name: n}), ValueError, f"{name}: {INTEGER} {n!r}")
        for name, n in (("batch_size", 0), ("batch_size", 2.0), ("length", 0), ("length", "4"), ("stack", 0),
                        ("n_step", 1.5))
    },
    "a pickled reader": (
        pickled(lambda queue: queue.reader(2)), TypeError, "a TrajectoryReader belongs to one process: pass the queue",
    ),
    "a pickled writer": (pickled(TrajectoryQueue.writer), TypeError, "a Writer belongs to one process"),
    "gamma": (reader(gamma=1.01), ValueError, "gamma: expected a number from 0 to 1, got 1.01"),
    "pad": (reader(pad="edge"), ValueError, "pad: expected 'repeat' or 'zero', got 'edge'"),
    **{
        f"a lane too short for {options}": (
            reader(**options), ValueError, f"{ROWS} {rows} rows a lane for its stack {options.get('stack', 1)}, n_step"
        )
        for options, rows in (({"length": 16}, 18), ({"stack": 16}, 18), ({"stack": 9, "n_step": 9}, 19))
    },
    "length with next_obs": (
        reader(NEXT_OBS, length=4), ValueError, "length: expected None, since rows of a spec with next_obs do not",
    ),
    "stack with next_obs": (
        reader(NEXT_OBS, stack=2), ValueError, "stack, n_step: expected 1 and 1, since rows of a spec with next_obs",
    ),
    "length between states": (
        reader(STATE, 40, length=6), ValueError,
        "length: expected a multiple of the 4 rows from one stored state to the next, got 6",
    ),
}  # fmt: skip
test_refuses = refusals(REFUSED)
