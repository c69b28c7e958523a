"""MADDPG: MATD3 with one critic, whose targets' actions have no noise, and policies that learn at each update.

Lowe et al. 2017, "Multi-agent actor-critic for mixed cooperative-competitive environments" (arXiv:1706.02275).
"""

from dataclasses import dataclass
from typing import Any

from .base import AtLeast1
from .matd3 import MATD3, MATD3Trainer
from .td3 import AtLeast0


@dataclass(frozen=True)
class MADDPG(MATD3):
    """Hyperparameters of MADDPG; see MATD3. Nothing trains or asks the second critic of a pair."""

    target_noise: AtLeast0 = 0.0
    """Standard deviation of the noise on the target policy's Box actions, at least 0."""
    policy_delay: AtLeast1 = 1
    """Updates of the critic for each one of the policies and the targets, at least 1."""

    def make_trainer(self, model: Any) -> "MADDPGTrainer":
        return MADDPGTrainer(self, model, source=model)


class MADDPGTrainer(MATD3Trainer):
    """Targets, losses and priorities by the first critic alone; checkpoints have both, as MATD3's."""

    asked = 1
