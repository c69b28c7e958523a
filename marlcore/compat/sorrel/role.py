"""The common part of an experiment's processes: the spec that each gets, its seeds and messages."""

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

ACTOR, LEARNER = "actor-{}", "learner-{}"
MEMORY, MODEL = "memory-{}", "model-{}"  # names of the parts that are left out of a packed environment


class ModelSpec(NamedTuple):
    """One model, which one agent has, or several share."""

    agents: tuple[int, ...]
    rings: tuple[Buffer, ...]  # its memory, one for each copy of the world, those of the first actor first
    rollouts: tuple[ParameterStore, ...]  # or, on-policy, its memory at the ends of epochs, in turn
    weights: ParameterStore
    saves: tuple[str, ...]  # paths of two files, which get the whole model in turn

    def rollout(self, epoch: int) -> ParameterStore:
        return self.rollouts[epoch % len(self.rollouts)]


class ExperimentSpec(NamedTuple):
    """An experiment's parts, for each of its processes; picklable: the shared objects attach to the same memory."""

    options: Options
    epochs: int  # of the experiment
    models: tuple[ModelSpec, ...]
    control: Control
    telemetry: Telemetry
    ended: tuple[ParameterStore, ...]  # by actor, of `ended_epochs`
    mail: Mapping[str, str]  # by process, the path of its mailbox
    wants_turns: bool  # whether the logger records each turn

    def epochs_of(self, actor: int) -> range:
        """The epochs that this actor plays, in its order."""
        return range(actor, self.epochs, self.options.actors)

    def must_have_ended(self, epoch: int) -> dict[int, int]:
        """By actor, how many of its epochs must have ended before the learners learn from this one."""
        options = self.options
        if options.ahead:
            return {epoch % options.actors: epoch // options.actors + 1}
        rounds = epoch // (options.actors * options.copies) + 1  # all worlds play at once, then the learners learn
        return {actor: min(rounds * options.copies, len(self.epochs_of(actor))) for actor in range(options.actors)}


def ended_epochs() -> dict[str, Any]:
    """The content of a ParameterStore whose version is the number of epochs that its actor has ended."""
    return {"epochs": np.zeros((), np.int64)}


class Role(WorkerBase, ABC):
    """A worker's share of an experiment, in its own process."""

    def __init__(self, name: str, spec: ExperimentSpec, attempt: int) -> None:
        torch.set_num_threads(spec.options.threads)
        seed_all([spec.options.seed or 0, attempt, *name.encode()])
        super().__init__(name, spec.control, attempt)
        self.spec = spec
        self._mail = self.hold(open(spec.mail[name], "wb"))  # noqa: SIM115

    @abstractmethod
    def step(self) -> bool:
        """Works on the next epochs; False once there is none."""

    def finish(self) -> None:
        """Called at the end, also after an error."""

    def work(self) -> None:
        """Works until every epoch is done, or the experiment stops."""
        try:
            with self.control.checked_waits(self.check_wait):
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
