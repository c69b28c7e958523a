"""MADDPG: MATD3 with one critic, whose targets' actions have no noise, and policies that learn at each update.

Lowe et al. 2017, "Multi-agent actor-critic for mixed cooperative-competitive environments" (arXiv:1706.02275).
"""

from dataclasses import dataclass
from typing import ClassVar

from .base import AtLeast1
from .matd3 import MATD3
from .td3 import AtLeast0


@dataclass(frozen=True)
class MADDPG(MATD3):
    """Hyperparameters of MADDPG; see MATD3. Nothing trains or asks the second critic of a pair; checkpoints have it."""

    asked: ClassVar[int] = 1

    target_noise: AtLeast0 = 0.0
    """Standard deviation of the noise on the target policy's Box actions, at least 0."""
    policy_delay: AtLeast1 = 1
    """Updates of the critic for each one of the policies and the targets, at least 1."""
