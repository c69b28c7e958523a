"""The trajectory queue delivers each transition once and in order, or counts it, whichever end dies or closes."""

import contextlib
import itertools
import random
import threading
from collections import Counter
from functools import partial
from unittest import mock

import numpy as np
import pytest
from delivery import InOrder
from filled import torn
from mapped import Mapped
from meanwhile import Rang, ring, soon
from model import Model, columns
from refused import check_refused, stale_in_a_fork
from seams import patch, trusting
from victims import at_instruction

import marlcore as mc
from marlcore.kernels import inorder
from marlcore.memory import Event, Segment, Words
from marlcore.queue.cursor import LOOKS, CursorLines, ReadCursor
from marlcore.transitions import ReadPlan

SPEC = mc.TransitionSpec(mc.Field((), "int64"), mc.Field((), "int64"))
GAMMA = 0.5


def make(capacity=64, lanes=1, when_full="wait", spec=SPEC):
    return mc.TrajectoryQueue.create(spec, capacity, lanes, when_full=when_full)


def fill(writer, numbers, **more):
    for number in numbers:
        writer.add(number, number, 0.0, **more)


def fill_until_full(writer, number=0) -> int:
    """Adds rows until there is no room; returns the first number that was not added."""
    while True:
        try:
            writer.add(number, number, 0.0)
        except TimeoutError:
            return number
        number += 1


def lines(queue) -> CursorLines:
    """Returns the cursor as any process sees it."""
    mapped = Mapped(queue)
    return CursorLines(mapped.segment, mapped.geometry)


def held(queue) -> np.ndarray:
    """Counts the transitions in each lane that are still to be read, int64 [lanes]."""
    native, lanes = Mapped(queue).lanes, range(queue.lanes)
    behind = np.array([native.written(lane) for lane in lanes]) - lines(queue).load()[inorder.PASSED]
    return np.minimum(behind, [native.transitions(lane) for lane in lanes])


def drain(reader) -> list[int]:
    """Returns the actions of all whole batches in the queue."""
    actions: list[int] = []
    while True:
        try:
            actions += reader.read().action.tolist()
        except mc.NotEnoughData:
            return actions


def random_rows(dice, numbers, count, finals):
    """Makes transitions that end in every way; `finals` allows a final_obs after termination."""
    endings = ["none"] * 5 + ["terminated", "truncated"] + ["terminated with final_obs"] * finals
    rows = []
    for _ in range(count):
        number, ending = next(numbers), dice.choice(endings)
        final = next(numbers) if ending == "truncated" or ending.endswith("obs") else None
        rows.append({
            "obs": number, "action": number, "reward": float(dice.randrange(8)),
            "terminated": ending.startswith("terminated"), "truncated": ending == "truncated", "final_obs": final,
        })  # fmt: skip
    return rows


def write_something(dice, writer, order: InOrder, numbers, when_full):
    """Makes a random add of one row or of several, and mirrors it in the model if it was written."""
    lane = writer.lane
    if dice.random() < 0.1:
        writer.new_episode()
        order.model.lanes[lane].seam()
    if dice.random() < 0.1 and order.model.lanes[lane].episodes[-1].rows:
        final_obs = next(numbers)
        with contextlib.suppress(TimeoutError):
            if writer.end_episode(final_obs=final_obs) == -1:
                order.refuse(lane, 0)
            else:
                order.model.lanes[lane].truncate(final_obs)
    single = dice.random() < 0.7
    rows = random_rows(dice, numbers, 1 if single else dice.randrange(1, 4), finals=single)
    try:
        ticket = writer.add(**rows[0]) if single else writer.add_batch(**columns(rows))
    except TimeoutError:
        assert when_full == "wait"
        return
    if ticket == -1:
        assert when_full == "drop_newest"
        order.refuse(lane, len(rows))
    else:
        tickets = [order.add(lane, **row) for row in rows]
        assert tickets[0] == ticket


def read_and_check(reader, order: InOrder, batch_size: int, **window):
    lanes = range(len(order.model.lanes))
    ready = [order.ready(lane) for lane in lanes]
    if sum(ready) < batch_size:
        with pytest.raises(mc.NotEnoughData, match=f"got {sum(ready)}$"):
            reader.read()
        for lane in lanes:
            order.settle(lane)
        return
    batch = reader.read()
    of = batch.index % len(lanes)
    assert (np.diff(of) >= 0).all()
    taken = [order.take(lane) for lane in of.tolist()]
    assert batch.index.tolist() == [index for index, _ in taken]
    order.model.check(batch, allowed=dict(taken), gamma=GAMMA, **window)
    share = np.bincount(of, minlength=len(lanes))
    assert all(share[i] <= share[j] + 1 or share[j] == min(ready[j], batch_size) for i in lanes for j in lanes)
    for lane in lanes:  # the queue moves on where it took something, up to the batch's last row
        if share[lane] == 0 or lane != of[-1]:
            order.settle(lane)


WINDOWS = [
    (1, 1, 1, None), (3, 1, 1, None), (2, 3, 1, None), (2, 1, 3, None), (2, 3, 2, None),
    (1, 1, 1, 4), (3, 1, 1, 3), (2, 2, 2, 3), (2, 1, 3, 1),
]  # fmt: skip
MODES = ["wait", "drop_oldest", "drop_newest"]
CASES = [
    pytest.param(*window, mode, marks=() if i % len(MODES) == j else pytest.mark.long)  # each window in one mode
    for i, window in enumerate(WINDOWS)
    for j, mode in enumerate(MODES)
]


@pytest.mark.parametrize(("lanes", "stack", "n_step", "length", "when_full"), CASES)
def test_every_transition_is_delivered_once_in_order_or_counted(when_full, lanes, stack, n_step, length):
    """Against the model, with every end of an episode, seams, wraps, and replaced readers and writers."""
    dice = random.Random(f"{when_full} {lanes} {stack} {n_step} {length}")
    batch_size, numbers = 4, iter(range(10**9))
    options = {"stack": stack, "n_step": n_step, "gamma": GAMMA, "length": length}
    window = {"stack": stack, "n_step": n_step, "sequence": length and mc.Sequence(length)}
    lane_rows = 28
    with make(lanes * lane_rows, lanes, when_full) as queue:
        model = Model(SPEC, lanes, lane_rows)
        order = InOrder(model, stack, n_step, length)
        writers = [queue.writer(lane, timeout=0.0) for lane in range(lanes)]
        reader = queue.reader(batch_size, **options)
        eager = 0.5
        for step in range(1500):
            if step % 100 == 0:
                eager = dice.choice([0.05, 0.2, 0.5])  # readers too slow, and quick enough
            if dice.random() < eager:
                read_and_check(reader, order, batch_size, **window)
            else:
                write_something(dice, dice.choice(writers), order, numbers, when_full)
            if dice.random() < 0.01:
                at = dice.randrange(lanes)
                writers[at].close()
                writers[at] = queue.writer(at, timeout=0.0)
                model.lanes[at].seam()
            if dice.random() < 0.01:
                reader.close()
                reader = queue.reader(batch_size, **options)
            delivered = order.delivered.sum()
            assert order.added.sum() == delivered + queue.dropped.sum() + queue.skipped.sum() + len(queue)
            if step % 50 == 0:
                overwritten = [order.overwritten(lane) for lane in range(lanes)]
                assert queue.dropped.tolist() == (order.dropped + overwritten).tolist()
                assert queue.skipped.tolist() == order.skipped.tolist()
        assert delivered > 200
        assert (queue.dropped.sum() > 0) == (when_full != "wait")
        assert all(lane.next_ticket > 3 * lane_rows for lane in model.lanes)


@contextlib.contextmanager
def written_after_a_look(write):
    """Writes rows after the reader's next look at the lanes' ends, before it reads any row."""
    look, todo = ReadPlan.read_windows, [write]

    def look_and_write(drawing):
        look(drawing)
        while todo:
            todo.pop()()

    with mock.patch.object(ReadPlan, "read_windows", look_and_write):
        yield


@pytest.mark.parametrize(("stack", "n_step", "length"), [(1, 1, None), (3, 1, None), (1, 3, None), (3, 2, 4)])
def test_rows_overwritten_before_the_copy_are_read_again(stack, n_step, length):
    """After `more` new rows, the first copy has some or only rows of another lap, which their content shows."""
    for more in range(24):
        with make(24, when_full="drop_oldest") as queue, queue.writer() as writer:
            fill(writer, range(24))
            with queue.reader(2, stack=stack, n_step=n_step, length=length) as reader:
                read = reader.read().reward.size
                with written_after_a_look(partial(fill, writer, range(24, 24 + more))):
                    batch = reader.read()
            newest = batch.index.reshape(2, *[1] * (batch.obs.ndim - 1))
            if length:
                newest = newest + np.arange(length).reshape(1, length, *[1] * (batch.obs.ndim - 2))
            expected = newest - np.arange(stack - 1, -1, -1) if stack > 1 else newest
            assert (batch.obs == expected).all()
            assert (batch.next_obs == expected + n_step).all()
            assert batch.index[0] - (stack - 1) >= more or batch.index[0] == read
            assert batch.index[1] == batch.index[0] + (length or 1)
            assert queue.dropped.sum() == batch.index[0] - read


@pytest.mark.parametrize("when_full", ["wait", "drop_newest"])
def test_an_add_too_long_for_the_reader_is_refused(when_full):
    with make(16, when_full=when_full) as queue, queue.writer(timeout=0.0) as writer:
        rows = np.arange(16)
        with pytest.raises(ValueError, match=r"^reward: expected at most 15 of the lane's 16 rows"):
            writer.add_batch(rows, rows, rows)
        with queue.reader(4, stack=7) as reader:
            message = (
                r"^reward: expected at most 9 rows in one add, final_obs included, "
                r"since the queue's reader needs the rest of a lane's 16, got 10$"
            )
            with pytest.raises(ValueError, match=message):
                writer.add_batch(rows[:10], rows[:10], rows[:10])
            assert writer.add_batch(rows[:9], rows[:9], rows[:9]) == 0
            assert drain(reader) == list(range(8))
        assert queue.dropped.tolist() == [0]


STATE = mc.TransitionSpec(mc.Field((), "int64"), mc.Field((), "int64"), {"h": mc.Field((2,), "float32", every=4)})


def test_an_unroll_comes_with_the_state_at_its_first_row():
    """The state is 0 at an episode's first row, otherwise the stored one, which stays until it is read."""
    with mc.TrajectoryQueue.create(STATE, 40) as queue:
        writer, reader = queue.writer(timeout=0.0), queue.reader(1, length=8)
        number = place = 0
        for _ in range(60):
            while True:
                try:
                    writer.add(number, place, 0.0, terminated=place == 18, h=np.full(2, number))
                except TimeoutError:
                    break
                number, place = number + 1, 0 if place == 18 else place + 1
            batch = reader.read()
            first = int(batch.action[0, 0])
            assert first in (0, 8, 16)
            assert batch.mask.sum() == min(8, 19 - first)
            assert (batch.extras["h"] == (batch.obs[0, 0] if first else 0)).all()
        assert number > 10 * 40
        assert queue.dropped.sum() == queue.skipped.sum() == 0


def test_single_transitions_of_a_spec_with_states_are_all_read():
    with mc.TrajectoryQueue.create(STATE, 40) as queue, queue.writer() as writer, queue.reader(3) as reader:
        fill(writer, range(31), h=np.zeros(2))
        assert drain(reader) == list(range(30))


def test_rows_before_the_next_stored_state_are_skipped():
    with (
        mc.TrajectoryQueue.create(STATE, 12, when_full="drop_oldest") as queue,
        queue.writer() as writer,
        queue.reader(1, length=4) as reader,
    ):
        for i in range(22):
            writer.add(i, i, 0.0, h=np.full(2, i))
        batch = reader.read()
        assert batch.action.tolist() == [[12, 13, 14, 15]]
        assert batch.extras["h"].tolist() == [[12.0, 12.0]]
        assert queue.dropped.sum() + queue.skipped.sum() == 12
        assert len(queue) == 6


@pytest.mark.parametrize("skipped", [False, True], ids=["reads", "skips"])
def test_a_waiting_writer_wakes_when_the_reader(no_slices, skipped):
    with make(8) as queue, queue.writer() as writer, queue.reader(2) as reader:
        for i in range(8):
            writer.add(i, i, 0.0)
            if skipped:
                writer.new_episode()
        with soon(drain, reader):
            assert writer.add(8, 8, 0.0) == 8
        assert queue.skipped.tolist() == [7 * skipped]


def test_a_waiting_writer_wakes_for_a_reader_it_is_too_long_for(no_slices):
    with make(16) as queue, queue.writer() as writer:
        fill(writer, range(4))
        rows = np.zeros(13)
        with (
            soon(lambda: queue.reader(4, stack=7)),
            pytest.raises(ValueError, match=r"^reward: expected at most 9 rows"),
        ):
            writer.add_batch(rows.astype(int), rows.astype(int), rows)


def test_a_waiting_reader_wakes_when_enough_was_written(no_slices):
    with make(16, lanes=2) as queue, queue.writer(0) as writer, queue.writer(1) as other, queue.reader(4) as reader:
        fill(writer, range(2))
        with soon(lambda: (fill(other, range(3)), fill(writer, [2]))):
            assert reader.read(timeout=600).action.tolist() == [0, 1, 0, 1]
        assert reader.stats.waited > 0


def test_a_signal_ends_a_wait_with_nothing_written_or_read(alarm):
    with make(8) as queue, queue.writer() as writer, queue.reader(2) as reader:
        fill(writer, range(8))
        alarm(ring)
        with pytest.raises(Rang):
            writer.add(8, 8, 0.0)
        assert drain(reader) == [0, 1, 2, 3, 4, 5]
        alarm(ring)
        with pytest.raises(Rang):
            reader.read(timeout=600)
        fill(writer, range(8, 10))
        assert drain(reader) == [6, 7]


def test_closing_one_end_or_the_queue_ends_the_waits_there():
    with make(8) as queue:
        writer, reader = queue.writer(), queue.reader(2)
        fill(writer, range(8))
        with soon(writer.close), pytest.raises(mc.ClosedError):
            fill(writer, [8])
        drain(reader)
        with soon(queue.close), pytest.raises(mc.ClosedError):
            reader.read(timeout=600)


def test_a_reader_that_was_closed_in_its_sleep_reads_no_more(no_slices):
    with make(8) as queue, queue.writer() as writer, queue.reader(2) as reader:
        close = soon(lambda: (reader.close(), fill(writer, range(3))))
        with close, pytest.raises(mc.ClosedError, match=r"the reader was closed$"):
            reader.read(timeout=600)
        assert len(queue) == 3


@pytest.mark.parametrize("end", ["reader", "writer", "vector_writer"])
def test_an_end_closes_when_no_other_thread_is_inside(end):
    """A successor that opened earlier would work beside that thread."""
    with make(8) as queue:
        opened = {"reader": lambda: queue.reader(2)}.get(end, getattr(queue, end))
        first = opened()
        first._inside[-1] = None  # another thread is in the middle of a call
        closing = threading.Thread(target=first.close)
        closing.start()
        closing.join(0.1)
        check_refused(opened, mc.LaneBusy, "has a living")
        del first._inside[-1]
        closing.join()
        opened().close()


def test_a_full_lane_drops_only_what_it_would_take():
    """Refused rows, and adds of a closed writer, are not counted as dropped."""
    with make(8, when_full="drop_newest") as queue, queue.writer() as writer:
        fill(writer, range(20))
        dropped = queue.dropped.sum()
        rows = np.arange(2), np.arange(2)
        for call, says in (
            (lambda: writer.add(0, 0, np.nan), "reward: expected a finite number"),
            (lambda: writer.add_batch(*rows, [0.0, np.inf]), "reward: expected a finite number"),
            (lambda: writer.add_batch(*rows, [0.0, 0.0], truncated=[False, True]), "final_obs: expected one"),
        ):
            check_refused(call, ValueError, says)
        writer.close()
        check_refused(lambda: writer.add(0, 0, 0.0), mc.ClosedError, "the writer was closed")
        assert queue.dropped.sum() == dropped


def test_a_queue_has_one_reader_at_a_time():
    with make(8) as queue, mc.TrajectoryQueue.attach(queue.handle) as again:
        check_refused(lambda: queue.reader(2, length=100), ValueError, "reader: expected a queue of")  # holds nothing
        reader = queue.reader(2)
        check_refused(lambda: again.reader(2), mc.LaneBusy, "the queue has a living reader")
        reader.close()
        reader.close()
        again.reader(2).close()
        queue.reader(2)


def test_lanes_take_turns_where_shares_cannot_be_equal():
    with make(48, lanes=3) as queue, queue.reader(1) as reader:
        for lane in range(3):
            with queue.writer(lane) as writer:
                fill(writer, range(5))
        assert [reader.read().index.item() % 3 for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_a_longer_stack_drops_rows_without_frames():
    with make(8) as queue, queue.writer(timeout=0.0) as writer:
        fill(writer, range(8))
        with queue.reader(1) as reader:
            assert [reader.read().action.item() for _ in range(4)] == [0, 1, 2, 3]
        fill_until_full(writer, 8)
        with queue.reader(1, stack=3) as reader:
            batch = reader.read()
            assert (batch.action.tolist(), batch.obs.tolist()) == ([6], [[4, 5, 6]])
            assert queue.dropped.tolist() == [2]


@contextlib.contextmanager
def dies_before(count: int):
    """Makes the `count`-th store from now on raise instead."""
    store = Words.store

    def counted(words, index, value):
        nonlocal count
        if count == 0:
            raise KeyboardInterrupt
        count -= 1
        store(words, index, value)

    def one_by_one(words, first, step, values):
        for number, value in enumerate(values.tolist()):
            words.store(first + number * step, value)

    with mock.patch.multiple(Words, store=counted, store_each=one_by_one):
        yield


def reads_until_one_dies_at(queue, writers, count):
    """Reads five batches and one that dies before a store; returns the delivered and the lost rows, and the reader."""
    for i, writer in enumerate(writers):
        fill(writer, range(100 * i, 100 * i + 12))
    reader = queue.reader(3)
    delivered = [reader.read().action.tolist() for _ in range(5)]
    move, in_hand = ReadCursor.move, []

    def note_and_move(read_cursor, cursor):
        in_hand.append(cursor.copy())
        move(read_cursor, cursor)

    before = lines(queue).load()
    died = False
    with mock.patch.object(ReadCursor, "move", note_and_move), dies_before(count):
        try:
            delivered.append(reader.read().action.tolist())
        except KeyboardInterrupt:
            died = True
    first, last = before[0], in_hand[0][0]
    lost = [100 * lane + t for lane in range(2) for t in range(first[lane], last[lane])] if died else []
    return [action for batch in delivered for action in batch], lost, reader, died


@pytest.mark.parametrize("survives", [False, True], ids=["killed", "interrupted"])
def test_a_reader_stopped_at_any_store_delivers_at_most_once(survives):
    """The batch in hand is lost only after the store that consumes it."""
    outcomes = Counter()
    for count in range(100):
        with make(32, lanes=2) as queue:
            writers = [queue.writer(lane, timeout=0.0) for lane in range(2)]
            delivered, in_hand, reader, died = reads_until_one_dies_at(queue, writers, count)
            mapped, shared = Mapped(queue), lines(queue)
            turn = mapped.words(mapped.geometry.slot_offset(0))[0]
            if not survives:
                reader.close()
                reader = queue.reader(3)
                assert [shared.released(i) for i in range(2)] == shared.load()[0].tolist()
            # What may be overwritten is, before anything else is read.
            ends = [fill_until_full(writer, 100 * i + 12) for i, writer in enumerate(writers)]
            delivered += reader.read().action.tolist()
            assert (shared.load() == reader._cursor.now).all()
            delivered += drain(reader)
            assert [fill_until_full(*at) for at in zip(writers, ends, strict=True)] == [
                released + 16 + 100 * i for i, released in enumerate(map(shared.released, range(2)))
            ]
            delivered += drain(reader)
            reader.close()
            delivered += drain(queue.reader(1))
            missing = set(in_hand) - set(delivered)
            assert missing in (set(), set(in_hand))
            assert bool(missing) == (died and turn == 6 and not survives)
            for i in range(2):
                of_lane = [action for action in delivered if action // 100 == i]
                assert of_lane == sorted(of_lane)
                every = set(range(100 * i, 100 * i + mapped.committed(i) - 1))
                assert Counter(of_lane) == Counter(every - missing)
            outcomes[died, bool(missing)] += 1
        if not died:
            break
    assert outcomes[False, False] == 1
    assert (outcomes[True, True] >= 1) is not survives
    assert outcomes[True, False] >= 1


@pytest.mark.parametrize("durable", [None, mc.Durable(every_s=3600.0)], ids=["plain", "durable"])
def test_an_exception_before_any_instruction_of_a_read_loses_no_row(durable, tmp_path, monkeypatch):
    """Lane 0 gives its rows before the batch is full."""
    patch(monkeypatch, "transitions", check_keeps=lambda directory: None)
    path, base, number = durable and tmp_path / "queue", 10**6, 0
    with mc.TrajectoryQueue.create(SPEC, 32, 2, path=path, durable=durable) as queue, queue.reader(20) as reader:
        first, second = (queue.writer(lane, timeout=0.0) for lane in range(2))
        fill(second, [base])

        def take():
            with contextlib.suppress(mc.NotEnoughData):
                batches.append(reader.read().action.tolist())

        def attack(moment):
            before = reader.state_dict()["cursor"]
            came, _ = at_instruction(take, moment, lambda file: "marlcore/queue" in file, signals=True)
            assert batches or (reader.state_dict()["cursor"] == before).all()
            return came

        for count in itertools.count():
            batches: list[list[int]] = []
            number = fill_until_full(first, number)
            early = attack(count + 1)
            fill(second, range(base + 5 * count + 1, base + 5 * count + 6))
            late = attack(count + 1)
            while not batches:
                take()
            expected = [*range(15 * count, 15 * count + 15), *range(base + 5 * count, base + 5 * count + 5)]
            assert [sorted(batch) for batch in batches] == [expected]
            assert reader.stats.read == 20 * (count + 1)
            reader.commit() if durable else None
            if not early and not late:
                break
    assert count > 50


def test_an_interrupted_read_leaves_nothing_in_idle_lanes():
    """Lane 0 had a row in the interrupted batch, but none in the batches before and after it."""
    for count in range(10):
        with make(48, lanes=3) as queue, queue.writer(0) as first, queue.writer(1) as second, queue.writer(2) as third:
            reader = queue.reader(2)
            fill(second, range(6))
            fill(third, range(2))
            assert (reader.read().index % 3).tolist() == [1, 2]
            fill(first, range(2))
            with contextlib.suppress(KeyboardInterrupt), dies_before(count):
                reader.read()
            fill(third, range(2, 4))
            reader.read()
            assert (lines(queue).load() == reader._cursor.now).all()


def test_the_next_try_gives_the_room_of_an_interrupted_one():
    """It does so although it finds too few rows: writers that wait for room would never add more."""
    for count in range(10):
        with make(8) as queue, queue.writer(timeout=0.0) as writer, queue.reader(3) as reader:
            fill(writer, range(8))
            reader.read()
            with contextlib.suppress(KeyboardInterrupt), dies_before(count):
                reader.read()
            drain(reader)
            assert fill_until_full(writer, 8) == 8 + 6


def test_a_look_that_a_request_for_room_meets_does_not_count():
    """The look may have begun before the request: only two later looks without room are a deadlock."""
    with make(8) as queue, queue.writer(timeout=0.0) as writer:
        fill(writer, range(8))
        looks = partial(lines(queue)._words.add, LOOKS, 1)
        with mock.patch.object(Event, "notify", lambda *arguments: looks()):
            assert fill_until_full(writer, 8) == 8
        for error in (TimeoutError, mc.Deadlocked):
            looks()
            with pytest.raises(error):
                writer.add(8, 8, 0.0)


def test_a_half_written_add_is_never_seen():
    """The writer died after it had overwritten rows and before it committed any; its successor begins an episode."""
    with make(8, when_full="drop_oldest") as queue:
        writer = queue.writer()
        fill(writer, range(8))
        Mapped(queue).counters()[1] = 11
        Mapped(queue).column(0)[:3] = 255
        writer.close()
        with queue.reader(2) as reader:
            assert drain(reader) == [3, 4, 5, 6]
            assert (queue.dropped.tolist(), len(queue)) == ([3], 1)
            with queue.writer() as successor:
                fill(successor, range(8, 13))
                assert drain(reader) == [8, 9, 10, 11]
            assert (queue.dropped.tolist(), queue.skipped.tolist(), len(queue)) == ([3], [1], 1)


def test_a_queue_in_a_file_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "queue"
    with mc.TrajectoryQueue.create(SPEC, 16, path=path) as queue, queue.writer() as writer, queue.reader(2) as reader:
        fill(writer, range(7))
        assert reader.read().action.tolist() == [0, 1]
    with mc.TrajectoryQueue.attach(path, SPEC) as queue, mc.TrajectoryQueue.attach(queue.handle).reader(2) as reader:
        assert "capacity=16 lanes=1" in repr(queue) and drain(reader) == [2, 3, 4, 5]
        queue.unlink()


def test_a_forked_child_may_not_write_and_a_closed_queue_has_neither_end():
    queue = make()
    writer, reader = queue.writer(), queue.reader(2)
    uses = [lambda: writer.add(0, 0, 0.0), reader.read, queue.writer, lambda: queue.reader(2), queue.__len__,
            lambda: queue.dropped, lambda: queue.skipped]  # fmt: skip
    fill(writer, range(3))
    assert stale_in_a_fork(uses[0])
    check_refused(lambda: queue.reader(2), mc.LaneBusy, "the queue has a living reader")
    assert reader.read().action.tolist() == [0, 1]
    queue.close()
    for use in uses:
        check_refused(use, mc.ClosedError, "closed")


def test_rows_that_follow_nothing_are_read_singly():
    spec = mc.TransitionSpec(mc.Field((), "int64"), mc.Field((), "int64"), next_obs=True)
    with make(16, spec=spec) as queue, queue.writer() as writer:
        for i in range(4):
            writer.add(i, i, 0.0, next_obs=i + 50)
        batch = queue.reader(4).read()
        assert (batch.obs.tolist(), batch.next_obs.tolist()) == ([0, 1, 2, 3], [50, 51, 52, 53])


@pytest.mark.parametrize("when_full", [None, "drop", ["wait"]])
def test_a_damaged_description_is_refused(when_full):
    with make() as queue:
        made = Mapped(queue).segment
        bad = Segment.create("bad", made.description | {"when_full": when_full}, len(made.body))
        check_refused(lambda: mc.TrajectoryQueue(bad), mc.SegmentCorrupt, "expected a queue, got another kind")


@pytest.mark.parametrize(
    ("word", "value"),
    [(0, 3), (0, -1), (1, 7), (1, -1), (1, 2**62), (2, 3), (2, -1), (3, 3), (3, 2**63 - 1), (4, 3), (4, -1)],
)
def test_a_readers_damaged_counters_are_refused(word, value):
    """Six rows were written and two read; a lane's words: released, then twice position, passed, dropped, skipped."""
    with make(8) as queue, queue.writer() as writer:
        fill(writer, range(6))
        with queue.reader(2) as reader:
            reader.read()
        mapped = Mapped(queue)
        words = mapped.words(mapped.geometry.slot_offset(1))
        whole = words.copy()
        assert whole[0] == whole[1 + 4] == whole[2 + 4] == 2
        words[word] = value
        if word:
            words[word + 4] = value
        check_refused(lambda: queue.reader(2), mc.SegmentCorrupt, "the reader's counters contradict one another")
        words[:] = whole
        with queue.reader(2) as reader:
            assert drain(reader) == [2, 3]


@pytest.mark.parametrize(
    ("slot", "word", "value"),
    [(1, 0, 9), (1, 0, -1), (1, 0, 2**62), (0, 1, -1), (0, 1, 8), (-1, 0, 2**61)],
    ids=["room ahead of the rows", "room below none", "room beyond tickets", "adds below none",
         "adds of a whole lane", "rows ahead of the room"],
)  # fmt: skip
def test_damaged_counters_stop_a_writer_and_do_not_make_it_wait(slot, word, value):
    with make(8) as queue, queue.writer() as writer, queue.reader(2):
        fill(writer, range(8))
        mapped = Mapped(queue)
        words = mapped.words(mapped.geometry.slot_offset(slot)) if slot >= 0 else mapped.counters()
        words[word] = value
        if slot < 0:
            words[1] = value
        with pytest.raises(mc.SegmentCorrupt, match=r"of lane 0 and of its reader contradict one another$"):
            writer.add(8, 8, 0.0)


def test_a_held_up_reader_stays_inside_its_lane():
    """The reader is stopped between its loads of a lane's two counters, which change meanwhile."""
    with make(16, when_full="drop_oldest") as queue, queue.writer() as writer, queue.reader(2) as reader:
        fill(writer, range(16))
        counters = Mapped(queue).counters()
        counters[:] = 2**40, 2**40 + 16
        check_refused(reader.read, mc.NotEnoughData, "got 0")
        counters[:] = 16
        assert reader.read().index.tolist() == [0, 1]


# Processes: writers flat out in others, and a reader that knows what each of them writes

WRITE = """
    import sys
    from marlcore import TrajectoryQueue
    from marlcore.testing.rows import filled

    queue = TrajectoryQueue.attach(sys.argv[1])
    lane, rows = map(int, sys.argv[2:])
    words = queue.spec.obs.shape[0]
    with queue.writer(lane) as writer:
        print("ready", flush=True)
        refused = number = 0
        while number != rows:
            episode, place = divmod(number, 7)
            ends, obs = place == 6, filled(words, lane, number, episode)
            if ends and episode % 2:
                final = filled(words, lane, number + 1, episode)
                ticket = writer.add(obs, number, 1.0, truncated=True, final_obs=final)
            else:
                ticket = writer.add(obs, number, 1.0, terminated=ends)
            refused += ticket < 0
            number += 1
        print(refused, flush=True)
"""
FRAMES = mc.TransitionSpec(mc.Field((64,), "uint64"), mc.Field((), "int64"))
LARGE = mc.TransitionSpec(mc.Field((1024,), "uint64"), mc.Field((), "int64"))  # copied slowly enough to be torn
ROWS = 14 * 1024  # whole pairs of episodes, so that the last row can be delivered


class Ledger:
    """Notes every delivered transition, and counts faults.

    Attributes:
        numbers: of each lane, the transitions in the order in which they came.
        faults: transitions that are torn, followed by another episode's row, or delivered twice or late.
    """

    def __init__(self, lanes: int):
        self.numbers: list[list[int]] = [[] for _ in range(lanes)]
        self.faults = Counter()

    def enter(self, batch) -> None:
        obs, goes_on = batch.obs.astype(np.int64), ~batch.terminated
        lane, number, episode = obs[:, :3].T
        after = batch.next_obs.astype(np.int64)[goes_on]
        follows = np.stack([lane, number + 1, episode], 1)[goes_on]
        ended = number % 7 == 6
        self.faults["torn"] += int(torn(batch.obs, 3).sum() + torn(batch.next_obs[goes_on], 3).sum())
        self.faults["stale"] += int(((batch.action != number) | (batch.index % len(self.numbers) != lane)).sum())
        self.faults["across"] += int(
            (after[:, :3] != follows).any(1).sum()
            + (batch.terminated != (ended & (episode % 2 == 0))).sum()
            + (batch.truncated != (ended & (episode % 2 == 1))).sum()
        )
        for of, came in zip(batch.index % len(self.numbers), number.tolist(), strict=True):
            self.faults["twice or late"] += bool(self.numbers[of]) and self.numbers[of][-1] >= came
            self.numbers[of].append(came)


def start(program, queue, lane, rows=ROWS, before=""):
    writer = program(before, WRITE, args=[queue.handle.path, lane, rows])
    assert writer.line() == "ready"
    return writer


@pytest.mark.long
def test_the_ledger_sees_lost_rows_and_torn_ones(program):
    """These are the controls of the test below: a writer without its gate, and a reader without validation."""
    with make(64, spec=LARGE) as queue:
        ungated = start(program, queue, 0, rows=-1, before="from seams import without_gates; without_gates()")
        ledger = Ledger(1)
        [numbers] = ledger.numbers
        with queue.reader(16) as reader:
            while not numbers or numbers[-1] + 1 == len(numbers):
                ledger.enter(reader.read(timeout=600.0))
        assert not ledger.faults["torn"]
        with trusting(), queue.reader(16) as reader:
            while not ledger.faults["torn"]:
                ledger.enter(reader.read(timeout=600.0))
        ungated.kill()


@pytest.mark.long
@pytest.mark.parametrize("when_full", MODES)
def test_every_row_that_is_not_read_is_counted(program, when_full):
    """In each lane, written == read + dropped + skipped, to the row."""
    lanes, rows = 2, 2 * ROWS
    with make(lanes * 64, lanes, when_full, FRAMES) as queue, queue.reader(8) as reader:
        writers = [start(program, queue, lane, rows=rows) for lane in range(lanes)]
        ledger, before, mapped = Ledger(lanes), np.zeros(lanes, np.int64), Mapped(queue)
        while True:
            done = mapped.committed(0), mapped.committed(1)
            try:
                ledger.enter(reader.read())
            except mc.NotEnoughData:
                ended = not any(writer.running for writer in writers)
                if ended and done == (mapped.committed(0), mapped.committed(1)):
                    break
            now = queue.dropped
            assert (now >= before).all()
            before = now
        refused = [int(writer.finish()) for writer in writers]
        dropped, skipped, delivered = queue.dropped, queue.skipped, np.array([*map(len, ledger.numbers)])
        assert not +ledger.faults
        assert refused == (dropped.tolist() if when_full == "drop_newest" else [0, 0])
        assert (dropped.sum() > 0) == (when_full != "wait")
        assert when_full == "drop_newest" or reader.stats.dropped == dropped.sum()
        assert (delivered + dropped + skipped + held(queue)).tolist() == [rows] * lanes
        assert reader.stats.read == delivered.sum() and (when_full != "wait" or delivered.sum() == lanes * rows)


def test_the_highest_counters_are_counted_on_from():
    """A damaged counter is wrong by itself; it ends neither a reader's batch nor a writer's add."""
    with make(8, when_full="drop_newest") as queue, queue.writer() as writer:
        mapped = Mapped(queue)
        mapped.words(mapped.geometry.counters_offset(0))[2] = 2**63 - 1  # refused
        turn = mapped.words(mapped.geometry.slot_offset(0))
        turn[0] = -2
        with queue.reader(2) as reader:
            fill(writer, range(20))
            turn[0] = 2**63 - 2
            assert [reader.read().action.tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
            assert turn[0] == -(2**63) + 1
        with queue.reader(1) as successor:
            assert successor.read().action.tolist() == [6]


def test_a_newest_row_that_counts_too_much_is_refused():
    with make(8) as queue, queue.writer() as writer:
        fill(writer, range(3))
        Mapped(queue).column(0)[2].view(np.uint32)[0] = 9
        check_refused(lambda: len(queue), mc.SegmentCorrupt, "counters contradict one another")
        Mapped(queue).counters()[:] = 2**62
        check_refused(lambda: Mapped(queue).lanes.committed(0), mc.SegmentCorrupt, "counters contradict one another")


@pytest.mark.parametrize("read", [0, 6])
def test_a_reader_waits_behind_rows_called_overwritten(read):
    """A copy of the unread rows would never be valid, so a reader that copied would repeat until it gives up."""
    with make(16, lanes=2) as queue, queue.writer(0) as damaged, queue.writer(1) as sound, queue.reader(2) as reader:
        fill(damaged, range(6), terminated=True)
        assert read == 0 or drain(reader) == list(range(6))
        Mapped(queue).counters()[1] = 100  # reserved
        check_refused(reader.read, mc.NotEnoughData, "expected 2 transitions that are whole, got 0")
        check_refused(lambda: reader.read(timeout=0.01), TimeoutError, "got 0")
        fill(sound, range(7))
        assert drain(reader) == list(range(6))
        assert reader.stats.lapped == 0
