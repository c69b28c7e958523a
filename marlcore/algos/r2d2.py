"""R2D2: Q-learning with memory on windows of episodes; stored recurrent states are burnt in by a window's first steps.

Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", ICLR 2019
(openreview.net/forum?id=r1lyTjAqYX).
"""

from dataclasses import dataclass
from typing import Any

import torch

from ..compiled import explore
from ..interfaces import Action
from ..spaces import Spaces
from .bases.hyperparameters import ActRequest, LearningRate, Positive
from .bases.q_learning import QLearning, WindowTrainer
from .bases.windows import Windowed
from .networks.actions import array_of
from .networks.qnetwork import RecurrentQNetwork, best
from .networks.recurrent import Cell, State, rescaled, restored
from .networks.stand_in import faster


@dataclass(frozen=True)
class R2D2(Windowed, QLearning):
    """Hyperparameters of R2D2; a batch has `learner.batch_size` windows; see bases/windows.py."""

    cell: Cell = "lstm"
    """The recurrent layer before the last of the layers `hidden`: lstm, gru (twice as slow on a CPU), or your own,
    given as a function of inputs and units or as its module:name; see docs/guides/own-network.md."""
    learning_rate: LearningRate = 5e-4
    """Adam's step size, above 0; a number or a schedule."""
    rescale: bool = True
    """Learn values on a scale on which large returns differ less: see `rescaled` in networks/recurrent.py."""
    reward_scale: Positive = 1.0
    """Factor on rewards, above 0; errors beyond 1 count linearly."""

    def make_model(self, spaces: Spaces) -> "RecurrentQNetwork":
        return RecurrentQNetwork(self, spaces)

    def chosen(self, model: Any, obs: Any, request: ActRequest) -> Action:
        """Returns epsilon-greedy actions; `explore` holds "epsilon"."""
        values, after = faster(model)(obs, request.state)
        allowed = model.actions.allowed(request.mask)
        chosen = array_of(best(values, allowed))
        explore(chosen, model.actions.count, array_of(allowed), request.explore["epsilon"], request.generator)
        action = model.actions.decode(chosen)
        return Action(action, state=model.torso.acted(after, action))

    def greedy(self, model: Any, obs: Any, state: State | None, mask: torch.Tensor | None) -> Any:
        values, after = faster(model)(obs, state)
        action = model.actions.decoded(best(values, model.actions.allowed(mask)))
        return action, model.torso.acted(after, action)

    def make_trainer(self, model: Any) -> "R2D2Trainer":
        return R2D2Trainer(self, model)


class R2D2Trainer(WindowTrainer):
    """Trains by Q-learning on windows, with rescaled values."""

    def scaled(self, values: torch.Tensor) -> torch.Tensor:
        return rescaled(values) if self.hyper.rescale else values

    def unscaled(self, values: torch.Tensor) -> torch.Tensor:
        return restored(values) if self.hyper.rescale else values
