"""Networks of a policy and of the value of observations, for algorithms that learn both."""

import math
from typing import Any

import torch
from torch import nn

from ...spaces import Spaces
from .distributions import distribution_of
from .recurrent import RecurrentTorso
from .torso import Activation, Torso


class PolicyNetwork(nn.Module):
    """Observations to the outputs [B, outputs] that a distribution over actions takes."""

    def __init__(self, owner: str, spaces: Spaces, torso: Torso | RecurrentTorso) -> None:
        super().__init__()
        self.spaces = spaces
        self.distribution = distribution_of(owner, spaces.action)
        self.torso = torso
        self.head = nn.Linear(self.torso.size, self.distribution.outputs)
        initialize(self.torso)
        initialize(self.head, 0.01)  # nearly uniform at first

    def forward(self, obs: Any) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.torso(obs))
        return outputs


class ValueNetwork(nn.Module):
    """Observations to their values [B]."""

    def __init__(self, spaces: Spaces, hidden: tuple[int, ...], activation: Activation) -> None:
        super().__init__()
        self.torso = Torso(spaces, hidden, activation)
        self.head = nn.Linear(self.torso.size, 1)
        initialize(self.torso)
        initialize(self.head, 1.0)

    def forward(self, obs: Any) -> torch.Tensor:
        values: torch.Tensor = self.head(self.torso(obs))
        return values.squeeze(1)


class PolicyValue(nn.Module):
    """A policy, which is the part that acts, and a critic, which alone sees an observation's parts `of_critic`."""

    def __init__(
        self, owner: str, spaces: Spaces, hidden: tuple[int, ...], activation: Activation, of_critic: Any = ()
    ) -> None:
        super().__init__()
        self.acting = PolicyNetwork(owner, spaces, Torso(spaces, hidden, activation, of_critic))
        self.critic = ValueNetwork(spaces, hidden, activation)

    def forward(self, obs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The policy's outputs [B, outputs] and the values [B]."""
        return self.acting(obs), self.critic(obs)


def initialize(part: nn.Module, gain: float = math.sqrt(2)) -> None:
    """Orthogonal weights and zero biases (Huang et al. 2022, detail 2)."""
    for module in part.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(module.weight, gain)
            assert module.bias is not None
            nn.init.zeros_(module.bias)
