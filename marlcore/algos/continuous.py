"""Policies of continuous actions, and how actors explore with them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import nn

from ..interfaces import Action, Algorithm
from ..spaces import Spaces
from ..spec import TransitionSpec
from .box import BoxActions
from .network import Network
from .torso import Torso

__all__ = ["Continuous", "ContinuousPolicy"]

UNTIL_FIRST_UPDATE = "linear(1, 0, 1, of=updates)"


class ContinuousPolicy(Network):
    """Base of policy networks: observations to a distribution of actions, by `outputs` numbers for each component.

    Attributes:
        actions: of the action space.

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


class Continuous(Algorithm):
    """Base of algorithms whose acting part is a ContinuousPolicy.

    Attributes:
        owner: the algorithm's name in messages.
    """

    owner: ClassVar[str]

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """A row without extras. Raises ValueError: see BoxActions."""
        BoxActions(self.owner, spaces.action)
        return super().transition(spaces)

    def schedules(self) -> Mapping[str, Any]:
        """Until the learner's first update actors draw actions uniformly, as both papers do, and none later."""
        return {"epsilon": UNTIL_FIRST_UPDATE}

    def act(
        self,
        model: torch.nn.Module,
        obs: Any,
        *,
        explore: Mapping[str, Any] | None,
        state: Mapping[str, torch.Tensor] | None,
        mask: torch.Tensor | None,
        generator: np.random.Generator,
    ) -> Action:
        """The policy's actions with its noise, or with probability `explore["epsilon"]` uniform ones of the Box.

        The draws from the generator do not depend on epsilon. The network runs only if some row needs it.
        """
        policy = cast(ContinuousPolicy, model)
        with torch.inference_mode():
            if explore is None:
                return Action(policy.actions.decode(policy.greedy(policy(obs)).cpu().numpy()))
            rows = len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)
            uniform = generator.random(rows) < explore["epsilon"]
            anywhere = generator.uniform(-1.0, 1.0, (rows, policy.actions.size))
            noise = generator.standard_normal((rows, policy.actions.size), np.float32)
            if uniform.all():
                return Action(policy.actions.decode(anywhere))
            on_device = torch.from_numpy(noise).to(policy.actions.reach.device)
            noisy = policy.noisy(policy(obs), on_device, explore)
            return Action(policy.actions.decode(np.where(uniform[:, None], anywhere, noisy.cpu().numpy())))
