"""The common part of a run's workers."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ...errors import ClosedError
from ...memory import invalidate_after_fork
from ...processes import BEATS, Control, Telemetry, fitting_name, leave_if_forked
from .blueprint import Blueprint

WAIT_S = 0.1  # of workers, between looks at the parent's word


class Worker:
    """The common part of all workers: counters, heartbeat, telemetry, and resources to close."""

    def __init__(self, name: str, blueprint: Blueprint) -> None:
        self.name = name
        self.blueprint = blueprint
        self.config = blueprint.config
        self._pid = os.getpid()
        self._is_fork = False
        invalidate_after_fork(self)
        self._resources = ExitStack()
        self.control: Control = self.hold(Control.attach(blueprint.control))
        self.counters = self.control.workers[name]
        self._beats = self.counters.load(BEATS)
        self._reporter = self.hold(self.hold(Telemetry.attach(blueprint.telemetry)).reporter(name))

    def hold(self, resource: Any) -> Any:
        """Closes a resource at the end, before those held earlier."""
        leave_if_forked(self._pid)  # such as a fork that comes back from the environment's constructor
        self._resources.callback(resource.close)
        return resource

    @contextmanager
    def closed_if_it_raises(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def forked(self) -> None:
        """In a process that the environment forked: `beat` and the other methods end it."""
        self._is_fork = True

    def beat(self) -> None:
        """Advances the heartbeat, so that the parent sees no hang."""
        if self._is_fork:
            leave_if_forked(self._pid)
        self._beats += 1
        self.counters.store(BEATS, self._beats)

    def show_patience(self) -> None:
        """The check of a wait: advances the heartbeat. Raises ClosedError: the run stops."""
        self.beat()
        if self.control.stopping:
            raise ClosedError("the run was told to stop")

    def report(self, agent: str, name: str, value: float, step: int | None = None) -> None:
        """Reports a metric; at the present step if `step` is None."""
        self.report_each(agent, name, [value], step)

    def report_each(self, agent: str, name: str, values: Sequence[float], step: int | None = None) -> None:
        """Reports a metric for each value; its name is cut to the bytes that telemetry has."""
        now = time.monotonic() - self.blueprint.began
        self._reporter.report_each(now, self.control.steps if step is None else step, agent, fitting_name(name), values)

    def close(self) -> None:
        """Closes everything held, even if one closing fails."""
        leave_if_forked(self._pid)
        self._resources.close()
