"""Bases of off-policy algorithms of continuous actions: policies, their exploration, and their trainers."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from ..interfaces import Action
from ..spaces import Spaces
from ..spec import TransitionSpec
from .base import Hyperparameters, Layers, Positive, Request, Share, TargetTrainer, own_generator
from .fast import ClippedAdam, faster
from .networks.actions import BoxActions
from .networks.torso import Torso, TwinCritics, rows_in

UNTIL_FIRST_UPDATE = "linear(1, 0, 1, of=updates)"


class ContinuousPolicy(nn.Module):
    """Base of policy networks: observations to a distribution of actions, by `outputs` numbers for each component.

    Raises: ValueError: see BoxActions.
    """

    def __init__(self, owner: str, spaces: Spaces, hidden: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.actions = BoxActions(owner, spaces.action)
        self.torso = Torso(spaces, hidden)
        self.output = nn.Linear(self.torso.size, outputs * self.actions.size)

    def forward(self, obs: Any) -> Any:
        return self.distribution(self.output(self.torso(obs)))

    @abstractmethod
    def distribution(self, outputs: torch.Tensor) -> Any:
        """The distribution of actions by the last layer's outputs [B, outputs * size]; the result of a call."""

    @abstractmethod
    def greedy(self, distribution: Any) -> torch.Tensor:
        """Actions [B, size] in [-1, 1] without exploration."""

    @abstractmethod
    def noisy(self, distribution: Any, noise: torch.Tensor, explore: Mapping[str, Any]) -> torch.Tensor:
        """Actions [B, size], given standard normal noise [B, size]; beyond [-1, 1] they count as its ends."""


class ActorCritic(nn.Module):
    """A policy, which is all that actors need, and its critics."""

    def __init__(self, policy: ContinuousPolicy, spaces: Spaces, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.acting = policy
        self.critics = TwinCritics(spaces, policy.actions.size, hidden)


@dataclass(frozen=True)
class Continuous(Hyperparameters):
    """Hyperparameters of all algorithms whose acting part is a ContinuousPolicy."""

    learning_rate: Positive = 1e-3
    """Adam's step size, for the policy, the critics and SAC's temperature, above 0."""
    hidden: Layers = (64, 64)
    """Units in each fully connected layer of the policy and of each critic, at least one layer."""
    tau: Share = 0.01
    """Fraction of the networks mixed into their targets when these move, in (0, 1]."""
    max_grad_norm: Positive = 10.0
    """Larger gradients are scaled down to this norm; above 0."""
    reward_scale: Positive = 0.1
    """Factor on rewards, above 0."""

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """A row without extras. Raises ValueError: see BoxActions."""
        BoxActions(self.owner, spaces.action)
        return super().transition(spaces)

    def schedules(self) -> Mapping[str, Any]:
        """Until the learner's first update actors draw actions uniformly, as both papers do, and none later."""
        return {"epsilon": UNTIL_FIRST_UPDATE}

    def chosen(self, model: Any, obs: Any, request: Request) -> Action:
        """The policy's actions with its noise, or with probability `explore["epsilon"]` uniform ones of the Box.

        The draws from the generator do not depend on epsilon. The network runs only if some row needs it.
        """
        explore, generator, actions = request.explore, request.generator, model.actions
        if explore is None:
            return Action(actions.decode(model.greedy(faster(model)(obs)).cpu().numpy()))
        rows = rows_in(obs)
        uniform = generator.random(rows) < explore["epsilon"]
        anywhere = generator.uniform(-1.0, 1.0, (rows, actions.size))
        noise = generator.standard_normal((rows, actions.size), np.float32)
        if uniform.all():
            return Action(actions.decode(anywhere))
        noisy = model.noisy(faster(model)(obs), torch.from_numpy(noise).to(actions.reach.device), explore)
        return Action(actions.decode(np.where(uniform[:, None], anywhere, noisy.cpu().numpy())))


class ActorCriticTrainer(TargetTrainer):
    """The optimizers of a model's policy and critics, and the target of its part `source`."""

    kept: ClassVar[tuple[str, ...]] = ("target", "policy_optimizer", "critics_optimizer", "updates", "generator")

    def __init__(self, hyper: Continuous, model: Any, source: nn.Module) -> None:
        super().__init__(hyper, source)
        self.policy, self.critics = model.acting, model.critics
        self.policy_optimizer = ClippedAdam(list(self.policy.parameters()), lr=hyper.learning_rate)
        self.critics_optimizer = ClippedAdam(list(self.critics.parameters()), lr=hyper.learning_rate)
        self.generator = own_generator(self.device)

    def descend(self, optimizer: ClippedAdam, loss: torch.Tensor) -> torch.Tensor:
        """One step of the optimizer's parameters alone; returns the gradient's norm before clipping."""
        optimizer.zero_grad()
        torch.autograd.backward(loss, inputs=optimizer.tensors)
        return optimizer.clip_and_step(self.hyper.max_grad_norm)

    def improve_critics(self, batch: Any, targets: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """One step of both critics on their squared errors, towards targets [B]; rows weighted by `weight`.

        Returns: the metrics, with the sum of both critics' losses; and the rows' priorities [B]: the mean of both
            absolute errors.
        """
        taken = faster(self.critics)(batch.obs, self.policy.actions.encode(batch.action))
        errors = targets - taken
        loss = (batch.weight * errors.square()).mean(1).sum()
        grad_norm = self.descend(self.critics_optimizer, loss)
        return self.metrics(loss, taken, grad_norm), errors.detach().abs().mean(0)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.device, generator=self.generator)
