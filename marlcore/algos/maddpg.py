"""MADDPG: MATD3 with one critic, whose targets' actions have no noise, and policies that learn at each update.

Lowe et al. 2017, "Multi-agent actor-critic for mixed cooperative-competitive environments" (arXiv:1706.02275).
"""

from dataclasses import dataclass
from typing import Any

import torch

from .base import AtLeast1
from .fast import faster
from .matd3 import MATD3, MATD3Trainer
from .td3 import AtLeast0


@dataclass(frozen=True)
class MADDPG(MATD3):
    """Hyperparameters of MADDPG; see MATD3. The second critic is trained, and not asked."""

    target_noise: AtLeast0 = 0.0
    """Standard deviation of the noise on the target policy's Box actions, at least 0."""
    policy_delay: AtLeast1 = 1
    """Updates of the critic for each one of the policies and the targets, at least 1."""

    def make_trainer(self, model: Any) -> "MADDPGTrainer":
        return MADDPGTrainer(self, model, source=model)


class MADDPGTrainer(MATD3Trainer):
    """Targets by the first critic alone."""

    def future(self, obs: Any) -> torch.Tensor:
        value: torch.Tensor = faster(self.target.critics)(obs, self.smoothed(obs), count=1)[0]
        return value
