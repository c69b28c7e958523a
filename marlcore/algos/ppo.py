"""Proximal policy optimization, of one agent or of many (IPPO, MAPPO), from a queue of transitions.

Schulman et al. 2017, "Proximal policy optimization algorithms" (arXiv:1707.06347). bases/clipped_policy.py has the
hyperparameters, the update and the clipped objective, which RecurrentPPO and HAPPO share.
"""

from dataclasses import dataclass
from typing import Any

from ..interfaces import Action
from ..spaces import JOINT, Spaces
from .bases.clipped_policy import ClippedPolicy, ClippedPolicyTrainer
from .bases.hyperparameters import ActRequest
from .networks.policy_value import PolicyValue
from .networks.stand_in import faster


@dataclass(frozen=True)
class PPO(ClippedPolicy):
    """Hyperparameters of PPO. Each step on a minibatch counts as an update."""

    def make_model(self, spaces: Spaces) -> PolicyValue:
        return PolicyValue(self, spaces)

    def chosen(self, model: Any, obs: Any, request: ActRequest) -> Action:
        """Draws actions from the policy."""
        return self.sampled(model, faster(model)(obs), request)

    def make_trainer(self, model: Any) -> ClippedPolicyTrainer:
        return ClippedPolicyTrainer(self, model)


@dataclass(frozen=True)
class MAPPO(PPO):
    """Hyperparameters of MAPPO: those of PPO. Its critic sees the agent's and the joint observation.

    Yu et al. 2022, "The surprising effectiveness of PPO in cooperative multi-agent games" (arXiv:2103.01955).
    MAPPO needs PettingZoo's Parallel environments; agents of one kind learn faster with one policy (`policies=`).
    """

    wants_joint = True

    def make_model(self, spaces: Spaces) -> PolicyValue:
        return PolicyValue(self, spaces, of_critic=(JOINT,))
