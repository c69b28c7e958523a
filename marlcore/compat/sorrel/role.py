"""The common part of an experiment's processes: the plan that each gets, its seeds, heartbeat and messages."""

import os
import random
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch

from ...errors import ClosedError
from ...memory import interrupt_waits_with
from ...processes import BEATS, Control, Telemetry, leave_if_forked
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


class Role(AbstractContextManager["Role"]):
    """A process's share of an experiment; its end closes everything that it holds."""

    def __init__(self, name: str, plan: Plan, attempt: int) -> None:
        torch.set_num_threads(plan.options.threads)
        seed_all([plan.options.seed or 0, attempt - 1, *name.encode()])
        self.plan = plan
        self.attempt = attempt  # 1 for the first process of this name, 2 for its successor
        self._pid = os.getpid()
        self._held = ExitStack()
        self.control = plan.control
        self.counters = self.control.workers[name]
        self._beats = self.counters.load(BEATS)
        self._mail = self.hold(open(plan.mail[name], "wb"))  # noqa: SIM115

    @abstractmethod
    def step(self) -> bool:
        """Works on the next epochs; False once there is none."""

    def finish(self) -> None:
        """Called at the end, also after an error."""

    def work(self) -> None:
        """Works until every epoch is done, or the experiment stops."""
        interrupt_waits_with(self.beat)
        try:
            while self.step():
                pass
        except ClosedError:
            if not self.control.stopping:
                raise
        finally:
            interrupt_waits_with(None)
            self.finish()

    def send(self, epoch: int, content: Any) -> None:
        """Sends the parent a message; waits only while the parent leaves 64 KiB or more unread."""
        self._mail.write(framed(epoch, content))
        self._mail.flush()

    def hold(self, thing: Any) -> Any:
        """Closes `thing` at the end, before things held earlier."""
        leave_if_forked(self._pid)
        self._held.callback(thing.close)
        return thing

    def beat(self) -> None:
        """Shows the parent that this process does not hang. Raises ClosedError: the experiment stops."""
        leave_if_forked(self._pid)
        self._beats += 1
        self.counters.store(BEATS, self._beats)
        if self.control.stopping:
            raise ClosedError("the experiment was told to stop")

    def __exit__(self, *exc_info: object) -> None:
        leave_if_forked(self._pid)
        self._held.close()


def seed_all(key: list[int]) -> None:
    """Seeds the generators that sorrel's models draw from."""
    python, numpy, torch_seed = (int(word) for word in np.random.SeedSequence(key).generate_state(3))
    random.seed(python)
    np.random.seed(numpy)
    torch.manual_seed(torch_seed)
