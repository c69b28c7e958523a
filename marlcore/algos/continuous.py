"""Bases of off-policy algorithms of continuous actions: policies, their exploration, and their trainers."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from ..interfaces import Action
from ..spaces import Spaces
from ..spec import TransitionSpec
from .base import Hyperparameters, Layers, LearningRate, Positive, Request, Share, TargetTrainer, own_generator
from .fast import ClippedAdam, faster
from .networks.actions import BoxActions
from .networks.critics import OwnCritics, TwinCritics
from .networks.initialization import initialize
from .networks.own import head_on, torso_of, whole_network
from .networks.torso import rows_in

UNTIL_FIRST_UPDATE = "linear(1, 0, 1, of=updates)"


class ContinuousPolicy(nn.Module):
    """Base of policy networks: observations to a distribution of actions, by `outputs` numbers for each component.

    Raises: ValueError: see BoxActions.
    """

    outputs: ClassVar[int]

    def __init__(self, hyper: Any, spaces: Spaces, whole: nn.Module | None = None) -> None:
        super().__init__()
        self.actions = BoxActions(hyper.owner, spaces.action)
        self.torso = torso_of(hyper, spaces, hyper.hidden, (), whole, "policy")
        self.output = head_on(hyper, self.torso, self.outputs * self.actions.size)
        initialize(hyper, self.torso)
        initialize(hyper, self.output, 1.0)

    def forward(self, obs: Any) -> Any:
        return self.distribution(self.output(self.torso(obs)))

    @abstractmethod
    def distribution(self, outputs: torch.Tensor) -> Any:
        """The distribution of actions by the last layer's outputs [B, outputs * size]; the result of a call."""

    def greedy(self, distribution: Any) -> torch.Tensor:
        """Actions [B, size] in [-1, 1] without exploration; by default the distribution is one of them alone."""
        return distribution  # type: ignore[no-any-return]

    @abstractmethod
    def noisy(self, distribution: Any, noise: torch.Tensor, explore: Mapping[str, Any]) -> torch.Tensor:
        """Actions [B, size], given standard normal noise [B, size]; beyond [-1, 1] they count as its ends."""


class ActorCritic(nn.Module):
    """A policy, which is all that actors need, and its critics; a whole model of the user's has both as modules.

    Raises: ValueError: these share parameters, of which each optimizer needs its own.
    """

    def __init__(self, hyper: Any, spaces: Spaces, policy: type[ContinuousPolicy]) -> None:
        super().__init__()
        whole = whole_network(hyper, spaces, "policy", "critics")
        self.acting = policy(hyper, spaces, whole)
        critics: Any = TwinCritics if whole is None else partial(OwnCritics, network=whole)
        self.critics = critics(hyper, spaces, self.acting.actions.size)
        if {*self.acting.parameters()} & {*self.critics.parameters()}:
            expected = "modules policy and critics without common parameters"
            raise ValueError(f"{hyper.owner} network: expected {expected}, got common ones")
        if isinstance(self.critics, TwinCritics):
            initialize(hyper, self.critics)
            initialize(hyper, self.critics.layers[-1], 1.0)


@dataclass(frozen=True)
class Continuous(Hyperparameters):
    """Hyperparameters of all algorithms whose acting part is a ContinuousPolicy."""

    asked: ClassVar[int] = 2  # of each pair of critics, the first ones that are trained and give values

    learning_rate: LearningRate = 1e-3
    """Adam's step size, for the policy, the critics and a learned temperature, above 0; a number or a schedule."""
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
        return {"epsilon": UNTIL_FIRST_UPDATE, **super().schedules()}

    def chosen(self, model: Any, obs: Any, request: Request) -> Action:
        """The policy's actions with its noise, or with probability `explore["epsilon"]` uniform ones of the Box.

        The draws from the generator do not depend on epsilon. The network runs only if some row needs it.
        """
        explore, generator, actions = request.explore, request.generator, model.actions
        rows = rows_in(obs)
        uniform = generator.random(rows) < explore["epsilon"]
        anywhere = generator.uniform(-1.0, 1.0, (rows, actions.size))
        noise = generator.standard_normal((rows, actions.size), np.float32)
        if uniform.all():
            return Action(actions.decode(anywhere))
        noisy = model.noisy(faster(model)(obs), torch.from_numpy(noise).to(actions.reach.device), explore)
        return Action(actions.decode(np.where(uniform[:, None], anywhere, noisy.cpu().numpy())))

    def greedy(self, model: Any, obs: Any, state: Any, mask: torch.Tensor | None) -> Any:
        return model.actions.decoded(model.greedy(faster(model)(obs))), None


class ActorCriticTrainer(TargetTrainer):
    """The optimizers of a model's policy and critics, and the target of its part `source`."""

    kept: ClassVar[tuple[str, ...]] = ("target", "policy_optimizer", "critics_optimizer", "updates", "generator")

    def __init__(self, hyper: Continuous, model: Any, source: nn.Module) -> None:
        super().__init__(hyper, source)
        self.policy, self.critics = model.acting, model.critics
        self.policy_optimizer = self.adam(list(self.policy.parameters()))
        self.critics_optimizer = self.adam(list(self.critics.parameters()))
        self.generator = own_generator(self.device)

    def descend(self, optimizer: ClippedAdam, loss: torch.Tensor) -> torch.Tensor:
        """One step of the optimizer's parameters alone; returns the gradient's norm before clipping."""
        optimizer.zero_grad()
        torch.autograd.backward(loss, inputs=[tensor for tensor in optimizer.tensors if tensor.requires_grad])
        return optimizer.clip_and_step(self.hyper.max_grad_norm)

    def improve_critics(self, batch: Any, targets: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """One step of the critics on their squared errors, towards targets [..., B]; rows weighted by `weight`.

        Returns: the metrics, with the sum of all critics' losses; and the rows' priorities [..., B]: the mean of a
            pair's absolute errors.
        """
        taken = faster(self.critics)(batch.obs, self.policy.actions.encode(batch.action), self.hyper.asked)
        errors = targets - taken
        loss = (batch.weight * errors.square()).mean(-1).sum()
        grad_norm = self.descend(self.critics_optimizer, loss)
        return self.metrics(loss, taken, grad_norm), errors.detach().abs().mean(0)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.device, generator=self.generator)
