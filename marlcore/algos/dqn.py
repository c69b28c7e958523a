"""Deep Q-learning with a double target and a dueling head.

The update is in bases/q_learning.py. For small networks, C code makes the same update (compiled/dqn.py).

Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518, pp. 529-533;
van Hasselt et al. 2016, "Deep reinforcement learning with double Q-learning" (arXiv:1509.06461);
Wang et al. 2016, "Dueling network architectures for deep reinforcement learning" (arXiv:1511.06581).
"""

from dataclasses import dataclass
from typing import Any

from .bases.q_learning import FeedforwardQLearning, QTrainer


@dataclass(frozen=True)
class DQN(FeedforwardQLearning):
    """Hyperparameters of DQN."""

    def make_trainer(self, model: Any) -> "DQNTrainer":
        return DQNTrainer(self, model)


class DQNTrainer(QTrainer):
    """Trains by Q-learning towards a target network, with the Huber loss."""
