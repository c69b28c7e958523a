"""MATD3: team members act on their own observations; pairs of critics see all observations and actions.

Ackermann et al. 2019, "Reducing overestimation bias in multi-agent domains using double centralized critics"
(arXiv:1910.01465). The update is in bases/actor_critic.py, as MADDPG's is.
"""

from dataclasses import dataclass
from typing import ClassVar

from .bases.actor_critic import TeamDelayedPolicy


@dataclass(frozen=True)
class MATD3(TeamDelayedPolicy):
    """Hyperparameters of MATD3; the agent is a team, see Config.teams. Only Box actions have noise."""

    critics: ClassVar[int] = 2
