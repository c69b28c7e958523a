"""Rows between two replays: each row arrives once, unchanged, in order; lost rows are counted and leave a seam."""

import threading
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from functools import partial

import numpy as np
import pytest
from refused import check_refused
from relayed import AGE, FRAMES, SMALL, STATES, BadLink, Home, add_some, columns_of, heads, raw, row
from tiers import long_but

from marlcore import Field, RateLimiter, ReplayBuffer, TrajectoryQueue, TransitionSpec
from marlcore.cluster import Bookings, DirectLink, Ingest, Leases, Relay
from marlcore.cluster.message import seal
from marlcore.cluster.nodes.ingests import make_ingests
from marlcore.cluster.ray_actors import IngestActor
from marlcore.cluster.relay import ANSWER_S
from marlcore.errors import (
    ClosedError,
    Fenced,
    LaneBusy,
    LayoutMismatch,
    LinkLost,
    MarlcoreError,
    NotEnoughData,
    SegmentCorrupt,
)

NEXT_OBS = TransitionSpec(Field((3,), "int64"), Field((), "int64"), next_obs=True)


@pytest.fixture
def home():
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(closing(Home(*args, **options)))


@pytest.fixture
def source():
    with ExitStack() as stack:
        yield lambda spec=SMALL, capacity=1000, lanes=2, kind=ReplayBuffer: stack.enter_context(
            kind.create(spec, capacity, lanes, name="node")
        )


def patient(relay: Relay) -> None:
    """Polls until the ingest has every row, over a link that fails."""
    relay._hurry = True
    while True:
        try:
            relay.poll()
            relay._rows.look()
            if (relay._acked >= relay._rows.hi).all() and not relay._flight:
                return
        except LinkLost:
            relay._rewind()


@pytest.mark.parametrize("compress", [None, "lz4"])
@pytest.mark.parametrize("spec", [SMALL, FRAMES, STATES], ids=["small", "frames", "states"])
def test_rows_arrive_as_they_were_written(spec, compress, home, source) -> None:
    """The lanes at home equal those at the node byte for byte, in heads and all columns."""
    here, there = home(spec), source(spec)
    with here.relay(there, compress=compress) as relay:
        written = [0, 0]
        for part in range(12):
            for lane in range(2):
                written[lane] = add_some(there, lane, written[lane], 9 + part)
            assert relay.drain(60.0)
    for lane in range(2):
        for ours, theirs in zip(columns_of(here.target, lane), columns_of(there, lane), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert relay.stats.rows == here.ingest.stats.rows == sum(len(raw(there, lane)) for lane in range(2))
    assert relay.stats.gaps == here.ingest.stats.gaps == here.bookings.lost == 0


@pytest.mark.parametrize("seed", long_but(range(2), range(8)))
def test_bad_links_neither_double_nor_lose_a_row(seed, home, source) -> None:
    """Messages are lost, late, doubled and out of order, and ingests are replaced; any lanes may be a seat's."""
    lanes = [3, 1] if seed % 2 else [0, 1]
    here, there = home(STATES, capacity=500 * (1 + max(lanes)), seats=(lanes,)), source(STATES)
    with here.relay(there, link=BadLink(here, seed)) as relay:
        written = 0
        for part in range(25):
            for lane in range(2):
                add_some(there, lane, written, 5 + part % 7)
            written += 5 + part % 7
            patient(relay)
        assert relay.stats.rewinds
    for lane in range(2):
        for ours, theirs in zip(columns_of(here.target, lanes[lane]), columns_of(there, lane), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert here.bookings.lost == 0


@pytest.mark.parametrize("spec", [SMALL, STATES], ids=["small", "states"])
def test_lapped_rows_are_counted_and_become_a_seam(spec, home, source) -> None:
    """Ages begin anew behind each gap; with recurrent states, the first row behind a gap begins an episode."""
    here, there, whole = home(spec, capacity=4000), source(spec, capacity=80), source(spec, capacity=4000)
    total = 0
    with here.relay(there) as relay:
        for part in range(6):
            for lane in range(2):
                for replay in (there, whole):
                    add_some(replay, lane, total, 25 + 40 * (part % 2))
            total += 25 + 40 * (part % 2)
            relay.drain(0.0 if spec is STATES else 60.0)
    rows = [there._mapped.native.committed(lane) for lane in range(2)]
    held = [heads(here.target, lane) for lane in range(2)]
    gaps = [here.bookings.load(lane).lost for lane in range(2)]
    assert all(gaps) and sum(gaps) == here.bookings.lost == relay.stats.gaps == here.ingest.stats.gaps
    for lane in range(2):
        actions = raw(here.target, lane)
        assert len(actions) + gaps[lane] <= rows[lane]
        assert spec is STATES or len(actions) + gaps[lane] == rows[lane]
        rewards = held[lane]["reward"].astype(int)
        boundary = (held[lane]["place"] >> 24) & 4 > 0
        transitions = rewards[~boundary]
        jumps = np.flatnonzero(np.diff(transitions) != 1) + 1
        ages = (held[lane]["place"] & AGE)[~boundary]
        assert len(jumps) and (ages[jumps] == 0).all()
        np.testing.assert_array_equal(held[lane]["ordinal"][~boundary], np.arange(len(transitions)))
        if spec is STATES:
            written = heads(whole, lane)
            written = written[(written["place"] >> 24) & 4 == 0]
            np.testing.assert_array_equal(ages, (written["place"] & AGE)[transitions])


def test_more_rows_than_a_lane_pass_through_without_a_seam(home, source) -> None:
    here, there = home(capacity=20, seats=(range(1),)), source(lanes=1, capacity=200)
    with here.relay(there) as relay, there.writer() as writer:
        for number in range(100):
            writer.add(**row(SMALL, number))
        assert relay.drain(60.0)
    np.testing.assert_array_equal(heads(here.target, 0)["place"] & AGE, np.arange(80, 100))


def test_a_message_whose_predecessor_is_missing_is_refused(home, source) -> None:
    """Rows that the sender still has are no gap; both messages are taken in their order."""
    here, there = home(), source()
    kept: list[np.ndarray] = []
    link = DirectLink(here.ingest)
    link.send = lambda message: kept.append(message.copy()) or Future()
    with here.relay(there, link=link) as relay:
        for part in range(2):
            add_some(there, 0, 10 * part, 10)
            relay._hurry = True
            assert relay.poll()
    assert not here.ingest.put(kept[1]) and not here.ingest.stats.rows
    assert here.ingest.put(kept[0]) and here.ingest.put(kept[1])
    np.testing.assert_array_equal(raw(here.target, 0), raw(there, 0))
    assert here.bookings.lost == 0


def test_a_relays_successor_continues_where_it_stopped(home, source) -> None:
    here, there = home(), source()
    sent = 0
    for part in range(4):
        add_some(there, 0, 10 * part, 10)
        with here.relay(there) as relay:
            assert relay.drain(60.0)
        sent += relay.stats.rows
    assert sent == len(raw(there, 0)) == here.ingest.stats.rows
    np.testing.assert_array_equal(raw(there, 0), raw(here.target, 0))
    assert here.ingest.stats.duplicates == 0


def test_an_epoch_that_lost_its_seat_is_refused(home, source) -> None:
    """The rows of the next epoch, whose tickets begin anew, follow those of the fenced epoch after a seam."""
    here, zombie, heir = home(seats=(range(2), range(2, 4))), source(), source()
    add_some(zombie, 0, 0, 10)
    add_some(heir, 0, 100, 10)
    with here.relay(zombie, epoch=1) as old, here.relay(heir, epoch=2) as new:
        assert old.drain(60.0)
        before = len(raw(here.target, 0))
        add_some(zombie, 0, 10, 10)
        assert new.drain(60.0)
        for call in (partial(old.drain, 60.0), partial(here.ingest.open, 0, 1, 2, SMALL.to_dict())):
            check_refused(call, Fenced, "seat 0: expected the epoch 2, got 1")
    assert (heads(here.target, 0)["place"] & AGE)[before] == 0
    np.testing.assert_array_equal(raw(here.target, 0)[before:, 16:], raw(heir, 0)[:, 16:])
    assert here.ingest.stats.refused == 2
    with Bookings.attach(here.bookings.handle) as again:
        assert again.load(1).epoch == 2
    here.replace()
    check_refused(partial(here.ingest.open, 0, 1, 2, SMALL.to_dict()), Fenced, "seat 0: expected the epoch 2, got 1")


def test_a_lost_lease_refuses_rows_before_its_heir_has_come(home, source) -> None:
    held = {(0, 1)}
    here, there = home(holds=lambda seat, epoch: (seat, epoch) in held), source()
    with here.relay(there) as relay:
        add_some(there, 0, 0, 10)
        assert relay.drain(60.0)
        rows = here.ingest.stats.rows
        held.clear()
        add_some(there, 0, 10, 10)
        check_refused(partial(relay.drain, 60.0), Fenced, "seat 0: epoch 1 has lost its lease")
    assert here.ingest.stats.rows == rows == len(raw(here.target, 0))


def test_a_queue_at_home_makes_the_nodes_writers_wait(home) -> None:
    """Both queues wait, so no row is dropped between a writer that never rests and a slow reader."""
    with TrajectoryQueue.create(SMALL, 40, 1, name="node") as there:
        target = TrajectoryQueue.create(SMALL, 60, 1, max_unread=20, name="home")
        here = home(seats=(range(1),), target=target, wait_seconds=0.0)
        with target.reader(5) as reader, here.relay(there) as relay, there.writer(timeout=0.0) as writer:
            read: list[int] = []
            number = 0
            while len(read) < 500:
                while True:
                    try:
                        writer.add(**row(SMALL, number))
                    except TimeoutError:
                        break
                    number += 1
                relay.drain(0.0)
                assert len(target) <= 20 + 10  # while it waits for more, its reader lets more in
                read += reader.read(timeout=0.0).action.tolist() if len(target) > 5 else []
        assert read == [*range(len(read))]
        assert (target.dropped == 0).all() and here.bookings.lost == 0 and relay.stats.rewinds


@pytest.fixture
def queues(home, source):
    """Returns a home whose queue holds 20 rows a lane, and a node's queue that holds 100."""
    target = TrajectoryQueue.create(SMALL, 40, 2, name="home")
    return home(target=target, wait_seconds=0.0), source(capacity=200, kind=TrajectoryQueue)


def test_a_full_lane_does_not_keep_rows_from_another(queues) -> None:
    here, there = queues
    add_some(there, 0, 0, 20)
    add_some(there, 1, 0, 3)
    with here.relay(there) as relay:
        assert not relay.drain(0.0)
        assert len(raw(here.target, 1)) == len(raw(there, 1))


def test_a_batch_comes_through_one_lane_that_does_not_hold_it(queues) -> None:
    """The home's reader empties the lane for the ingest, as is needed if one agent of a policy is left."""
    here, there = queues
    add_some(there, 0, 0, 60)
    with here.relay(there) as relay, here.target.reader(50) as reader:
        for _ in range(10):
            relay.drain(0.0)
            with suppress(NotEnoughData):
                batch = reader.read()
                break
    assert batch.action.tolist() == [*range(50)]


def test_a_limiter_lets_in_what_its_samplers_allow(home, source) -> None:
    limiter = RateLimiter(samples_per_insert=1.0, min_size=10, tolerance=20)
    target = ReplayBuffer.create(SMALL, 1000, 1, limiter=limiter, name="home")
    here, there = home(target=target, seats=(range(1),), wait_seconds=0.0), source(lanes=1)
    with here.relay(there) as relay, there.writer() as writer:
        sampler = target.sampler(8, seed=0)
        for number in range(200):
            writer.add(**row(SMALL, number))
        assert not relay.drain(0.0)
        assert len(target) == 30
        sampler.sample()
        assert not relay.drain(0.0)
        assert len(target) == 38
        while len(target) < 200:
            sampler.sample()
            relay.drain(0.0)
    np.testing.assert_array_equal(raw(target, 0), raw(there, 0))


def test_writers_and_a_relays_thread_work_together(home, source) -> None:
    here, there = home(capacity=40_000), source(capacity=4000)
    with here.relay(there, flush_seconds=0.02).start() as relay:
        workers = [threading.Thread(target=add_some, args=(there, lane, 0, 10_000)) for lane in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert relay.drain(60.0)
    for lane in range(2):
        transitions = heads(here.target, lane)
        assert len(transitions) + here.bookings.load(lane).lost == there._mapped.native.committed(lane)
        np.testing.assert_array_equal(raw(here.target, lane)[-100:, 16:], raw(there, lane)[-100:, 16:])
    assert relay.stats.delay(99) >= relay.stats.delay(50) > 0


def test_a_thread_tells_what_ended_it(home, source) -> None:
    here, there = home(), source()
    here.ingest.open(0, 7, 2, SMALL.to_dict())
    with here.relay(there, epoch=3).start() as relay, pytest.raises(Fenced):
        relay.drain(60.0)
    assert isinstance(relay.error, Fenced)


def test_few_bytes_wait_a_tenth_of_the_flush_and_many_not_at_all(home, source) -> None:
    now = [0.0]
    here, there = home(FRAMES, capacity=100_000, seats=(range(1),)), source(FRAMES, capacity=100_000, lanes=1)
    with here.relay(there, clock=lambda: now[0], flush_seconds=0.2) as relay, there.writer() as writer:

        def write(rows: int) -> None:
            writer.add_batch(np.zeros((rows, 45, 9), np.uint8), np.arange(rows), np.zeros(rows), n=np.zeros(rows))

        def sent_after(seconds: float) -> bool:
            now[0] += seconds
            return relay.poll()

        write(10)
        assert [sent_after(0.0), sent_after(0.019), sent_after(0.002)] == [False, False, True]
        write(1000)  # 0.45 MB
        assert [sent_after(0.0), sent_after(0.19), sent_after(0.02)] == [False, False, True]
        write(40_000)  # 17.8 MB
        assert sent_after(0.0)
        write(78_000)  # 34.7 MB: one message takes 32 MiB of it
        assert [sent_after(0.0), sent_after(0.0), sent_after(0.3)] == [True, False, True]
    assert relay.stats.messages == 5


@pytest.mark.parametrize("arrives", [False, True], ids=["message lost", "answer lost"])
def test_a_message_without_an_answer_is_sent_again(home, source, arrives) -> None:
    """A transport may lose a message or an answer, and say nothing of it."""
    now, here, there = [0.0], home(), source()
    direct = DirectLink(here.ingest)

    class Silent(DirectLink):
        def send(self, message: np.ndarray) -> Future[bool]:
            if arrives:
                direct.send(message)
            return Future()

    link = Silent(here.ingest)
    with here.relay(there, link, clock=lambda: now[0]) as relay, there.writer() as writer:
        writer.add(**row(SMALL, 0))
        relay.poll()
        now[0] += 1.0
        assert relay.poll() and relay.stats.in_flight == 1
        link.send = direct.send
        now[0] += ANSWER_S
        assert not relay.poll()
        now[0] += 1.0
        with pytest.raises(LinkLost, match="the ingest cannot be reached: no answer for 120 s"):
            relay.poll()
        relay._rewind()  # as the thread does
        writer.add(**row(SMALL, 1))
        relay.poll()
        now[0] += 1.0
        relay.poll()
        assert here.ingest.stats.rows == 2


def test_rows_that_fill_half_of_a_lane_do_not_wait(home, source) -> None:
    """Else a fast writer would lap rows that wait for more bytes."""
    here, there = home(), source(capacity=200)
    with here.relay(there, clock=lambda: 0.0) as relay, there.writer(lane=1) as writer:
        for number in range(50):
            assert not relay.poll()
            writer.add(**row(SMALL, number))
        assert relay.poll()
    assert here.ingest.stats.rows == 50


REFUSED = {
    "lanes": lambda here, there: here.ingest.open(0, 1, 3, SMALL.to_dict()),
    "seat": lambda here, there: here.ingest.open(2, 1, 2, SMALL.to_dict()),
    "epoch": lambda here, there: Relay(there, DirectLink(here.ingest), epoch=0),
    "flush_seconds": lambda here, there: Relay(there, DirectLink(here.ingest), flush_seconds=0),
    "compress": lambda here, there: Relay(there, DirectLink(here.ingest), compress="zip"),
    "seats": lambda here, there: Ingest(there, here.bookings, [range(2), range(1, 3)]),
    "bookings": lambda here, there: Ingest(there, Bookings.create(3), [range(1)]),
    "wait_seconds": lambda here, there: Ingest(there, here.bookings, [range(1)], wait_seconds=-1.0),
    "spec obs": lambda here, there: here.ingest.open(0, 1, 2, FRAMES.to_dict()),
    "when_full": lambda here, there: Relay(TrajectoryQueue.create(SMALL, 9, when_full="drop_oldest"), None),
    "message": lambda here, there: here.ingest.put(np.zeros(9, np.uint8)),
}


def test_bad_input_is_refused_in_one_line(home, source) -> None:
    here, there = home(), source()
    for field, call in REFUSED.items():
        with pytest.raises(
            (ValueError, TypeError, LayoutMismatch), match=rf"^(seat 0: )?{field}.*: expected .*got.*\Z"
        ):
            call(here, there)


def test_malformed_messages_are_refused_and_change_nothing(home, source) -> None:
    here, there = home(), source()
    here.ingest.open(0, 1, 2, SMALL.to_dict())
    spans = np.array([[0, 0, 0, 2], [1, 0, 0, 1]])
    nbytes = 3 * there._mapped.layout.record_bytes

    def message(spans, nbytes=nbytes, **kwargs):
        return seal(np.zeros(4096, np.uint8), 0, 1, np.asarray(spans), nbytes, **kwargs)

    for bad in (
        message(spans[::-1]),
        message(np.add(spans, [2, 0, 0, 0])),
        message(np.subtract(spans, [1, 0, 0, 0])),
        message(spans, nbytes + 8),
        message(spans, nbytes - 8),
        message(np.multiply(spans, [1, 1, 1, -1])),
        message(np.multiply(spans, [1, 1, 1, 1 << 60])),
        message(np.add(spans, [0, 1, 0, 0])),
        message(np.add(spans, [0, 0, 1 << 62, 0])),
        message(np.subtract(spans, [0, 1, 1, 0])),
        message(spans)[:-8],
        message(spans)[:70],
        message(spans).view(np.int64),
    ):
        check_refused(partial(here.ingest.put, bad), ValueError, "expected")
    assert here.ingest.put(message(spans))
    assert [len(raw(here.target, lane)) for lane in range(2)] == [2, 1]


def test_two_ingests_of_a_lane_are_refused(home) -> None:
    here = home()
    check_refused(lambda: Ingest(here.target, here.bookings, [range(1)]), LaneBusy, "lane 0 has a living writer")
    here.ingest.close()
    check_refused(partial(here.ingest.open, 0, 1, 2, SMALL.to_dict()), ClosedError, "closed")
    Ingest(here.target, here.bookings, [range(1)]).close()


def test_a_restarted_actor_makes_its_ingests_once_the_old_process_has_ended(home) -> None:
    """Ray restarts the actor before the kernel has freed the lanes; what the first try took is free for the second."""
    homes = {name: home(seats=(range(1),)) for name in ("free", "busy")}
    homes["free"].ingest.close()
    targets = {name: (ReplayBuffer, at.target.handle, at.bookings.handle, at.seats) for name, at in homes.items()}
    with Leases.create(1) as leases:
        epoch, failures = leases.grant(0), [MarlcoreError("expected a free file descriptor"), SegmentCorrupt("damaged")]

        def make():
            if failures:
                raise failures.pop(0)
            return make_ingests(targets, leases.handle, False)

        actor = IngestActor(make)
        call = partial(actor.open, "free", 0, epoch, 1, SMALL.to_dict())
        check_refused(call, LinkLost, "the ingest is not ready: expected a free file descriptor")
        check_refused(call, SegmentCorrupt, "damaged")
        check_refused(call, LinkLost, "lane 0 has a living writer")
        check_refused(actor.stats, LaneBusy, "lane 0 has a living writer")
        homes["busy"].ingest.close()
        assert call() == 0 and [*actor.stats()] == ["free", "busy"]
        for ingest in actor._ingests_made().values():
            ingest.close()


@pytest.mark.parametrize("waits", [False, True], ids=["replay", "queue"])
def test_a_relay_that_moves_sends_the_next_home_what_it_may(waits, home) -> None:
    """A replay's relay sends all rows that its lanes hold; a queue's relay sends the rows that no home has consumed."""
    make = TrajectoryQueue if waits else ReplayBuffer
    options = {"max_unread": 40} if waits else {}
    first, second = home(), home()
    with make.create(SMALL, 100, 1, name="node", **options) as node, first.relay(node) as relay:
        number = add_some(node, 0, 0, 20)
        assert relay.drain(0.0)
        relay.move(DirectLink(second.ingest))
        add_some(node, 0, number, 10)
        assert relay.drain(0.0)
        kept, came = raw(first.target, 0), heads(second.target, 0)
        rows = len(raw(node, 0))
        assert len(came) == (rows - len(kept) if waits else rows)
        assert relay.stats.rows == rows and relay.stats.gaps == 0


@pytest.mark.parametrize("waits", [False, True], ids=["replay", "queue"])
@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("spec", [SMALL, STATES], ids=["small", "states"])
def test_a_home_that_was_saved_gets_no_row_twice(waits, answered, spec, home, tmp_path) -> None:
    """The next home holds rows of the first, with new bookings: a loaded save, or a queue that outlives its ingest.

    Rows that were sent after the save are lost, rows that were written after that arrive behind a seam.
    """
    make, options = (TrajectoryQueue, {"max_unread": 1000}) if waits else (ReplayBuffer, {})
    first = home(spec, target=make.create(spec, 1000, 2, name="home"))
    link = DirectLink(first.ingest)
    with make.create(spec, 1000, 2, name="node", **options) as node, first.relay(node, link) as relay:
        number = add_some(node, 0, 0, 20)
        assert relay.drain(0.0)
        if not waits:
            first.target.save(tmp_path / "saved")
        send, link.send = link.send, lambda message: send(message) if answered else (send(message), Future())[1]
        number = add_some(node, 0, number, 20)
        assert relay.drain(0.0) == answered
        first.ingest.close()
        target = first.target if waits else ReplayBuffer.load(tmp_path / "saved")
        held, sent = raw(target, 0), len(raw(node, 0))
        second = home(spec, target=target)
        relay.move(DirectLink(second.ingest))
        assert relay.drain(0.0) and len(raw(target, 0)) == len(held)
        second.replace()
        relay.move(DirectLink(second.ingest))  # before the second home has taken a row
        add_some(node, 0, number, 20)
        add_some(node, 1, 0, 20)
        assert relay.drain(0.0)
        came, made = heads(target, 0)[len(held) :], heads(node, 0)[sent:]
        begun = int(np.argmax(made["place"] & AGE == 0)) if spec is STATES else 0
        np.testing.assert_array_equal(came["reward"], made["reward"][begun:])
        assert came["place"][0] & AGE == 0 and relay.stats.gaps == begun
        np.testing.assert_array_equal(raw(target, 1), raw(node, 1))
