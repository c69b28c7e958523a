"""A queue's limit of unread transitions: writers wait at it, but never while the reader waits for more rows."""

from contextlib import nullcontext

import numpy as np
import pytest
from meanwhile import soon
from seams import patch

from marlcore import Durable, Field, NotEnoughData, TrajectoryQueue, TransitionSpec

SPEC = TransitionSpec(Field((), "int64"), Field((), "int64"))
LANES = 2


@pytest.fixture
def queue():
    with TrajectoryQueue.create(SPEC, 64 * LANES, LANES, max_unread=8) as made:
        yield made


@pytest.fixture(params=["plain", "durable"])
def either(request, tmp_path, monkeypatch):
    patch(monkeypatch, "transitions", check_keeps=lambda directory: None)
    options = {"path": tmp_path / "queue", "durable": Durable(3600.0)} if request.param == "durable" else {}
    with TrajectoryQueue.create(SPEC, 64 * LANES, LANES, max_unread=8, **options) as made:
        yield made


def add(writer, number, **ends):
    writer.add(np.full(LANES, number), np.full(LANES, number), np.zeros(LANES), **ends)


def fill(writer) -> int:
    """Adds rows to all lanes until the writer would wait; returns the number of adds."""
    for number in range(100):
        try:
            add(writer, number)
        except TimeoutError:
            return number
    raise AssertionError("nothing made the writer wait")


@pytest.mark.parametrize("kind", ["vector", "single"])
def test_writers_wait_at_the_limit(queue, kind):
    if kind == "vector":
        with queue.vector_writer(timeout=0.0) as writer:
            assert fill(writer) == 4  # of 2 rows each
    else:
        with queue.writer(0, timeout=0.0) as writer:
            for number in range(8):
                writer.add(number, number, 0.0)
            with pytest.raises(TimeoutError, match=r"8 transitions are still unread after 0.0 seconds"):
                writer.add(8, 8, 0.0)
    assert len(queue) == 8


def test_a_reader_that_waits_gets_its_batch_and_not_whole_lanes(queue):
    """Otherwise both could wait: each lane's newest row is unread, but not whole before the next row comes."""
    with queue.vector_writer(timeout=0.0) as writer, queue.reader(batch_size=10) as reader:
        assert fill(writer) == 4
        with pytest.raises(NotEnoughData):
            reader.read()
        assert not reader.may_be_ready
        assert fill(writer) == 12, "2 batches more, and 2 rows a lane"
        assert reader.may_be_ready
        assert len(reader.read()) == 10
        assert fill(writer) == 0, "after the batch the limit holds again: 22 were left"


def test_a_timeout_counts_once(queue, monkeypatch):
    """The wait for room in a full lane gets only the time that the wait at the limit left."""
    times = iter(range(100))
    monkeypatch.setattr("marlcore.queue.gates.deadline_of", lambda timeout: next(times))
    waits = []
    monkeypatch.setattr("marlcore.queue.gates.sleep_until", lambda *arguments: waits.append(arguments[2]) or True)
    with queue.writer(0, timeout=5.0) as writer:
        for number in range(64):
            writer.add(number, number, 0.0)
        before = len(waits)
        writer.add(64, 64, 0.0)
        assert len(waits) == before + 2 and waits[-1] == waits[-2]


@pytest.mark.parametrize("batch_size", [4, 12], ids=["has a batch", "starves"])
def test_a_waiting_writer_is_woken_by_a_reader_that(either, no_slices, batch_size):
    def read() -> None:
        with nullcontext() if batch_size == 4 else pytest.raises(NotEnoughData):
            reader.read()

    with either.vector_writer() as writer, either.reader(batch_size) as reader:
        for number in range(4):
            add(writer, number)
        with soon(read):
            add(writer, 4)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_batch_makes_room_for_as_many_more(queue, replaced):
    """A successor of the reader counts the rows that its predecessor took."""
    with queue.vector_writer(timeout=0.0) as writer, queue.reader(batch_size=4) as reader:
        assert fill(writer) == 4
        reader.read()
        if replaced:
            reader.close()
            queue.reader(batch_size=4)
        assert fill(writer) == 2


def test_a_row_continues_where_the_next_is_its_successor():
    """It does not continue at an episode's end, at another writer's seam, or before a row of another lane."""
    with TrajectoryQueue.create(SPEC, 64 * LANES, LANES) as queue, queue.vector_writer() as writer:
        ends = [(3, "terminated"), (5, "truncated")]
        for number in range(9):
            flags = {name: np.array([True, False]) for at, name in ends if at == number}
            final = {"final_obs": np.full(LANES, 77)} if number == 5 else {}
            add(writer, number, **flags, **final)
            if number == 6:
                writer.new_episode([0])
        with queue.reader(batch_size=15) as reader:
            batch = reader.read()
            expected = []
            for i in range(15):
                same = i + 1 < 15 and batch.action[i + 1] == batch.action[i] + 1
                expected.append(same and not batch.terminated[i] and not batch.truncated[i])
            assert batch.continues.tolist() == expected
            assert batch.action.tolist() == [0, 1, 2, 3, 4, 5, 7, 0, 1, 2, 3, 4, 5, 6, 7]
            assert batch.next_obs[5] == 77, "the final observation"


@pytest.mark.parametrize("options", [{"n_step": 2}, {"length": 4}])
def test_other_batches_do_not_say_what_continues(options):
    with TrajectoryQueue.create(SPEC, 64) as queue, queue.writer() as writer:
        for number in range(30):
            writer.add(number, number, 0.0)
        with queue.reader(batch_size=2, **options) as reader:
            assert reader.read().continues is None
