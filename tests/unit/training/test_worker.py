"""The common part of a run's workers: a fork of one, which its environment made, does nothing in its name."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from marlcore.processes import Control, Telemetry
from marlcore.training.workers.worker import Worker


@pytest.mark.parametrize("next_call", [Worker.beat, Worker.close, lambda worker: worker.hold(worker)])
def test_a_workers_fork_leaves_at_its_next_call(next_call: Callable[[Worker], Any]) -> None:
    ended, end = os.pipe()
    with (
        closing(Control.create(["actor-0"])) as control,
        closing(Telemetry.create(["actor-0"])) as telemetry,
        closing(Worker("actor-0", control.handle, telemetry.handle, 0.0)) as worker,
    ):
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
    for fd in (ended, end):
        os.close(fd)
