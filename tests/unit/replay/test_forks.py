"""Forks: a child's first use of a sampler, a reader or a replay attaches it anew, and draws are the child's own."""

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest
from mapped import Mapped
from meanwhile import Rang
from seams import patch
from victims import fork, reap

import marlcore as mc
from marlcore.lazy import is_installed
from marlcore.memory import child_number, guard
from marlcore.memory.native import lib

SPEC = mc.TransitionSpec(mc.Field(), mc.Field((), "int64"))


def write(replay: mc.ReplayBuffer | mc.TrajectoryQueue, rows: int, first: int = 0, lane: int = 0) -> None:
    with replay.writer(lane) as writer:
        for number in range(first, first + rows):
            writer.add(float(number), number, 0.0, terminated=number % 5 == 4)


@pytest.fixture
def replay() -> Iterator[mc.ReplayBuffer]:
    with mc.ReplayBuffer.create(SPEC, 400, lanes=2) as made:
        write(made, 100)
        yield made


def in_a_fork(child: Callable[[], object]) -> bool:
    """Whether a forked child does this without an error."""
    return reap(fork(lambda: (child(), None)[1])) == 0


@contextmanager
def forked(child: Callable[[socket.socket], object]) -> Iterator[socket.socket]:
    """Runs a forked child beside the block, connected with it; the child must do its work without an error."""
    ours, theirs = socket.socketpair()

    def work() -> None:
        ours.close()  # so that either end hears of the other's death
        child(theirs)

    pid = fork(work)
    theirs.close()
    try:
        with ours:
            yield ours
    finally:
        code = reap(pid)
    assert code == 0


SAMPLERS: dict[str, Callable[[mc.ReplayBuffer], Any]] = {
    "uniform": lambda replay: replay.sampler(8, seed=0),
    "prioritized": lambda replay: replay.sampler(8, seed=0, prioritized=mc.Prioritized()),
    "mixture": lambda replay: mc.Mixture([replay, replay], [0.5, 0.5], 8, seed=0),
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_forked_sampler_sees_what_is_written_later_by_either_side(replay, kind):
    sampler = SAMPLERS[kind](replay)
    sampler.sample()

    def child(parent: socket.socket) -> None:
        assert parent.recv(1) == b"w"
        sampler.clear()
        assert not sampler.can_sample()
        write(replay, 50, 1000, lane=1)
        batch = sampler.sample()
        assert (batch.obs >= 1000).all() and (batch.obs == batch.action).all()
        if kind == "prioritized":
            sampler.update_priorities(batch.index, np.ones(8))

    with forked(child) as connection:
        write(replay, 100, 200)
        connection.send(b"w")
    assert len(replay) == 250
    assert (sampler.sample().obs < 1200).all()


def first_draw_of_a_child(sampler: Any) -> tuple[int, ...]:
    with forked(lambda parent: parent.send(sampler.sample().index.tobytes())) as connection:
        return tuple(np.frombuffer(connection.recv(4096), np.int64).tolist())


def test_children_draw_other_rows_than_the_parent_and_each_other(replay):
    sampler, twin = replay.sampler(32, seed=7), replay.sampler(32, seed=7)
    drawn = {first_draw_of_a_child(sampler) for _ in range(3)}
    own = sampler.sample().index.tolist()
    assert len(drawn | {tuple(own)}) == 4
    assert own == twin.sample().index.tolist(), "the parent's own draws do not change"


def test_a_writer_a_publisher_and_a_prefetch_stay_the_parents(replay):
    writer, vector, prefetch = replay.writer(), replay.vector_writer([1]), mc.Prefetch(replay.sampler(8))
    rows = replay.rows_reader()
    limited = mc.ReplayBuffer.create(SPEC, 100, limiter=mc.RateLimiter(1.0, 1, 8.0))
    gated, end = limited.writer(timeout=0.0), limited.sampler(4)
    tree = {"w": np.zeros(3)}
    store = mc.ParameterStore.create(tree)
    publisher = store.publisher(tree)

    def child() -> None:
        assert len(replay) == 100 and len(limited) == 0 and store.version == 0  # which attaches to each
        for use in (
            lambda: writer.add(0.0, 0, 0.0), lambda: writer.end_episode(final_obs=0.0),
            lambda: vector.add([0.0], [0], [0.0]), lambda: gated.add(0.0, 0, 0.0),
            publisher.publish, prefetch.sample,
        ):  # fmt: skip
            with pytest.raises(mc.StaleHandle):
                use()
        with pytest.raises(mc.LaneBusy):
            replay.writer()

    assert in_a_fork(child)
    assert writer.add(0.0, 0, 0.0) == 100 and publisher.publish() == 1 and gated.add(0.0, 0, 0.0) == 0
    assert rows.row_bytes and end.batch_size == 4
    prefetch.close(), store.close(), limited.close()


class Signalled:
    """The first object that a child makes its own; a signal comes meanwhile."""

    def forked(self) -> None:
        signal.raise_signal(signal.SIGALRM)


def test_a_signal_in_a_forks_hooks_leaves_the_child_no_writer_and_comes_behind_them(replay, monkeypatch):
    """Python ignores what a handler raises there, and ends the hook."""
    writer, came = replay.writer(), []

    def handle(signum: int, frame: FrameType) -> None:
        came.append(frame.f_code.co_name)
        if came == ["forked"]:
            raise Rang

    def child() -> None:
        with pytest.raises(mc.StaleHandle):
            writer.add(0.0, 0, 0.0)
        assert came and "forked" not in came, "a library's hook may follow, else the program's own line"

    patch(monkeypatch, "memory", _forkable=[Signalled(), *guard._forkable])
    before, mask = signal.signal(signal.SIGALRM, handle), signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        assert in_a_fork(child)
        assert signal.pthread_sigmask(signal.SIG_SETMASK, mask) == mask | {signal.SIGUSR1}
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not came and writer.add(0.0, 0, 0.0) == 100


def test_children_of_several_threads_have_numbers_of_their_own():
    """Their samplers draw by these; a thread may come between another one's hook and its fork."""
    numbers: list[int] = []

    def start() -> None:
        for _ in range(20):
            reads, writes = os.pipe()
            assert in_a_fork(lambda writes=writes: os.write(writes, child_number().to_bytes(8, "little")))
            numbers.append(int.from_bytes(os.read(reads, 8), "little"))
            os.close(reads), os.close(writes)

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*numbers}) == len(numbers) == 60


def test_a_hook_that_forks_leaves_no_signal_blocked():
    """Other libraries' hooks may fork, and run between those of marlcore."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    for begun in (lib.mc_fork_begin, lib.mc_fork_begin, lib.mc_fork_end):
        begun()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) > mask
    lib.mc_fork_end(), lib.mc_fork_end()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask


def test_a_full_lanes_writer_asks_for_no_room_in_a_child():
    """The request would be written to the parent's lane, to which the child's queue is attached by then."""
    with mc.TrajectoryQueue.create(SPEC, 8) as queue, queue.writer(timeout=0.0) as writer:
        while len(queue) < 8:
            writer.add(0.0, 0, 0.0)
        mapped = Mapped(queue)
        asked = mapped.words(mapped.geometry.counters_offset(0))[3:4]

        def child() -> None:
            assert len(queue) == 8
            with pytest.raises(mc.StaleHandle):
                writer.add(0.0, 0, 0.0)

        assert in_a_fork(child) and asked.tolist() == [0]


def test_a_forked_sampler_takes_a_slot_of_its_own_at_the_limiter():
    """So what both draw counts, and the writer waits for either; of the limiter's 16 slots, the child's is one more."""
    with mc.ReplayBuffer.create(SPEC, 100, limiter=mc.RateLimiter(1.0, 4, 8.0)) as replay:
        sampler = replay.sampler(4, min_size=1)
        with replay.writer(timeout=0.0) as writer:
            for number in range(12):
                writer.add(float(number), number, 0.0)
            with pytest.raises(TimeoutError):
                writer.add(12.0, 12, 0.0)
            others = [replay.sampler(4) for _ in range(14)]

            def child() -> None:
                sampler.sample(), sampler.sample()
                with pytest.raises(mc.MarlcoreError, match="expected at most 16 samplers"):
                    replay.sampler(4)

            assert in_a_fork(child) and len(others) == 14
            for number in range(12, 20):
                writer.add(float(number), number, 0.0)
            with pytest.raises(TimeoutError):
                writer.add(20.0, 20, 0.0)
            sampler.sample()
            writer.add(20.0, 20, 0.0)


def test_a_forked_reader_continues_once_the_parents_is_closed():
    with mc.TrajectoryQueue.create(SPEC, 64) as queue:
        write(queue, 20)
        reader = queue.reader(5)
        assert reader.read().action.tolist() == [0, 1, 2, 3, 4]

        def child(parent: socket.socket) -> None:
            with pytest.raises(mc.LaneBusy, match="the queue has a living reader"):
                reader.read()
            parent.send(b"r")
            assert parent.recv(1) == b"c"
            assert reader.read().action.tolist() == [5, 6, 7, 8, 9]

        with forked(child) as connection:
            assert connection.recv(1) == b"r"
            reader.close()
            connection.send(b"c")
        with queue.reader(5) as successor:
            assert successor.read().action.tolist() == [10, 11, 12, 13, 14]


def test_a_forked_subscriber_pulls_what_is_published_later():
    tree, local = {"w": np.zeros(3)}, {"w": np.zeros(3)}
    with mc.ParameterStore.create(tree) as store, store.publisher(tree) as publisher:
        subscriber = store.subscriber(local)

        def child(parent: socket.socket) -> None:
            assert parent.recv(1) == b"p"
            assert subscriber.pull() and local["w"].tolist() == [2, 2, 2] and subscriber.version == 2

        publisher.publish()
        with forked(child) as connection:
            tree["w"] += 2.0
            publisher.publish()
            connection.send(b"p")
        assert not local["w"].any() and subscriber.pull()


def test_what_a_thread_was_inside_at_the_fork_is_refused():
    """Its private memory may have been half written."""
    with mc.ReplayBuffer.create(SPEC, 100) as replay:
        write(replay, 50)
        sampler = replay.sampler(4)
        entered, leave = threading.Event(), threading.Event()

        def linger() -> None:
            sampler._inside[threading.get_ident()] = None
            entered.set()
            leave.wait()
            del sampler._inside[threading.get_ident()]

        thread = threading.Thread(target=linger)
        thread.start()
        entered.wait()

        def child() -> None:
            for _ in range(2):
                with pytest.raises(mc.StaleHandle, match="a thread was inside this object when the process forked"):
                    sampler.sample()
            assert replay.sampler(4).sample()

        try:
            assert in_a_fork(child)
        finally:
            leave.set()
            thread.join()
        sampler.sample()


def test_a_child_of_a_replay_that_is_gone_says_so(replay):
    sampler = replay.sampler(8)

    def child(parent: socket.socket) -> None:
        assert parent.recv(1) == b"g"
        for _ in range(2):
            with pytest.raises(mc.SegmentNotFound, match="no such segment"):
                sampler.sample()

    with forked(child) as connection:
        replay.close()
        connection.send(b"g")


def test_a_grandchild_attaches_anew_too(replay):
    sampler = replay.sampler(8)

    def child() -> None:
        assert in_a_fork(sampler.sample)  # before the child's own first use
        sampler.sample()
        assert in_a_fork(lambda: [sampler.sample(), write(replay, 5, 500, lane=1)])
        assert in_a_fork(sampler.sample)
        assert len(replay) == 105

    assert in_a_fork(child)


def draw(sampler: Any, sink: Any) -> None:
    sink.put(sampler.sample().obs.tolist())


def test_multiprocessings_fork_passes_a_sampler(replay):
    sampler, context = replay.sampler(8), multiprocessing.get_context("fork")
    sink = context.SimpleQueue()
    process = context.Process(target=draw, args=(sampler, sink))
    process.start()
    assert len(sink.get()) == 8
    process.join()
    assert process.exitcode == 0
    process.close(), sink.close()


@pytest.mark.skipif(not is_installed("train"), reason="torch is not installed")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_workers_of_torchs_data_loader_draw_from_one_sampler(replay):
    from torch.utils.data import DataLoader, IterableDataset

    class Drawn(IterableDataset):  # type: ignore[misc, type-arg]
        def __init__(self, sampler: mc.Sampler) -> None:
            self.sampler = sampler

        def __iter__(self) -> Iterator[Any]:
            for _ in range(3):
                batch = self.sampler.sample().torch()
                yield {"obs": batch.obs.clone(), "action": batch.action.clone()}

    dataset = Drawn(replay.sampler(16, seed=1))
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    batches = list(loader)
    assert len(batches) == 6 and all((batch["obs"] == batch["action"]).all() for batch in batches)
    assert len({tuple(batch["action"].tolist()) for batch in batches}) == 6, "each worker draws rows of its own"
