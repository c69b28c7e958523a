"""R2D2: Q-learning with memory, on windows of episodes whose recurrent state was stored and is burnt in.

Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", ICLR 2019
(openreview.net/forum?id=r1lyTjAqYX).
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..interfaces import Action, Update
from ..observations import each
from ..spaces import Spaces
from ..spec import TransitionSpec
from .bases.hyperparameters import ActRequest, LearningRate, Positive
from .bases.q_learning import WindowedQLearning, WindowTrainer, random_actions
from .fast import faster
from .networks.qnetwork import RecurrentQNetwork, best
from .networks.recurrent import Cell, State, rescaled, restored, state_fields


@dataclass(frozen=True)
class R2D2(WindowedQLearning):
    """Hyperparameters of R2D2; see WindowedQLearning."""

    cell: Cell = "lstm"
    """The recurrent layer before the last of the layers `hidden`: an lstm, a gru, which on a CPU takes twice the time,
    or your own, a function of inputs and units or its module:name; docs/guides/own-network.md says more."""
    learning_rate: LearningRate = 5e-4
    """Adam's step size, above 0; a number or a schedule."""
    rescale: bool = True
    """Learn values on the scale of `rescaled`, on which large returns differ less."""
    reward_scale: Positive = 1.0
    """Factor on rewards, above 0; errors beyond 1 count linearly."""

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """A row, and the recurrent state in each `period`-th row of an episode. Raises ValueError: see JointActions."""
        state = state_fields(self, spaces, self.period)
        return dataclasses.replace(super().transition(spaces), extras=state)

    def make_model(self, spaces: Spaces) -> "RecurrentQNetwork":
        return RecurrentQNetwork(self, spaces)

    def chosen(self, model: Any, obs: Any, request: ActRequest) -> Action:
        """Epsilon-greedy actions; `explore` holds "epsilon"."""
        values, after = faster(model)(obs, request.state)
        allowed = model.actions.allowed(request.mask)
        random = random_actions(len(values), model.actions.count, allowed, request)
        action = model.actions.decode(np.where(*random, best(values, allowed).cpu().numpy()))
        return Action(action, state=model.torso.acted(after, action))

    def greedy(self, model: Any, obs: Any, state: State | None, mask: torch.Tensor | None) -> Any:
        values, after = faster(model)(obs, state)
        action = model.actions.decoded(best(values, model.actions.allowed(mask)))
        return action, model.torso.acted(after, action)

    def make_trainer(self, model: Any) -> "R2D2Trainer":
        return R2D2Trainer(self, model)


class R2D2Trainer(WindowTrainer):
    """Q-learning on windows towards a target network, with the Huber loss."""

    def update(self, batch: Any) -> Update:
        """One step on a batch of B windows of T transitions, of which those count where `mask` is True.

        The batch is as for DQN with an axis T after B, and has `mask` bool [B, T], `valid`, and in `extras` the state.
        """
        self.follow_schedules(batch)
        batch, window = self.shortened(batch)
        values, _ = faster(self.network)(*window)
        action = self.network.actions.encode(batch.action.flatten(0, 1)).view(batch.reward.shape)
        taken = values[:, :-1].gather(2, action[..., None]).squeeze(2)
        return self.step_on_windows(batch, taken, self.targets(batch, window, values.detach()))

    def unscaled(self, values: torch.Tensor) -> torch.Tensor:
        return restored(values) if self.hyper.rescale else values

    @torch.no_grad()
    def targets(self, batch: Any, window: tuple[Any, ...], values: torch.Tensor) -> torch.Tensor:
        """The returns that the target network's values complete, float32 [B, T]; rescaled as the network's values are.

        The network returned `values` [B, T + 1, actions], by which `double` chooses, for the arguments `window`.
        """
        slow, _ = faster(self.target)(*window)
        allowed = self.network.allowed(each(lambda part: part.flatten(0, 1), window[0]))
        chooser = (values if self.hyper.double else slow).flatten(0, 1)
        action = best(chooser, allowed).view(slow.shape[:2])
        value = slow.gather(2, action[..., None]).squeeze(2)
        returns = self.returns(batch, self.unscaled(value))
        return rescaled(returns) if self.hyper.rescale else returns
