"""Durable queues: what was read and not committed is read again, whichever process or machine stopped.

Another boot id stands for a power cut after which the disk had every page; power_cuts.py has disks that had not.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mapped import Mapped
from refused import Refused, refusals
from seams import another_boot, patch
from victims import die, fork

import marlcore as mc
from marlcore.interfaces import QueueSource
from marlcore.memory import Recovered
from marlcore.queue import TrajectoryReader
from marlcore.queue.cursor import ReadCursor
from marlcore.record import load_checkpoint, save_checkpoint
from marlcore.run.memory import _agree, reader_of

SPEC = mc.TransitionSpec(mc.Field((), "int64"), mc.Field((), "int64"))
RARELY = mc.Durable(every_s=3600.0)  # but at the beginning and the end
LANE = 40


@pytest.fixture(autouse=True)
def any_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch, "transitions", check_keeps=lambda directory: None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.marlcore"


@pytest.fixture
def reboot(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: patch(monkeypatch, "memory", **another_boot())


def create(path: Path, lanes: int = 1, **options: Any) -> mc.TrajectoryQueue:
    return mc.TrajectoryQueue.create(SPEC, LANE * lanes, lanes, path=path, **{"durable": RARELY, **options})


def add(queue: mc.TrajectoryQueue, count: int, lane: int = 0, base: int = 0) -> None:
    """Adds transitions that end episodes; their actions are their tickets, and `base` more."""
    first = Mapped(queue).committed(lane)
    with queue.writer(lane, timeout=0.0) as writer:
        for ticket in range(first, first + count):
            writer.add(ticket, base + ticket, 0.0, terminated=True)


def take(reader: TrajectoryReader, count: int) -> list[int]:
    actions: list[int] = reader.read(count).action.tolist()
    return actions


def flush(queue: mc.TrajectoryQueue) -> None:
    assert queue._durability is not None and queue._durability._flushing is not None
    queue._durability._flushing.flush()


def test_what_a_killed_reader_had_not_committed_is_read_again(path: Path) -> None:
    def work() -> object:
        queue = create(path)
        add(queue, 30)
        reader = queue.reader(5)
        assert take(reader, 5) == [*range(5)]
        reader.commit()
        assert take(reader, 10) == [*range(5, 15)]
        return queue, reader

    die(work)
    with mc.TrajectoryQueue.attach(path) as queue:
        assert (queue.durable, queue.recovered, len(queue)) == (RARELY, None, 25)
        reader = queue.reader(5)
        assert take(reader, 25) == [*range(5, 30)]
        assert len(queue) == 25
        reader.commit()
        assert len(queue) == 0


def test_a_reader_begins_behind_a_checkpoint_whose_commit_did_not_come(path: Path) -> None:
    with create(path, 2) as queue:
        add(queue, 20)
        add(queue, 10, lane=1)
        with queue.reader(6) as reader:
            first, state, second = reader.read(), reader.state_dict(), reader.read()
        with queue.reader(6) as reader:
            again = reader.read()
            np.testing.assert_array_equal(again.index, first.index)
            reader.commit(state)
            np.testing.assert_array_equal(reader.read().action, second.action)  # what was read before is not read again
        with queue.reader(6) as reader:
            reader.commit(state)
            np.testing.assert_array_equal(reader.read().action, second.action)


def test_a_commit_makes_room_and_reading_does_not(path: Path) -> None:
    with create(path) as queue, queue.reader(15) as reader:
        add(queue, LANE)
        assert take(reader, 15) == [*range(15)]
        assert not reader.commit_due
        assert take(reader, 15) == [*range(15, 30)]
        assert reader.commit_due
        with queue.writer(timeout=0.0) as writer:
            with pytest.raises(TimeoutError, match="no room"):
                writer.add(0, 0, 0.0)
            with pytest.raises(mc.Deadlocked, match="the writer of lane 0 waits for room, which a `commit` makes"):
                reader.read()
        reader.commit()
        assert not reader.commit_due
        add(queue, 30)
        assert take(reader, 15) + take(reader, 15) == [*range(30, 60)]


def test_writers_wait_for_what_is_unread_not_for_what_is_not_committed(path: Path) -> None:
    with create(path, max_unread=8) as queue, queue.reader(8) as reader:
        for first in range(0, 32, 8):
            add(queue, 8)
            assert take(reader, 8) == [*range(first, first + 8)]


def test_the_state_knows_no_row_of_a_batch_that_has_only_begun(path: Path) -> None:
    """A full lane's rows are taken early for a batch that lacks more."""
    with create(path, 2) as queue, queue.reader(50) as reader:
        add(queue, 10)
        take(reader, 10)
        state = reader.state_dict()
        reader.commit()
        add(queue, LANE)
        with queue.writer(timeout=0.0) as writer, pytest.raises(TimeoutError):
            writer.add(0, 0, 0.0)
        for _ in range(3):  # no commit would help, and lane 1 may have rows later
            with pytest.raises(mc.NotEnoughData):
                reader.read(50)
        np.testing.assert_array_equal(reader.state_dict()["cursor"], state["cursor"])
        reader.commit()
        add(queue, 10, lane=1)
        assert sorted(take(reader, 50)) == sorted([*range(10, 50), *range(10)])


def test_a_reader_that_is_killed_inside_a_commit_keeps_no_room(path: Path) -> None:
    def work() -> None:
        queue = create(path)
        add(queue, LANE)
        reader = queue.reader(LANE)
        reader.read()
        ReadCursor.release = lambda cursor, tickets: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        reader.commit()

    assert os.waitstatus_to_exitcode(os.waitpid(fork(work), 0)[1]) == -signal.SIGKILL
    with mc.TrajectoryQueue.attach(path) as queue, queue.reader(LANE) as reader:
        assert len(queue) == 0
        add(queue, LANE)
        assert take(reader, LANE) == [*range(LANE, 2 * LANE)]


def test_a_writer_that_waits_makes_a_commit_due(path: Path) -> None:
    with create(path) as queue, queue.reader(5) as reader, queue.writer(timeout=0.0) as writer:
        with pytest.raises(ValueError, match=f"expected at most {LANE // 4} rows in one add"):
            writer.add_batch(*np.zeros((3, LANE // 4 + 1), np.int64))
        writer.close()
        add(queue, LANE)
        take(reader, 5)
        assert not reader.commit_due
        with queue.writer(timeout=0.0) as another, pytest.raises(TimeoutError, match="no room"):
            another.add(0, 0, 0.0)
        assert reader.commit_due
        reader.commit()
        assert not reader.commit_due


def test_a_checkpoint_forgets_the_rows_that_a_power_cut_took(
    path: Path, tmp_path: Path, reboot: Callable[[], None]
) -> None:
    """A learner that is killed before its next checkpoint is followed by one that has the same checkpoint."""
    source, config, saved = QueueSource(4), mc.Config(total_steps=1), tmp_path / "agent_0.replay"
    checkpoint = saved.with_suffix(".pt")
    with create(path) as queue:
        add(queue, 8)
        flush(queue)
        add(queue, 8)
        with reader_of(queue, source, config, {}) as reader:
            assert take(reader, 16) == [*range(16)]
            state = {name: torch.from_numpy(array) for name, array in reader.state_dict().items()}
            save_checkpoint(checkpoint, {"reader": state, "replay": queue.handle.nonce})
        disk = path.read_bytes()
    path.write_bytes(disk)
    reboot()
    with mc.TrajectoryQueue.attach(path) as queue:
        assert queue.recovered == Recovered(8, 8, 0)
        _agree(queue, source, config, saved)
        for _ in range(2):
            with reader_of(queue, source, config, load_checkpoint(checkpoint)) as reader:
                add(queue, 8, base=100)
                assert take(reader, 4) == [*range(108, 112)]


def test_rows_that_a_stack_still_needs_stay(path: Path) -> None:
    with create(path) as queue:
        with queue.writer(timeout=0.0) as writer:
            for number in range(20):
                writer.add(number, number, 0.0)
        with queue.reader(10, stack=3) as reader:
            reader.read()
            reader.commit()
        with queue.writer(timeout=0.0) as writer, pytest.raises(TimeoutError):
            for _ in range(LANE):
                writer.add(0, 0, 0.0)
        assert Mapped(queue).committed() == LANE + 8
        with queue.reader(1, stack=3) as reader:
            np.testing.assert_array_equal(reader.read().obs, [[8, 9, 10]])


def test_a_power_cut_leaves_rows_up_to_the_watermark_and_the_commit_of_then(
    path: Path, reboot: Callable[[], None]
) -> None:
    """The checkpoint knows rows that the cut took; the rows that get their tickets are new to it."""

    def work() -> object:
        queue = create(path)
        reader = queue.reader(5)
        add(queue, 15)
        take(reader, 5)
        reader.commit()
        flush(queue)
        add(queue, 10)
        take(reader, 15)
        reader.commit()
        np.savez(path.with_name("state.npz"), **reader.state_dict())
        return queue, reader

    die(work)
    reboot()
    state = dict(np.load(path.with_name("state.npz")))
    with mc.TrajectoryQueue.attach(path) as queue:
        assert queue.recovered == Recovered(rows=15, cut=10, overwritten=0)
        assert len(queue) == 10
        reader = queue.reader(5)
        reader.commit(state)
        assert len(queue) == 0
        add(queue, 10, base=100)
        assert take(reader, 10) == [*range(115, 125)]
        assert queue.dropped.tolist() == queue.skipped.tolist() == [0]


def test_a_power_cut_takes_no_row_below_the_watermark_that_was_not_committed(
    path: Path, reboot: Callable[[], None]
) -> None:
    """Neither the flusher nor the writers promise more than the reader made room for; see watermark.py."""

    def work() -> object:
        queue = create(path)
        reader = queue.reader(5)
        add(queue, LANE)
        take(reader, 20)
        reader.commit()
        add(queue, 15)  # the writer would pledge, and the flusher promise, what is not free
        flush(queue)
        add(queue, 3)
        return queue, reader

    die(work)
    reboot()
    with mc.TrajectoryQueue.attach(path) as queue:
        assert queue.recovered == Recovered(rows=35, cut=3, overwritten=5)
        assert take(queue.reader(35), 35) == [*range(20, 55)]


def test_misuse_is_refused(path: Path, subtests: pytest.Subtests) -> None:
    durable, none = create(path), mc.TrajectoryQueue.create(SPEC, LANE)
    with durable, none, durable.reader(5) as reader, none.reader(5) as other:
        add(durable, 20)
        take(reader, 10)
        old = reader.state_dict()
        take(reader, 5)
        reader.commit()
        drops: dict[str, Any] = {"when_full": "drop_oldest", "path": path.with_name("b")}
        table: dict[str, Refused] = {
            "drops": (lambda: create(**drops), "durable: expected None for when_full='drop_oldest'"),
            "in memory": (lambda: create(None), "path: expected an ordinary file for a durable queue, got None"),
            "once": (other.commit, "commit: expected a durable queue"),
            "due": (lambda: other.commit_due, "commit: expected a durable queue"),
            "old": (lambda: reader.commit(old), "state: expected no state before the last commit, got an older state"),
            "none": (lambda: reader.commit({}), "state: expected cursor as int64 (4, 1), got nothing"),
            "shape": (lambda: reader.commit({"cursor": np.zeros((4, 2), np.int64)}), "got ndarray of int64 (4, 2)"),
            "sane": (lambda: reader.commit({**old, "cursor": np.full((4, 1), 9)}), "contradict one another"),
            "another": (lambda: reader.commit(other.state_dict()), "state: expected a state of this queue,"),
            "list": (lambda: reader.commit([1]), TypeError, "state: expected a dict of arrays"),
        }  # fmt: skip
        refusals(table)(subtests)
        assert take(reader, 5) == [*range(15, 20)]
