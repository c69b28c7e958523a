"""A run's picklable data, from which each worker builds its part, and the common part of all workers."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ClosedError
from ...memory import SegmentHandle, invalidate_after_fork
from ...processes import BEATS, Control, Telemetry, fitting_name, leave_if_forked
from ..config import AssignedPolicy, Config
from ..self_play import SelfPlay

WAIT_S = 0.1  # of workers, between looks at the parent's word


@dataclass(frozen=True, kw_only=True)
class PolicyBlueprint(AssignedPolicy):
    """A policy, and the places of its transitions, weights and files."""

    checkpoint: Path
    saved_replay: Path | None  # None if the replay is not saved
    transitions: SegmentHandle  # its replay, or its queue
    weights: SegmentHandle
    replay_was_saved: bool = False  # by an earlier part of the run

    @property
    def run_dir(self) -> Path:
        return self.checkpoint.parents[1]


@dataclass(frozen=True)
class Blueprint:
    """A run's data for its workers."""

    env_fn: Callable[[], Any]
    config: Config
    policies: tuple[PolicyBlueprint, ...]
    control: SegmentHandle
    telemetry: SegmentHandle
    began: float  # in time.monotonic, which all processes of a machine share
    self_play: SelfPlay | None = None


class Worker:
    """The common part of all workers: counters, heartbeat, telemetry, and resources to close."""

    def __init__(self, name: str, blueprint: Blueprint, attempt: int = 1) -> None:
        self.name = name
        self.blueprint = blueprint
        self.config = blueprint.config
        self.attempt = attempt  # the number of its process, from 1
        self._pid = os.getpid()
        self._is_fork = False
        invalidate_after_fork(self)
        self._resources = ExitStack()
        self.control: Control = self.hold(Control.attach(blueprint.control))
        self.counters = self.control.workers[name]
        self._beats = self.counters.load(BEATS)
        self._reporter = self.hold(self.hold(Telemetry.attach(blueprint.telemetry)).reporter(name))
        try:
            self.build()
        except BaseException:
            self.close()
            raise

    def build(self) -> None: ...

    def work(self) -> None:
        """Runs the loop in the worker's own process, until it is done or the parent stops it."""

    def hold(self, resource: Any) -> Any:
        """Closes a resource at the end, before those held earlier."""
        leave_if_forked(self._pid)  # such as a fork that comes back from the environment's constructor
        self._resources.callback(resource.close)
        return resource

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
