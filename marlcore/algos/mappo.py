"""Multi-agent PPO: policies that see their own observations, and critics that see those of all agents.

Yu et al. 2022, "The surprising effectiveness of PPO in cooperative multi-agent games" (arXiv:2103.01955).
"""

from dataclasses import dataclass

from ..spaces import JOINT, Spaces
from .networks.policy_value import PolicyValue
from .ppo import PPO


@dataclass(frozen=True)
class MAPPO(PPO):
    """Hyperparameters of MAPPO: those of PPO, of which it differs in the critic alone.

    The critic's input is an agent's own observation and the joint one. Environments are PettingZoo's Parallel ones;
    agents that are alike learn faster with one policy (`policies=`), which the paper calls parameter sharing.
    """

    wants_joint = True

    def make_model(self, spaces: Spaces) -> PolicyValue:
        """An untrained model, whose policy has no part of the joint observation."""
        return PolicyValue(self.owner, spaces, self.hidden, self.activation, of_critic=(JOINT,))
