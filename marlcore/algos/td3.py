"""Twin delayed deep deterministic policy gradient (TD3), for continuous actions.

Fujimoto et al. 2018, "Addressing function approximation error in actor-critic methods" (arXiv:1802.09477).
A deterministic policy climbs the value of one of two critics. Both critics learn towards the smaller one of their
targets' values, at the target policy's action with some noise; the policy and all targets move only at every second
update.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import torch

from ..declared import Number
from ..interfaces import Update
from ..spaces import Spaces
from .base import AtLeast1
from .continuous import ActorCritic, ActorCriticTrainer, Continuous, ContinuousPolicy
from .fast import faster

AtLeast0: TypeAlias = Annotated[float, Number(0)]


@dataclass(frozen=True)
class TD3(Continuous):
    """Hyperparameters of TD3. Noise is in units of half the range of an action's component."""

    noise: AtLeast0 = 0.1
    """Standard deviation of the noise of exploration, at least 0; the schedule `noise` of exploration.schedules, if
    there is one, replaces it."""
    target_noise: AtLeast0 = 0.2
    """Standard deviation of the noise on the target policy's actions, at least 0."""
    target_noise_clip: AtLeast0 = 0.5
    """That noise is clipped to this size, at least 0."""
    policy_delay: AtLeast1 = 2
    """Updates of the critics for each one of the policy and the targets, d in the paper, at least 1."""

    def schedules(self) -> Mapping[str, Any]:
        return {**super().schedules(), "noise": self.noise}

    def make_model(self, spaces: Spaces) -> ActorCritic:
        return ActorCritic(self, spaces, DeterministicPolicy)

    def make_trainer(self, model: Any) -> "TD3Trainer":
        return TD3Trainer(self, model, source=model)


class DeterministicPolicy(ContinuousPolicy):
    """Observations to actions [B, size] in [-1, 1]."""

    outputs = 1

    def distribution(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.tanh()

    def noisy(self, distribution: torch.Tensor, noise: torch.Tensor, explore: Mapping[str, Any]) -> torch.Tensor:
        action: torch.Tensor = distribution + explore["noise"] * noise
        return action


class TD3Trainer(ActorCriticTrainer):
    """Critics that learn at each update, and a policy that learns at some; targets of all."""

    def update(self, batch: Any) -> Update:
        """One step on a batch of B transitions (Fujimoto et al. 2018, Algorithm 1); see `improve_critics`."""
        self.follow_schedules(batch)
        metrics, priority = self.improve_critics(batch, self.targets(batch))
        self.updates += 1
        if self.updates % self.hyper.policy_delay == 0:
            loss = self.policy_loss(batch, *self.own_actions(batch))
            self.descend(self.policy_optimizer, loss)
            metrics["policy_loss"] = loss.detach()
            self.soft_update(self.hyper.tau)
        return Update(metrics, priority)

    def own_actions(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The policy's actions [B, size] in [-1, 1], and their values [1, B] by the first critic, with gradients."""
        action = faster(self.policy)(batch.obs)
        return action, faster(self.critics)(batch.obs, action, count=1)

    def policy_loss(self, batch: Any, action: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """The policy's loss, for its actions [B, size] in [-1, 1] and their values [1, B] by the first critic."""
        return -value.mean()

    @torch.no_grad()
    def targets(self, batch: Any) -> torch.Tensor:
        """The scaled reward plus the discounted smaller value of the smoothed action, float32 [B] (Algorithm 1)."""
        values = faster(self.target.critics)(batch.next_obs, self.smoothed(batch.next_obs), self.hyper.asked)
        return self.bootstrapped(batch, values.amin(0))

    def smoothed(self, obs: Any) -> torch.Tensor:
        """The target policy's actions with clipped noise, [B, size] in [-1, 1]."""
        action: torch.Tensor = faster(self.target.acting)(obs)
        clip = self.hyper.target_noise_clip
        noise = (self.hyper.target_noise * self.normal(*action.shape)).clamp_(-clip, clip)
        return action.add(noise).clamp_(-1.0, 1.0)
