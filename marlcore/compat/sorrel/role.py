"""The base of an experiment's processes: the spec that each process gets, its seeds and its messages."""

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
MEMORY, MODEL = "memory-{}", "model-{}"  # names of parts that a packed environment leaves out


class ModelSpec(NamedTuple):
    """A model of one agent, or of several agents that share it."""

    agents: tuple[int, ...]  # their indices
    rings: tuple[Buffer, ...]  # the model's memories, one for each copy of the world, the first actor's first
    rollouts: tuple[ParameterStore, ...]  # on-policy, instead of rings: the memory at an epoch's end; see `rollout`
    weights: ParameterStore
    saves: tuple[str, ...]  # the paths of two files, to which the whole model is saved in turn

    def rollout(self, epoch: int) -> ParameterStore:
        return self.rollouts[epoch % len(self.rollouts)]


class ExperimentSpec(NamedTuple):
    """What each process of an experiment gets; unpickled shared objects attach to the same memory."""

    options: Options
    epochs: int  # of the experiment
    models: tuple[ModelSpec, ...]
    control: Control
    telemetry: Telemetry
    ended: tuple[ParameterStore, ...]  # one for each actor, with the content of `ended_epochs`
    mail: Mapping[str, str]  # by process, the path of its mailbox
    wants_turns: bool  # whether the logger records each turn

    def epochs_of(self, actor: int) -> range:
        """Returns the epochs that an actor plays, in order."""
        return range(actor, self.epochs, self.options.actors)

    def must_have_ended(self, epoch: int) -> dict[int, int]:
        """Returns, by actor, the number of its epochs that must have ended before learners learn from this epoch."""
        options = self.options
        if options.ahead:
            return {epoch % options.actors: epoch // options.actors + 1}
        rounds = epoch // (options.actors * options.copies) + 1  # all worlds play at once, then the learners learn
        return {actor: min(rounds * options.copies, len(self.epochs_of(actor))) for actor in range(options.actors)}


def ended_epochs() -> dict[str, Any]:
    """Returns the content of an actor's ParameterStore, whose version counts the actor's ended epochs."""
    return {"epochs": np.zeros((), np.int64)}


class Role(WorkerBase, ABC):
    """An actor or a learner of an experiment, in its own process."""

    def __init__(self, name: str, spec: ExperimentSpec, attempt: int) -> None:
        torch.set_num_threads(spec.options.threads)
        seed_all([spec.options.seed or 0, attempt, *name.encode()])
        super().__init__(name, spec.control, attempt)
        self.spec = spec
        self._mail = self.hold(open(spec.mail[name], "wb"))  # noqa: SIM115

    @abstractmethod
    def step(self) -> bool:
        """Works on the next epochs; returns False if none is left."""

    def finish(self) -> None:
        """Is called at the end of `work`, also after an error."""

    def work(self) -> None:
        """Works until every epoch is done, or the experiment stops."""
        try:
            with self.control.checked_waits(self.check_wait):
                while self.step():
                    pass
        finally:
            self.finish()

    def send(self, epoch: int, content: Any) -> None:
        """Sends a message to the parent; waits while the pipe (64 KiB) has no room."""
        self._mail.write(framed(epoch, content))
        self._mail.flush()


def seed_all(key: list[int]) -> None:
    """Seeds the generators that sorrel's models draw from."""
    python, numpy, torch_seed = (int(word) for word in np.random.SeedSequence(key).generate_state(3))
    random.seed(python)
    np.random.seed(numpy)
    torch.manual_seed(torch_seed)
