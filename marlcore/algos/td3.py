"""Twin delayed deep deterministic policy gradient (TD3), for continuous actions.

Fujimoto et al. 2018, "Addressing function approximation error in actor-critic methods" (arXiv:1802.09477).
A deterministic policy learns to maximize the first critic's value. Both critics learn one target: the reward plus the
discounted next value, which is the lower of the two target critics' values of the target policy's action plus noise.
Policy and target networks move only at every second update. The update is in bases/actor_critic.py.
"""

from dataclasses import dataclass
from typing import Any

from .bases.actor_critic import DelayedPolicy, DelayedPolicyTrainer


@dataclass(frozen=True)
class TD3(DelayedPolicy):
    """Hyperparameters of TD3. Noise is in units of half the range of an action's component."""

    def make_trainer(self, model: Any) -> DelayedPolicyTrainer:
        return DelayedPolicyTrainer(self, model)
