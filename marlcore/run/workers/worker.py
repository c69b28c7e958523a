"""A run's picklable data, from which each worker builds its part, and the common part of all workers."""

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ...closing import ClosedAfterError
from ...config import EVALUATOR, AssignedPolicy, Config, Crew
from ...envs import RunStep, RunStepProvider
from ...memory import SegmentHandle
from ...processes import BEGUN, Control, Telemetry, WorkerBase, fitting_name
from ...record import Hold
from ...self_play import SelfPlay

GPU_S = 5.0  # between a worker's reports of its GPU
WAIT_S = 0.1  # of workers, between looks at the parent's word
HELD_S = 0.01  # of those that wait for an evaluation to begin, between looks


@dataclass(frozen=True, kw_only=True)
class PolicyBlueprint(AssignedPolicy):
    """A policy, and the places of its transitions, weights and files."""

    checkpoint: Path
    transitions: SegmentHandle  # its replay, or its queue
    weights: SegmentHandle
    queued: bool  # whether the transitions are a queue
    replay_was_saved: bool = False  # by an earlier part of the run
    hold: Hold | None = None  # on the checkpoint, where its learner may be followed by one on another machine

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
    crew: Crew
    self_play: tuple[SelfPlay, ...] = ()  # by policy


class Worker(WorkerBase):
    """The common part of a run's workers: the blueprint, and metrics."""

    def __init__(self, name: str, blueprint: Blueprint, attempt: int = 1) -> None:
        super().__init__(name, Control.attach(blueprint.control), attempt)
        self.hold(self.control)
        self.blueprint = blueprint
        self.config = blueprint.config
        self._weighed = -GPU_S
        self._reporter = self.hold(self.hold(Telemetry.attach(blueprint.telemetry)).reporter(name))
        with ClosedAfterError(self):
            self.build()

    def build(self) -> None: ...

    def tell_environments(self) -> None:
        """Lets the environments that this thread steps know the run's step and stage."""
        total, stages = self.config.total_steps, self.config.stages

        def look() -> RunStep:
            step = self.steps
            return RunStep(step, total, bisect_right(stages, step))

        self.hold(RunStepProvider(look))

    @property
    def steps(self) -> int:
        """The run's step count, without what actors take beyond `total_steps`."""
        return min(self.control.steps, self.config.total_steps)

    def await_evaluation(self) -> None:
        """With `evaluation.wait`: holds a worker that counts steps while an evaluation is due that has not begun."""
        settings, evaluator = self.config.evaluation, self.control.workers.get(EVALUATOR)
        if not (settings.wait and settings.interval and evaluator):
            return
        while evaluator.load(BEGUN) // settings.interval < self.steps // settings.interval:
            if self.control.stopping:
                return
            self.beat()
            time.sleep(HELD_S)

    def work(self) -> None:
        """Runs the loop in the worker's own process, until it is done or the parent stops it."""

    def report_gpu(self, device: torch.device) -> None:
        """Reports a CUDA device, at most every `GPU_S`: the MiB of this process's tensors, and how busy it is.

        The second needs nvidia-ml-py, by which torch asks the driver.
        """
        if device.type == "cuda" and (now := time.monotonic()) - self._weighed >= GPU_S:
            self._weighed = now
            self.report("", f"gpu_mib/{self.name}", torch.cuda.memory_allocated(device) / 2**20)
            if find_spec("pynvml"):
                busy = math.nan  # where the driver cannot say, as of a part of a device by MIG
                with suppress(Exception):  # of classes of nvidia-ml-py's own
                    busy = torch.cuda.utilization(device)
                self.report("", f"gpu_percent/{self.name}", busy)

    def report(self, agent: str, name: str, value: float, step: int | None = None) -> None:
        """Reports a metric; at the present step if `step` is None."""
        self.report_each(agent, name, [value], step)

    def report_each(self, agent: str, name: str, values: Sequence[float], step: int | None = None) -> None:
        """Reports a metric for each value; its name is cut to the bytes that telemetry has."""
        now = time.monotonic() - self.blueprint.began
        self._reporter.report_each(now, self.control.steps if step is None else step, agent, fitting_name(name), values)
