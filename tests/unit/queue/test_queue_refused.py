"""Refused arguments of a trajectory queue, its writers and its reader."""

import math
import pickle
from collections.abc import Callable
from functools import partial

from refused import Refused, each_bad, refusals

from marlcore import Field, LayoutMismatch, ReplayBuffer, SegmentCorrupt, TrajectoryQueue, TransitionSpec

SPEC = TransitionSpec(Field((), "int64"), Field((), "int64"))
NEXT_OBS = TransitionSpec(Field((), "int64"), Field((), "int64"), next_obs=True)
STATE = TransitionSpec(Field((), "int64"), Field((), "int64"), {"h": Field((2,), every=4)})
OTHER = TransitionSpec(Field((), "int64"), Field())


def create(**arguments) -> None:
    TrajectoryQueue.create(**{"spec": SPEC, "capacity": 64} | arguments)


def on(call: Callable[[TrajectoryQueue], object], spec=SPEC, capacity=16, lanes=1) -> None:
    with TrajectoryQueue.create(spec, capacity, lanes) as queue:
        call(queue)


def reader(spec=SPEC, capacity=16, **options) -> None:
    on(lambda queue: queue.reader(**{"batch_size": 2} | options), spec, capacity)


def writer(**options) -> None:
    on(lambda queue: queue.writer(**options), lanes=2)


def read(timeout) -> None:
    on(lambda queue: queue.reader(2).read(timeout=timeout))


def attach_to_replay() -> None:
    with ReplayBuffer.create(SPEC, 64) as replay:
        TrajectoryQueue.attach(replay.handle)


INTEGER = "an integer of at least 1"
SECONDS = "seconds of at least 0 or None"
ROWS = "reader: expected a queue of at least"

REFUSED: list[Refused] = [
    (partial(create, spec=None), TypeError, "spec: expected a TransitionSpec, got None"),
    *each_bad(create, INTEGER, capacity=[0], lanes=[True], max_unread=[0]),
    (partial(create, capacity=5, lanes=2), "capacity: expected at least 6, 3 rows a lane"),
    (partial(create, capacity=2**32), "capacity: expected from 1 rows, one a lane, to 4294967295"),
    *each_bad(create, "one of wait, drop_oldest, drop_newest", when_full=["drop", None]),
    *each_bad(create, "letters, digits, '_' and '.'", name=["a/b"]),
    *each_bad(partial(create, when_full="drop_oldest"), "None for when_full='drop_oldest'", max_unread=[8]),
    (attach_to_replay, SegmentCorrupt, "expected a queue, got another kind of segment"),
    (partial(on, lambda queue: ReplayBuffer.attach(queue.handle)), SegmentCorrupt,
        "expected a replay, got another kind of segment"),
    (partial(on, lambda queue: TrajectoryQueue.attach(queue.handle, OTHER)), LayoutMismatch,
        "spec action: expected int64 (), got float32 ()"),
    *each_bad(writer, "0 to 1", lane=[-1, 2, 0.0]),
    *each_bad(writer, SECONDS, timeout=[-1, -0.5, math.nan, "1"]),
    *each_bad(read, SECONDS, timeout=[-1, -0.5, math.nan, "1"]),
    *each_bad(reader, INTEGER, batch_size=[0, 2.0], length=[0, "4"], stack=[0], n_step=[1.5]),
    (partial(on, lambda queue: pickle.dumps(queue.reader(2))), TypeError,
        "a TrajectoryReader belongs to one process: pass the queue"),
    (partial(on, lambda queue: pickle.dumps(queue.writer())), TypeError, "a Writer belongs to one process"),
    *each_bad(reader, "a number from 0 to 1", gamma=[1.01]),
    *each_bad(reader, "'repeat' or 'zero'", pad=["edge"]),
    *((partial(reader, **options), f"{ROWS} {rows} rows a lane for its stack {options.get('stack', 1)}, n_step")
      for options, rows in (({"length": 16}, 18), ({"stack": 16}, 18), ({"stack": 9, "n_step": 9}, 19))),
    (partial(reader, NEXT_OBS, length=4), "length: expected None, since rows of a spec with next_obs do not"),
    (partial(reader, NEXT_OBS, stack=2), "stack, n_step: expected 1 and 1, since rows of a spec with next_obs"),
    (partial(reader, STATE, 40, length=6),
        "length: expected a multiple of the 4 rows from one stored state to the next, got 6"),
]  # fmt: skip
test_refuses = refusals(REFUSED)
