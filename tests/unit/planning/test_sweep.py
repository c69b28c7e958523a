"""The sweep shares large levels, takes small ones together, and ends when it fails or is interrupted."""

import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from queue import SimpleQueue
from time import sleep
from typing import Any

import numpy as np
import pytest

from marlcore.planning import sweep as module
from marlcore.planning.sweep import CHUNK, SPLIT, sweep

WORK = CHUNK / 20  # of a state: a call takes 20 of them, and two share their level


def levels_of(sizes: list[int]) -> list[Any]:
    ends = np.cumsum([0, *sizes])
    return [np.arange(low, high)[::-1] for low, high in pairwise(ends)]


def test_small_levels_are_swept_in_few_calls_and_in_order() -> None:
    """A call may take the end of a level and the beginning of the next."""
    for sizes, work, count in (([1] * 40, WORK, 2), ([1, 7, 20, 3, 9] * 10, SPLIT / 21, 2)):
        calls: list[Any] = []
        sweep(levels_of(sizes), np.full(sum(sizes), work), 4, calls.append)
        assert len(calls) == count and np.array_equal(np.concatenate(calls), np.concatenate(levels_of(sizes)))


def test_large_levels_are_shared_by_threads() -> None:
    names, together = set(), threading.Event()

    def step(numbers: Any) -> None:
        names.add(threading.current_thread().name)
        if len(names) == 3:
            together.set()
        together.wait()

    sweep(levels_of([100]), np.full(100, WORK), 3, step)
    assert len(names) == 3 and threading.current_thread().name not in names


def test_the_first_failure_of_a_level_is_raised() -> None:
    def step(numbers: Any) -> None:
        wrong = numbers[numbers < 80]
        if len(wrong):
            sleep(0.001 * int(wrong[0]))  # the last one fails first
            raise ValueError(f"failed at {wrong[0]}")

    with pytest.raises(ValueError, match="failed at 79"):
        sweep(levels_of([100]), np.full(100, WORK), 4, step)


@pytest.mark.parametrize("while_waiting", [True, False])
def test_an_interrupt_ends_the_sweep_at_once(while_waiting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads finish the chunks that they have begun, and no others."""
    begun, started, cancelled = [], threading.Event(), threading.Event()

    class Interrupted(SimpleQueue[None]):
        def get(self, *_: Any) -> None:
            started.wait()
            signal.raise_signal(signal.SIGINT)  # from another thread, it could come just before a wait that it must end

    class Pool(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **options: Any) -> Future[None]:
            if self._work_queue.qsize() == 8 and not while_waiting:
                raise KeyboardInterrupt
            return super().submit(*arguments, **options)

        def shutdown(self, *arguments: Any, **options: Any) -> None:
            cancelled.set()
            super().shutdown(*arguments, **options)

    def step(numbers: Any) -> None:
        begun.append(numbers)
        started.set()
        cancelled.wait()

    monkeypatch.setattr(module, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(module, "SimpleQueue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(levels_of([1000] * 100), np.full(100_000, WORK), 2, step)
    assert len(begun) <= 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("marlcore-sweep")]
