"""The common part of a run's workers."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from marlcore.processes import Control, Telemetry
from marlcore.training.workers.worker import Worker


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    with closing(Telemetry.create(["actor-0"])) as made:
        yield made


@pytest.fixture
def worker(telemetry: Telemetry) -> Iterator[Worker]:
    with closing(Control.create(["actor-0"])) as control:
        blueprint: Any = SimpleNamespace(control=control.handle, telemetry=telemetry.handle, began=0.0, config=None)
        with closing(Worker("actor-0", blueprint)) as made:
            yield made


@pytest.mark.parametrize("next_call", [Worker.beat, Worker.close, lambda worker: worker.hold(worker)])
def test_a_workers_fork_leaves_at_its_next_call(worker: Worker, next_call: Callable[[Worker], Any]) -> None:
    """A fork that the worker's environment made does nothing in its name."""
    ended, end = os.pipe()
    worker.hold(SimpleNamespace(close=lambda: os.write(end, b"closed")))
    child = os.fork()
    if child == 0:
        try:
            next_call(worker)
        finally:
            os._exit(9)
    assert os.waitpid(child, 0)[1] == 0
    os.set_blocking(ended, False)
    with pytest.raises(BlockingIOError):
        os.read(ended, 1)
    worker.close()
    for fd in (ended, end):
        os.close(fd)


def test_a_metrics_name_is_cut_by_its_bytes(worker: Worker, telemetry: Telemetry) -> None:
    worker.report("agent_0", "win_rate/" + "\xfc" * 60, 0.5)
    assert [metric.name for metric in telemetry.tail()] == ["win_rate/" + "\xfc" * 27]
