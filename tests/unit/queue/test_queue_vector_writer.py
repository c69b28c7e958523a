"""The writer of several lanes of a queue: a call waits for room in all of them, or leaves rows out."""

import contextlib
import random
from collections.abc import Callable
from functools import partial
from itertools import count, product

import numpy as np
import pytest
from mapped import Mapped
from meanwhile import soon
from tiers import long_but

from marlcore import Field, NotEnoughData, TrajectoryQueue, TransitionSpec
from marlcore.queue.cursor import LONGEST, CursorLines

SPEC = TransitionSpec(Field((4,)), Field((), "int64"))


def rows(k, value=0):
    return {"obs": np.full((k, 4), value, np.float32), "action": np.full(k, value), "reward": np.zeros(k)}


def committed(queue):
    return [Mapped(queue).committed(lane) for lane in range(queue.lanes)]


@pytest.mark.parametrize("when_full", ["wait", "drop_newest", "drop_oldest"])
def test_rows_of_a_vector_are_read_lane_by_lane(when_full):
    with TrajectoryQueue.create(SPEC, 100, lanes=4, when_full=when_full) as queue:
        reader = queue.reader(8, length=2)
        with queue.vector_writer() as vector:
            for step in range(5):
                assert vector.add(**rows(4, step)).tolist() == [step] * 4
        batch = reader.read(timeout=600.0)
        assert sorted(batch.action.tolist()) == [[0, 1]] * 4 + [[2, 3]] * 4


def test_a_call_waits_until_each_lane_has_room():
    """Nothing is written while one lane is full, and every row once the reader has read from that lane."""
    with TrajectoryQueue.create(SPEC, 16, lanes=4) as queue:
        reader = queue.reader(1)
        with queue.writer(2) as writer:
            for _ in range(4):
                writer.add(**{name: value[0] for name, value in rows(1).items()})
        with queue.vector_writer(timeout=0.05) as vector:
            with pytest.raises(TimeoutError, match=r"no room for 1 more rows in lane 2 in 0\.05 seconds"):
                vector.add(**rows(4))
            assert committed(queue) == [0, 0, 4, 0]
            assert vector.add(**rows(3), lanes=[3, 1, 0]).tolist() == [0, 0, 0]
        read = soon(lambda: [reader.read(timeout=600.0) for _ in range(3)])
        with queue.vector_writer(timeout=600.0) as vector, read:
            assert vector.add(**rows(4)).tolist() == [1, 1, 4, 1]


def test_a_call_waits_for_room_for_boundary_rows_too():
    with TrajectoryQueue.create(SPEC, 8, lanes=2) as queue, queue.vector_writer(timeout=0.0) as vector:
        for _ in range(3):
            vector.add(**rows(2))
        ended = {"truncated": np.array([False, True]), "final_obs": np.zeros((2, 4))}
        with pytest.raises(TimeoutError, match="no room for 2 more rows in lane 1"):
            vector.add(**rows(2), **ended)
        assert committed(queue) == [3, 3]
        assert vector.add(**rows(2)).tolist() == [3, 3]


def test_the_waits_for_all_lanes_share_one_timeout():
    began = []

    class Gate:
        left = 0

        def wait(self, transitions, boundaries, timeout, check_open, now):
            began.append((timeout, now))
            return True

    with TrajectoryQueue.create(SPEC, 16, lanes=2) as queue:
        gates = queue._gates([0, 1])
        gates._gates[:] = Gate(), Gate()
        for timeout in (5.0, None):
            assert not np.any(gates.wait_each(np.arange(2), np.zeros(2, bool), timeout, lambda: None))
    assert began[0] == began[1]
    assert isinstance(began[0][1], float)
    assert began[2:] == [(None, None)] * 2


def test_a_queue_that_drops_its_newest_takes_no_raw_rows():
    with TrajectoryQueue.create(SPEC, 16, lanes=2, when_full="drop_newest") as queue:
        with pytest.raises(ValueError, match=r"^when_full: expected 'wait' or 'drop_oldest' for rows from"):
            queue.rows_writer([0, 1])
        queue.writer(0).close()  # its lanes are free


def test_rows_without_room_are_left_out_and_counted():
    """Their tickets are -1, and the next rows of their lanes begin episodes; the other lanes get their rows."""
    with TrajectoryQueue.create(SPEC, 16, lanes=4, when_full="drop_newest") as queue:
        reader = queue.reader(1)
        with queue.vector_writer() as vector:
            for step in range(4):
                vector.add(**rows(3, step), lanes=[0, 1, 2])
            ended = np.array([False, False, False, True])
            assert vector.add(**rows(4, 9), terminated=ended, final_obs=np.zeros((4, 4))).tolist() == [-1, -1, -1, 0]
            assert queue.dropped.tolist() == [1, 1, 1, 0]
            for _ in range(2):  # of lanes 0 and 1
                assert reader.read(timeout=600.0).action.tolist() == [0]
            assert vector.add(**rows(4, 10)).tolist() == [4, 4, -1, 2]
            assert committed(queue) == [5, 5, 4, 3]
        ages = Mapped(queue).column(0, 0)[:, 4:8].view(np.uint32).ravel() & 0xFFFFFF
        assert ages.tolist() == [0, 1, 2, 3]  # of tickets 4, 1, 2, 3
        assert len(queue) + queue.dropped.sum() + queue.skipped.sum() + 2 == 3 * 4 + 4 + 4


def test_a_lane_whose_writer_waits_begins_the_batch(no_slices):
    """All 18 rows go to lane 0, which holds 6, as if every other agent had died; no row is lost or doubled."""
    with (
        TrajectoryQueue.create(SPEC, 24, lanes=4) as queue,
        queue.vector_writer() as vector,
        queue.reader(16) as reader,
    ):

        def write() -> None:
            for step in range(18):
                ended = {"terminated": np.array([step == 7])}
                vector.add(**rows(1, step), **ended, lanes=[0])

        with soon(write):
            batch = reader.read(timeout=600.0)
        assert batch.action.tolist() == [*range(16)]
        assert batch.continues.tolist() == [step not in (7, 15) for step in range(16)]
        assert len(queue) == 2
    with TrajectoryQueue.create(SPEC, 24, lanes=4, when_full="drop_newest") as queue, queue.vector_writer() as vector:
        queue.reader(8)
        assert [vector.add(**rows(1), lanes=[0]).item() for _ in range(7)] == [0, 1, 2, 3, 4, 5, -1]


# Neither reader nor writers wait for ever, in the smallest queue that all of them take

Adds = list[Callable[[int], object]]  # called with the rounds in which nothing was added or read


def lane_by_lane(queue, dice) -> Adds:
    """Adds the longest batches that the reader allows, each lane by its own writer, with many short episodes."""
    mapped, truncated = Mapped(queue), dice.random()
    longest = CursorLines(mapped.segment, mapped.geometry).word(LONGEST)

    def add(writer, idle):
        ended = [dice.random() < truncated for _ in range(longest)]
        while sum(ended) + len(ended) > longest:
            ended.pop()
        finals = np.zeros((sum(ended), 4)) if any(ended) else None
        writer.add_batch(**rows(len(ended)), truncated=ended, final_obs=finals)

    return [partial(add, queue.writer(lane, timeout=0.0)) for lane in range(queue.lanes)]


def vectors(queue, dice) -> Adds:
    """Adds rows to random lanes; episodes in lane 0 end early."""
    lanes = list(range(queue.lanes))
    ends = np.array([dice.choice([0.0, 0.5, 1.0]), *[dice.choice([0.0, 0.3])] * 3])

    def add(writer, of, idle):
        some = of if idle > 1 else dice.sample(of, dice.randrange(1, len(of) + 1))
        ended = np.array([dice.random() < ends[lane] for lane in some])
        finals = {"truncated": ended, "final_obs": np.zeros((len(some), 4))} if ended.any() else {}
        writer.add(**rows(len(some)), **finals, lanes=some)

    adds = []
    while lanes:
        share = dice.choice([1, 2, 3, 4])
        adds.append(partial(add, queue.vector_writer(lanes[:share], timeout=0.0), lanes[:share]))
        del lanes[:share]
    return adds


@pytest.mark.parametrize(
    ("open_writers", "seed"),
    long_but([*product([vectors], range(6)), (lane_by_lane, 0)], product([vectors, lane_by_lane], range(12))),
)
def test_reader_and_writers_never_all_wait(open_writers, seed):
    dice = random.Random(seed)
    lanes, stack = (4, 1) if open_writers is vectors else (dice.randrange(1, 4), dice.randrange(1, 4))
    options = {"n_step": dice.randrange(1, 4), "length": dice.choice([None, 1, 4]), "stack": stack}
    batch_size = dice.randrange(1, 9)
    for lane_rows in count(3):
        queue = TrajectoryQueue.create(SPEC, lanes * lane_rows, lanes)
        try:
            reader = queue.reader(batch_size, **options)
            adds = open_writers(queue, dice)
            break
        except ValueError as error:
            assert "expected a queue of at least" in str(error)
            queue.close()
    with queue:
        idle, delivered, last = 0, 0, np.full(lanes, -1)
        for _ in range(500):
            idle += 1
            for add in adds:
                with contextlib.suppress(TimeoutError):
                    add(idle)
                    idle = 0
            with contextlib.suppress(NotEnoughData):
                batch = reader.read()
                for ticket, lane in zip(*np.divmod(batch.index, lanes), strict=True):  # none twice, nor too late
                    assert ticket > last[lane]
                    last[lane] = ticket
                delivered += len(batch.reward)
                idle = 0
            assert idle < 3, "the reader may have made room by leaving boundary rows behind"
        assert delivered > 100
