"""The base of workers that a supervisor watches: counters, a heartbeat, and resources to close."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from ..errors import ClosedError
from ..memory import invalidate_after_fork
from .children import leave_if_forked
from .control import BEATS, Control


class WorkerBase:
    """A worker in its process. If its environment forks, the first method that the fork calls ends the fork."""

    def __init__(self, name: str, control: Control, attempt: int) -> None:
        self.name = name
        self.control = control
        self.counters = control.workers[name]
        self.attempt = attempt  # the number of its process, from 1
        self.beat: Callable[[], None] = self.counters.adder(BEATS, 1)  # the heartbeat that the parent watches
        self._pid = os.getpid()
        invalidate_after_fork(self)
        self._resources = ExitStack()

    def hold(self, resource: Any) -> Any:
        """Returns a resource, which `close` will close, the newest resource first."""
        leave_if_forked(self._pid)  # for a fork that returns from the environment's constructor
        self._resources.callback(resource.close)
        return resource

    def forked(self) -> None:
        self.beat = partial(leave_if_forked, self._pid)

    def check_wait(self) -> None:
        """Advances the heartbeat in a wait. Raises ClosedError if the parent told all workers to stop."""
        self.beat()
        if self.control.stopping:
            raise ClosedError("the run was told to stop")

    def close(self) -> None:
        """Closes all resources, even if one of them fails to close."""
        leave_if_forked(self._pid)
        self._resources.close()
