"""Value decomposition networks (VDN): the team's value is the sum of its members' values.

Sunehag et al. 2018, "Value-decomposition networks for cooperative multi-agent learning" (arXiv:1706.05296).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .bases.team_q_learning import TeamQLearning
from .networks.teams import TeamSpaces


@dataclass(frozen=True)
class VDN(TeamQLearning):
    """Hyperparameters of VDN."""

    def mixer(self, team: TeamSpaces) -> nn.Module:
        return Sum()


class Sum(nn.Module):
    """Sums the members' values (Sunehag et al. 2018, equation 4)."""

    def forward(self, values: torch.Tensor, obs: Any) -> torch.Tensor:
        return values.sum(-1)
