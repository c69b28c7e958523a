"""Conservative Q-learning (CQL) of discrete actions, from data that other policies gathered.

Kumar et al. 2020, "Conservative Q-learning for offline reinforcement learning" (arXiv:2006.04779).
Q-learning overestimates actions that its data lack, and no new data correct these errors. CQL pushes the values of all
actions down and the values of the data's actions up.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch

from ..declared import Number
from .bases.q_learning import FeedforwardQLearning, QTrainer
from .networks.distributions import masked


@dataclass(frozen=True)
class CQL(FeedforwardQLearning):
    """Hyperparameters of CQL: those of DQN and the weight of its penalty."""

    alpha: Annotated[float, Number(0)] = 1.0
    """Weight of the penalty beside the loss of DQN, at least 0, usually 0.1 to 5; take a larger weight if
    the data cover fewer actions."""

    def make_trainer(self, model: Any) -> "CQLTrainer":
        return CQLTrainer(self, model)


class CQLTrainer(QTrainer):
    """Trains by Q-learning, with a penalty in the loss for high values of actions that the data do not have."""

    def penalties(self, batch: Any, values: torch.Tensor, q_taken: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns alpha times the mean of log sum exp(values) minus the taken action's value (equation 4)."""
        among = masked(values, self.network.allowed(batch.obs))
        return {"penalty": self.hyper.alpha * (batch.weight * (among.logsumexp(1) - q_taken)).mean()}
