"""Behaviour cloning (BC): a policy that imitates the actions of demonstrations.

Bain & Sammut 1995, "A framework for behavioural cloning", Machine Intelligence 15, pp. 103-129.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from ..interfaces import Action, Update
from ..spaces import Spaces
from ..spec import TransitionSpec
from .bases.hyperparameters import ActRequest, Hyperparameters, Layers, LearningRate, Positive
from .bases.trainers import AdamTrainer
from .networks.custom import torso_of
from .networks.distributions import distribution_of
from .networks.policy_value import PolicyNetwork
from .networks.stand_in import faster


@dataclass(frozen=True)
class BC(Hyperparameters):
    """Hyperparameters of BC, which learns from observations and actions, not from rewards or ends of episodes."""

    imitates: ClassVar[bool] = True  # so it does not train on rows of its own actors

    learning_rate: LearningRate = 1e-3
    """Adam's step size, above 0; a number or a schedule."""
    hidden: Layers = (64, 64)
    """Units in each fully connected layer, at least one layer."""
    max_grad_norm: Positive = 10.0
    """Larger gradients are scaled down to this norm; above 0."""

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """Returns a row's fields, without extras. Raises ValueError as `distribution_of` does."""
        distribution_of(self.owner, spaces.action)
        return super().transition(spaces)

    def make_model(self, spaces: Spaces) -> PolicyNetwork:
        return PolicyNetwork(self, spaces, torso_of(self, spaces, self.hidden))

    def chosen(self, model: Any, obs: Any, request: ActRequest) -> Action:
        """Draws actions from the policy."""
        return Action(model.distribution.sample(faster(model)(obs), request.mask, request.generator)[0])

    def make_trainer(self, model: Any) -> "BCTrainer":
        return BCTrainer(self, model)


class BCTrainer(AdamTrainer):
    """Maximizes the likelihood of the demonstrations' actions."""

    saved: ClassVar[tuple[str, ...]] = ("optimizer",)

    def __init__(self, hyper: BC, network: PolicyNetwork) -> None:
        super().__init__(hyper)
        self.network = network
        self.optimizer = self.adam(network.parameters())

    def update(self, batch: Any) -> Update:
        """Makes one step on a batch of B transitions; the loss is the actions' mean negative log-probability.

        Forbidden actions have probability 0. `weight` weighs the rows; a row's priority is its loss, or 0 if the loss
        is negative.
        """
        self.follow_schedules(batch)
        network = self.network
        output = faster(network)(batch.obs)
        log_prob, entropy = network.distribution(output, network.spaces.mask_in(batch.obs), batch)
        loss = -(batch.weight * log_prob).mean()
        grad_norm = self.descend(self.optimizer, loss)
        metrics = {"loss": loss.detach(), "entropy": entropy.detach().mean(), "grad_norm": grad_norm}
        return Update(metrics, priority=(-log_prob.detach()).clamp(min=0.0))
