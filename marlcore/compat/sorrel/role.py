"""The common part of an experiment's processes: the plan that each gets, its seeds and messages."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from ...processes import Control, Telemetry, WorkerBase
from ...weights import ParameterStore
from .buffer import Buffer
from .messages import framed
from .options import Options

ACTOR, LEARNER = "actor-0", "learner-{}"
MEMORY, MODEL = "memory-{}", "model-{}"  # names of the parts that are left out of a packed environment


class ModelPlan(NamedTuple):
    """One model, which one agent has, or several share."""

    agents: tuple[int, ...]
    rings: tuple[Buffer, ...]  # its memory, one for each copy of the world
    weights: ParameterStore
    saves: tuple[str, ...]  # paths of two files, which get the whole model in turn


class Plan(NamedTuple):
    """An experiment's parts, for each of its processes; picklable: the shared objects attach to the same memory."""

    options: Options
    models: tuple[ModelPlan, ...]
    control: Control
    telemetry: Telemetry
    ended: ParameterStore  # of `ended_epochs`
    mail: Mapping[str, str]  # by process, the path of its mailbox
    wants_turns: bool  # whether the logger records each turn


def ended_epochs() -> dict[str, Any]:
    """The content of a ParameterStore whose version is the number of epochs that the actor has ended."""
    return {"epochs": np.zeros((), np.int64)}


class Role(WorkerBase, ABC):
    """A process's share of an experiment."""

    def __init__(self, name: str, plan: Plan, attempt: int) -> None:
        torch.set_num_threads(plan.options.threads)
        seed_all([plan.options.seed or 0, attempt - 1, *name.encode()])
        super().__init__(name, plan.control, attempt)
        self.plan = plan
        self._mail = self.hold(open(plan.mail[name], "wb"))  # noqa: SIM115

    @abstractmethod
    def step(self) -> bool:
        """Works on the next epochs; False once there is none."""

    def finish(self) -> None:
        """Called at the end, also after an error."""

    def work(self) -> None:
        """Works until every epoch is done, or the experiment stops."""
        try:
            with self.checked_waits():
                while self.step():
                    pass
        finally:
            self.finish()

    def send(self, epoch: int, content: Any) -> None:
        """Sends the parent a message; waits only while the parent leaves 64 KiB or more unread."""
        self._mail.write(framed(epoch, content))
        self._mail.flush()


def seed_all(key: list[int]) -> None:
    """Seeds the generators that sorrel's models draw from."""
    python, numpy, torch_seed = (int(word) for word in np.random.SeedSequence(key).generate_state(3))
    random.seed(python)
    np.random.seed(numpy)
    torch.manual_seed(torch_seed)
