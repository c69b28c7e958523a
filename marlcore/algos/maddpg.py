"""MADDPG: as MATD3, with one critic, whose targets' actions have no noise, and policies that learn at each update.

Lowe et al. 2017, "Multi-agent actor-critic for mixed cooperative-competitive environments" (arXiv:1706.02275).
What it shares with MATD3 stands in bases/actor_critic.py.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from .bases.actor_critic import TeamDelayedPolicy, TeamDelayedPolicyTrainer
from .bases.common import AtLeast0, AtLeast1


@dataclass(frozen=True)
class MADDPG(TeamDelayedPolicy):
    """Hyperparameters of MADDPG; the agent is a team, see Config.teams.

    The noises and `target_noise` are of Box actions: Discrete ones are drawn from the policy.
    """

    critics: ClassVar[int] = 1

    target_noise: AtLeast0 = 0.0
    """Standard deviation of the noise on the target policy's Box actions, at least 0."""
    policy_delay: AtLeast1 = 1
    """Updates of the critic for each one of the policies and the targets, at least 1."""

    def make_trainer(self, model: Any) -> "MADDPGTrainer":
        return MADDPGTrainer(self, model)


class MADDPGTrainer(TeamDelayedPolicyTrainer):
    """See TeamDelayedPolicyTrainer."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Also that of earlier checkpoints, whose critics were pairs; nothing had trained the second ones."""
        optimizer, parameters = state["critics_optimizer"], self.critics_optimizer.tensors
        moments = {
            number: {name: part[: len(parameters[number])] if part.ndim else part for name, part in of_one.items()}
            for number, of_one in optimizer["state"].items()
        }
        super().load_state_dict({**state, "critics_optimizer": {**optimizer, "state": moments}})
