"""The common part of an experiment's two roles: what each process gets, its seed, heartbeat and messages."""

from __future__ import annotations

import os
import random
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...errors import ClosedError
from ...memory import SegmentHandle
from ...processes import BEATS, Control, leave_if_forked
from .buffer import Buffer
from .clock import Clock
from .nameless import Sender
from .options import Options, Schedule

MEMORY, MODEL = "memory-{}", "model-{}"  # names of what is left out of a packed environment


@dataclass(frozen=True)
class ModelPlan:
    """One model, which one agent has, or several share.

    Attributes:
        agents: their numbers.
        rings: its memory, one for each copy of the world.
        weights: the handle of its ParameterStore.
        saved: paths of two files, for the whole model.
    """

    agents: tuple[int, ...]
    rings: tuple[Buffer, ...]
    weights: SegmentHandle
    saved: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What all processes of an experiment get; picklable.

    Attributes:
        wants_steps: whether the logger records each turn.
    """

    options: Options
    schedule: Schedule
    seed: int
    models: tuple[ModelPlan, ...]
    control: SegmentHandle
    clock: SegmentHandle
    wants_steps: bool


class Role:
    """A process's share of an experiment; a context manager that closes what it holds."""

    def __init__(self, name: str, plan: Plan, mail: str, attempt: int) -> None:
        """Args:
        mail: the path of its mailbox.
        attempt: 1 for its first process, 2 for its successor, and so on.
        """
        options = plan.options
        torch.set_num_threads(options.threads)
        seed_all([plan.seed, attempt - 1, *name.encode()])
        self.name = name
        self._pid = os.getpid()
        self.plan = plan
        self.attempt = attempt
        self._held = ExitStack()
        self.control = self.hold(Control.attach(plan.control))
        self.clock: Clock = self.hold(Clock.attach(plan.clock))
        self.counters = self.control.workers[name]
        self.sender: Sender = self.hold(Sender(mail))
        self._beats = self.counters.load(BEATS)

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

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc_info: object) -> None:
        leave_if_forked(self._pid)
        self._held.close()


def seed_all(key: list[int]) -> None:
    """Seeds the generators that sorrel's models draw from."""
    python, numpy, torch_seed = (int(word) for word in np.random.SeedSequence(key).generate_state(3))
    random.seed(python)
    np.random.seed(numpy)
    torch.manual_seed(torch_seed)


def networks(model: Any) -> torch.nn.Module:
    """The model as one module: itself, or all modules among its attributes."""
    if isinstance(model, torch.nn.Module):
        return model
    return torch.nn.ModuleDict({name: one for name, one in vars(model).items() if isinstance(one, torch.nn.Module)})
