"""An object refuses a second thread while a first one is inside, and never mixes the rows of two threads."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from meanwhile import Rang, ring
from refused import check_refused

from marlcore import (
    ClosedError,
    Field,
    LaneBusy,
    Mixture,
    ParameterStore,
    ReplayBuffer,
    TrajectoryQueue,
    TransitionSpec,
    UsedByTwoThreads,
)

SPEC = TransitionSpec(Field((400,), "int64"), Field((), "int64"))
ROWS = 3000  # of each thread
Act = Callable[[], Any]


@pytest.fixture
def replay() -> Iterator[ReplayBuffer]:
    with ReplayBuffer.create(SPEC, 10_000) as made:
        yield made


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*acts: Callable[[], None]) -> None:
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.usefixtures("hasty")
def test_no_row_of_two_threads_is_mixed(replay: ReplayBuffer):
    """Each value of a row is its thread's number; a refused call writes nothing."""
    refused, added = [], []
    with replay.writer() as writer:

        def add(number: int) -> None:
            obs = np.full(400, number)
            for _ in range(ROWS):
                try:
                    added.append(writer.add(obs, number, number))
                except UsedByTwoThreads:
                    refused.append(number)

        together(lambda: add(1), lambda: add(2))
        assert len(replay) == len(added) == len(set(added)) == 2 * ROWS - len(refused)
        writer.add(np.zeros(400, np.int64), 0, 0.0, terminated=True)
    batch = replay.sampler(4096, min_size=1, seed=0).sample()
    assert (batch.obs == batch.action[:, None]).all()
    assert (batch.reward == batch.action).all()


def calls_of(replay: ReplayBuffer, queue: TrajectoryQueue, store: ParameterStore, model: Any) -> list[tuple[Any, Any]]:
    """Returns objects for one thread at a time, each with a call that uses it."""
    with replay.writer() as writer:
        writer.add_batch(np.zeros((50, 400), np.int64), np.zeros(50, np.int64), np.zeros(50))
    writer, vector, sampler, reader = replay.writer(), replay.vector_writer([1]), replay.sampler(4), queue.reader(4)
    mixture, publisher, subscriber = Mixture([replay], [1.0], 4), store.publisher(model), store.subscriber(model)
    return [
        (writer, lambda: writer.add(np.zeros(400, np.int64), 0, 0.0)),
        (writer, lambda: writer.add_batch(np.zeros((2, 400), np.int64), [0, 0], [0.0, 0.0])),
        (vector, lambda: vector.add(np.zeros((1, 400), int), [0], [0.0])),
        (sampler, sampler.sample),
        (sampler, sampler.state_dict),
        (mixture, mixture.sample),
        (publisher, publisher.publish),
        (subscriber, subscriber.pull),
        (reader, lambda: reader.read(timeout=0.0)),
    ]


def test_a_second_thread_is_refused_and_a_later_one_is_not():
    model = {"weight": np.zeros((2, 2))}
    with (
        ReplayBuffer.create(SPEC, 200, lanes=2) as replay,
        TrajectoryQueue.create(SPEC, 100) as queue,
        ParameterStore.create(model) as store,
        ThreadPoolExecutor(1) as later,
    ):
        for used, call in calls_of(replay, queue, store, model):
            used._inside[-1] = None  # another thread is in the middle of a call
            check_refused(call, UsedByTwoThreads, f"{type(used).__name__}: expected one thread at a time")
            used._inside.clear()
            with contextlib.suppress(TimeoutError):  # the queue is empty
                later.submit(call).result()
            assert not used._inside


def end_of(kind: str, things: contextlib.ExitStack) -> tuple[Any, Act, tuple[Any, str], Act]:
    """Returns an end, a call that uses it, the last function in it before other processes see it, and `open`."""
    model = {"weight": np.zeros(2)}
    if kind in ("publisher", "mirror"):
        home = things.enter_context(ParameterStore.create(model))
        if kind == "publisher":
            end = home.publisher(model)
            return end, end.publish, (end, "_append"), lambda: home.publisher(model)
        home.publisher(model).publish()
        mirror = things.enter_context(ParameterStore.create_mirror(home.description))
        end, row = mirror.mirror_writer(), home.copy_newest(np.copy)[1]
        return end, lambda: end.put(row), (end._lanes, "appender"), mirror.mirror_writer
    queue = things.enter_context(TrajectoryQueue.create(SPEC, 100))
    if kind == "writer":
        end = queue.writer()
        return end, lambda: end.add(np.zeros(400, int), 0, 0.0), (end, "_put_action"), queue.writer
    with queue.writer() as writer:
        writer.add_batch(np.zeros((9, 400), int), [0] * 9, [0.0] * 9)
    end = queue.reader(4)
    return end, end.read, (end._cursor, "move"), lambda: queue.reader(4)


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize("kind", ["publisher", "mirror", "writer", "reader"])
def test_a_signals_handler_that_closes_an_end_lets_its_call_finish_alone(kind: str, raises: bool, monkeypatch: Any):
    with contextlib.ExitStack() as things:
        end, call, (holder, name), again = end_of(kind, things)
        last = getattr(holder, name)

        def handle(*_: object) -> None:
            end.close(), end.close()
            check_refused(again, LaneBusy, "living")
            if raises:
                raise Rang

        def interrupted(*arguments: Any) -> Any:
            signal.raise_signal(signal.SIGALRM)
            return last(*arguments)

        monkeypatch.setattr(holder, name, interrupted)
        before = signal.signal(signal.SIGALRM, handle)
        try:
            with pytest.raises((Rang, ClosedError)) if raises or kind == "writer" else contextlib.nullcontext():
                call()
        finally:
            signal.signal(signal.SIGALRM, before)
            monkeypatch.undo()
        check_refused(call, ClosedError, "closed")
        again().close()


def test_an_interrupted_add_leaves_the_writer_to_the_next_one(replay: ReplayBuffer):
    writer, obs, interrupted = replay.writer(), np.zeros(400, np.int64), 0
    before = signal.signal(signal.SIGALRM, lambda *_: ring())
    try:
        for k in range(500):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + k % 40))
                while True:
                    writer.add(obs, 0, 0.0)
            except Rang:
                interrupted += 1
            together(lambda: writer.add(obs, 0, 0.0))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted == 500
    writer.close()
