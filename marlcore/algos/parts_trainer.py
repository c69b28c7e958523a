"""For your own algorithms: a trainer of models of several parts, each with its own loss and optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import nn

from ..declared import Declared, Number, Whole
from ..interfaces import Update


@dataclass(frozen=True)
class Part(Declared):
    """A part of a model that a `PartsTrainer` trains.

    Attributes:
        loss: computes a batch's loss, a scalar.
        optimizer: moves the part's parameters.
        max_norm: a gradient of a larger norm is scaled down to this norm; above 0.
        stage: the first stage of `Config.stages` in which the part is trained.
    """

    loss: Callable[[Any], torch.Tensor]
    optimizer: torch.optim.Optimizer
    max_norm: Annotated[float, Number(above=0, finite=False)] = math.inf
    stage: Annotated[int, Whole(0)] = 0

    def update(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Makes one step; returns the loss and the gradient's norm before clipping, detached."""
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        tensors = [tensor for group in self.optimizer.param_groups for tensor in group["params"]]
        norm = nn.utils.clip_grad_norm_(tensors, self.max_norm)
        self.optimizer.step()
        return loss.detach(), norm.detach()


class PartsTrainer:
    """Trains the parts whose stage has begun, in their order, so each loss sees the earlier parts updated.

    Metrics are loss, which is the sum of the losses, and for each part loss_<part> and grad_norm_<part>. The trainer's
    state is that of the optimizers and of the objects `kept`, such as target networks, which have a state_dict.

    Raises: ValueError: no part begins in stage 0, or an object has a part's name.
    """

    def __init__(self, parts: Mapping[str, Part], **kept: Any) -> None:
        if 0 not in (stages := {name: part.stage for name, part in parts.items()}).values():
            raise ValueError(f"parts: expected a part with stage 0, got the stages {stages}")
        if both := sorted(parts.keys() & kept.keys()):
            raise ValueError(f"kept: expected other names than those of the parts, got {both}")
        self.parts = dict(parts)
        self._stateful = {name: part.optimizer for name, part in parts.items()} | kept

    def update(self, batch: Any) -> Update:
        """Trains each part whose stage has begun; a run's learner gives the stage in `batch.numbers`."""
        metrics = {"loss": torch.zeros(())}
        for name, part in self.parts.items():
            if batch.numbers["stage"] >= part.stage:
                loss, metrics[f"grad_norm_{name}"] = part.update(batch)
                metrics |= {"loss": metrics["loss"].to(loss) + loss, f"loss_{name}": loss}
        return Update(metrics)

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._stateful.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._stateful.items():
            part.load_state_dict(state[name])
