"""QMIX: a network mixes members' values into a team value, which rises with each of them and depends on the state.

Rashid et al. 2018, "QMIX: Monotonic value function factorisation for deep multi-agent reinforcement learning"
(arXiv:1803.11485).
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from .bases.hyperparameters import Units
from .bases.team_q_learning import TeamQLearning
from .networks.teams import TeamSpaces


@dataclass(frozen=True)
class QMIX(TeamQLearning):
    """Hyperparameters of QMIX.

    The mixer sees the environment's state if the environment has a `state_space`, else all agents' observations.
    """

    wants_joint = True

    mixing_units: Units = 32
    """Units of the mixing network's hidden layer, at least 1."""
    hyper_units: Units = 64
    """Units of the hidden layers that compute the mixing network's weights from the state, at least 1."""
    positive: Literal["absolute", "softmax"] = "absolute"
    """How the mixing network's weights stay positive: by "absolute" values, as in the paper, or by a "softmax". With a
    softmax, the team's value grows at most as fast as VDN's if all members' values grow alike."""

    def mixer(self, team: TeamSpaces) -> nn.Module:
        return Mixer(team, self)


class Mixer(nn.Module):
    """Mixes the members' values by two layers, whose weights other networks compute from the state.

    Absolute values keep weights, but not biases, from being negative (Rashid et al. 2018, section 4.1, figure 2).
    """

    def __init__(self, team: TeamSpaces, hyper: QMIX) -> None:
        super().__init__()
        self.team, self.softmax = team, hyper.positive == "softmax"
        self.units, size = hyper.mixing_units, team.state_size
        self.weights = _two_layers(size, hyper.hyper_units, team.count * self.units)
        self.biases = nn.Linear(size, self.units)
        self.last_weights = _two_layers(size, hyper.hyper_units, self.units)
        self.last_bias = _two_layers(size, self.units, 1)

    def forward(self, values: torch.Tensor, obs: Any) -> torch.Tensor:
        """Returns the team's values [...], given members' values [..., members] and the team's observations."""
        state = self.team.state(obs)
        weights, last_weights = self.weights(state).unflatten(-1, (-1, self.units)), self.last_weights(state)
        if self.softmax:  # over the members of each unit, and over the units
            weights, last_weights = weights.softmax(-2), self.team.count * last_weights.softmax(-1)
        hidden = functional.elu((values[..., None] * weights.abs()).sum(-2) + self.biases(state))
        total: torch.Tensor = (hidden * last_weights.abs()).sum(-1) + self.last_bias(state).squeeze(-1)
        return total


def _two_layers(inputs: int, units: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, outputs))
