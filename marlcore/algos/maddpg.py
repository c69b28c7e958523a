"""MADDPG: like MATD3, but with one critic, no noise on target actions, and policies that learn at each update.

Lowe et al. 2017, "Multi-agent actor-critic for mixed cooperative-competitive environments" (arXiv:1706.02275).
The update is in bases/actor_critic.py, as MATD3's is.
"""

from dataclasses import dataclass
from typing import ClassVar

from .bases.actor_critic import TeamDelayedPolicy
from .bases.hyperparameters import AtLeast0, AtLeast1


@dataclass(frozen=True)
class MADDPG(TeamDelayedPolicy):
    """Hyperparameters of MADDPG; the agent is a team, see Config.teams. Only Box actions have noise."""

    critics: ClassVar[int] = 1

    target_noise: AtLeast0 = 0.0
    """Standard deviation of the noise on the target policy's Box actions, at least 0."""
    policy_delay: AtLeast1 = 1
    """Updates of the critic for each update of the policies and the targets, at least 1."""
