"""The base class of a run's roles, with the spec, the machine's memory, and reports of metrics."""

from __future__ import annotations

import math
import sys
import time
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ...closing import ClosedAfterError
from ...config import EVALUATOR, Config
from ...envs import RunStep, RunStepProvider
from ...loops import run_seed
from ...processes import BEGUN, STEPS, Control, Telemetry, WorkerBase, fitting_name
from ..memory import Memory
from ..spec import RunSpec

if TYPE_CHECKING:
    import torch

GPU_S = 5.0  # seconds between a worker's reports of its GPU
WAIT_S = 0.1  # seconds between a worker's checks whether the parent stops it
HELD_S = 0.01  # seconds between checks whether an awaited evaluation has begun


def settle_torch(config: Config, name: str, control: Control, attempt: int) -> bool:
    """Seeds torch and sets its number of threads for a worker; returns False if torch is not imported yet."""
    torch_here = sys.modules.get("torch")
    if torch_here:
        torch_here.set_num_threads(config.learner.threads)
        begin = attempt - 1 + control.workers[name].load(STEPS)  # a resumed run counts attempts from 1 again
        torch_here.manual_seed(run_seed(config, f"torch-{name}", 0, begin, control.about.get("epoch", 0)))
    return torch_here is not None


class Role(WorkerBase):
    """The base of a run's roles; each runs in its own process or, in serial mode, in turn with the others."""

    def __init__(self, name: str, spec: RunSpec, memory: Memory, attempt: int = 1) -> None:
        super().__init__(name, Control.attach(memory.control), attempt)
        self.hold(self.control)
        self.spec, self.memory, self.config = spec, memory, spec.config
        self._weighed = -GPU_S
        self._reporter = self.hold(self.hold(Telemetry.attach(memory.telemetry)).reporter(name))
        with ClosedAfterError(self):
            self.build()

    def build(self) -> None: ...

    def tell_environments(self) -> None:
        """Provides the run's step and stage to the environments in this thread (see `run_step`)."""
        total, stages = self.config.total_steps, self.config.stages

        def look() -> RunStep:
            step = self.steps
            return RunStep(step, total, bisect_right(stages, step))

        self.hold(RunStepProvider(look))

    @property
    def steps(self) -> int:
        """The run's step count, cut to `total_steps`, since actors may take a few steps more."""
        return min(self.control.steps, self.config.total_steps)

    def await_evaluation(self) -> None:
        """With `evaluation.wait`: blocks while an evaluation is due but has not begun."""
        settings, evaluator = self.config.evaluation, self.control.workers.get(EVALUATOR)
        if not (settings.wait and settings.interval and evaluator):
            return
        while evaluator.load(BEGUN) // settings.interval < self.steps // settings.interval:
            if self.control.stopping:
                return
            self.beat()
            time.sleep(HELD_S)

    def work(self) -> None:
        """Runs the role's loop in its own process until the role is done or the parent stops it."""

    def report_gpu(self, device: torch.device | None) -> None:
        """Reports a CUDA device's memory (MiB of this process's tensors) and utilization, at most every `GPU_S`.

        The utilization is reported only if nvidia-ml-py is installed.
        """
        if device and device.type == "cuda" and (now := time.monotonic()) - self._weighed >= GPU_S:
            import torch

            self._weighed = now
            self.report("", f"gpu_mib/{self.name}", torch.cuda.memory_allocated(device) / 2**20)
            if find_spec("pynvml"):
                busy = math.nan  # if the driver does not know it, as for a MIG slice
                with suppress(Exception):  # nvidia-ml-py raises its own exception classes
                    busy = torch.cuda.utilization(device)
                self.report("", f"gpu_percent/{self.name}", busy)

    def report(self, agent: str, name: str, value: float, step: int | None = None) -> None:
        """Reports a metric, by default at the present step."""
        self.report_each(agent, name, [value], step)

    def report_each(self, agent: str, name: str, values: Sequence[float], step: int | None = None) -> None:
        """Reports the metric `name` once for each value; a name too long for telemetry is cut."""
        now = time.monotonic() - self.memory.began
        self._reporter.report_each(now, self.control.steps if step is None else step, agent, fitting_name(name), values)
