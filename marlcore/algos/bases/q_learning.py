"""Base of algorithms that learn action values: exploration, first priorities, and updates on rows and on windows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ...compiled import explore, step_error
from ...declared import Whole
from ...interfaces import PRIORITY, Action, ReplaySource, Update
from ...spaces import Spaces
from ...spec import Field, TransitionSpec
from ..networks.actions import JointActions, array_of
from ..networks.qnetwork import QNetwork, best
from ..networks.stand_in import faster
from ..networks.torso import rows_in
from .hyperparameters import ActRequest, Hyperparameters, Layers, LearningRate, Positive, Share
from .trainers import TargetTrainer
from .windows import n_step_returns, shortened, window_priority


@dataclass(frozen=True)
class QLearning(Hyperparameters):
    """Hyperparameters of all algorithms that learn action values."""

    learning_rate: LearningRate = 2.5e-4
    """Adam's step size, above 0, usually 1e-4 to 1e-3; a number or a schedule, such as
    "linear(2.5e-4, 0, 1000000)"."""
    hidden: Layers = (128, 64)
    """Units in each fully connected layer, at least one layer, usually 64 to 512; the head has the last."""
    double: bool = True
    """Choose the next action by the network, evaluate it by the target network (van Hasselt et al. 2016)."""
    dueling: bool = True
    """Estimate the state's value and the actions' advantages separately (Wang et al. 2016)."""
    tau: Share = 0.02
    """Fraction of the network mixed into the target after each update, in (0, 1], usually 0.005 to 0.02; only used if
    target_update_freq is 0."""
    target_update_freq: Annotated[int, Whole(0)] = 0
    """Updates between copies of the network to the target, usually 100 to 10,000; 0 moves the target by tau after each
    update."""
    max_grad_norm: Positive = 10.0
    """Larger gradients are scaled down to this norm; above 0, usually 0.5 to 10."""
    reward_scale: Positive = 0.1
    """Factor on rewards, above 0; errors beyond 1 count linearly, so aim at rewards near 1."""

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """Returns a row's fields, without extras. Raises ValueError as JointActions does."""
        JointActions(self.owner, spaces.action)
        return super().transition(spaces)


@dataclass(frozen=True)
class FeedforwardQLearning(QLearning):
    """Base of algorithms whose model is a QNetwork without memory.

    Actors may compute the first priorities of transitions, so that not all new rows get the highest priority (Horgan et
    al. 2018, "Distributed prioritized experience replay", arXiv:1803.00933, section 3). Such a priority is the one-step
    TD error, computed from the values by which the actor chose its actions.
    """

    actor_priorities: bool = False
    """With prioritized replay: actors compute each transition's first priority (Horgan et al. 2018)."""

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """Returns a row's fields, with first priorities if actors give them. Raises ValueError as JointActions does."""
        spec = super().transition(spaces)
        return replace(spec, extras={PRIORITY: Field()}) if self.actor_priorities else spec

    def source(self, chosen: ReplaySource) -> ReplaySource:
        """Returns the chosen source; if actors compute first priorities, new rows enter the replay with these."""
        if not self.actor_priorities or chosen.prioritized is None:
            return chosen
        return replace(chosen, prioritized=replace(chosen.prioritized, initial=PRIORITY))

    def make_model(self, spaces: Spaces) -> QNetwork:
        return QNetwork(self, spaces)

    def chosen(self, model: Any, obs: Any, request: ActRequest) -> Action:
        """Returns epsilon-greedy actions. The network runs only if a row acts greedily or needs a first priority."""
        actions: JointActions = model.actions
        allowed, rows = actions.allowed(request.mask), rows_in(obs)
        chosen, epsilon = np.full(rows, -1), request.explore["epsilon"]
        exploring = explore(chosen, actions.count, array_of(allowed), epsilon, request.generator)
        if exploring == rows and not self.actor_priorities:
            return Action(actions.decode(chosen))
        values = faster(model)(obs)
        greedy: NDArray[np.int64] = array_of(best(values, allowed))
        chosen = np.where(chosen < 0, greedy, chosen)
        if not self.actor_priorities:
            return Action(actions.decode(chosen))
        all_values, each_row = array_of(values), np.arange(rows)
        unknown = {PRIORITY: np.full(rows, np.nan, np.float32)}
        of_rows = {"taken": all_values[each_row, chosen], "best": all_values[each_row, greedy]}
        return Action(actions.decode(chosen), unknown, values=of_rows)

    def first_priority(
        self,
        before: Mapping[str, NDArray[Any]],
        reward: NDArray[Any],
        discount: float,
        after: Mapping[str, NDArray[Any]],
    ) -> NDArray[np.float32]:
        """Returns priorities of one-step TD errors, NaN where a value is unknown; see `Algorithm.first_priority`."""
        error = step_error(self.reward_scale, before, reward, discount, after)
        return self.priority_of(error).astype(np.float32)

    def priority_of(self, error: NDArray[Any]) -> NDArray[Any]:
        """Returns the priorities for absolute errors, in units of reward_scale times the reward; here, the errors."""
        return error


class QTrainer(TargetTrainer):
    """Trains a network by Q-learning towards a target network, with the Huber loss."""

    saved: ClassVar[tuple[str, ...]] = ("target", "optimizer", "updates")

    def __init__(self, hyper: QLearning, network: Any) -> None:
        super().__init__(hyper, network)
        self.network = network
        self.optimizer = self.adam(network.parameters())
        self.period = hyper.target_update_freq or 1

    def update(self, batch: Any) -> Update:
        self.follow_schedules(batch)
        return self.step(batch)

    def step(self, batch: Any) -> Update:
        """Makes one step on a batch of B transitions, weighted by `weight`.

        The Huber loss clips the error in the gradient to [-1, 1] (Mnih et al. 2015, Methods, "Training algorithm for
        deep Q-networks"). A row's priority is its absolute error (Schaul et al. 2016, "Prioritized experience replay",
        arXiv:1511.05952, section 3.3), in units of reward_scale times the reward.
        """
        values = faster(self.network)(batch.obs)
        q_taken = self.value_of(self.network, values, self.action_index(batch), batch.obs)
        targets = self.targets(batch)
        loss = (batch.weight * functional.huber_loss(q_taken, targets, reduction="none")).mean()
        penalties = self.penalties(batch, values, q_taken)
        loss = sum(penalties.values(), loss)
        grad_norm = self.descend(self.optimizer, loss)
        self.move_target()
        metrics = self.metrics(loss, q_taken, grad_norm) | {name: term.detach() for name, term in penalties.items()}
        return Update(metrics, priority=(targets - q_taken.detach()).abs())

    def penalties(self, batch: Any, values: torch.Tensor, q_taken: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns further loss terms by name, given all values [B, actions] and the taken actions' values [B]."""
        return {}

    def action_index(self, batch: Any) -> Any:
        """Returns the numbers int64 [...] of a batch's actions."""
        return self.network.actions.encode(batch.action)

    def value_of(self, network: Any, values: torch.Tensor, action: torch.Tensor, obs: Any) -> torch.Tensor:
        """Picks the values [...] of the actions [...] out of a network's values [..., actions]."""
        return values.gather(-1, action[..., None]).squeeze(-1)

    @torch.no_grad()
    def targets(self, batch: Any) -> torch.Tensor:
        """Returns the scaled reward plus the discounted value of the next observation, float32 [B].

        Without `double`, the next value is the target network's maximum (Mnih et al. 2015, Algorithm 1). With `double`,
        it is the target network's value of the network's best action (van Hasselt et al. 2016). Only allowed actions
        count.
        """
        values = faster(self.target)(batch.next_obs)
        chooser = faster(self.network)(batch.next_obs) if self.hyper.double else values
        action = best(chooser, self.network.allowed(batch.next_obs, values))
        return self.bootstrapped(batch, self.value_of(self.target, values, action, batch.next_obs))

    def move_target(self) -> None:
        """Counts an update; moves the target by `tau`, or copies the network after `target_update_freq` updates."""
        self.updates += 1
        if not self.hyper.target_update_freq:
            self.soft_update(self.hyper.tau)
        elif self.updates % self.period == 0:
            self.soft_update(1.0)


class WindowTrainer(QTrainer):
    """Trains a network with memory by Q-learning on windows of episodes, with the Huber loss.

    A batch has DQN's fields with an axis T after B, `mask` bool [B, T], `valid`, and the first state in `extras`.
    """

    def step(self, batch: Any) -> Update:
        """Makes one step on B windows of T transitions; only transitions whose `mask` is True count.

        The loss is the mean over these transitions of the Huber loss times the window's `weight`. For priorities, see
        `window_priority`.
        """
        batch, window = shortened(batch, self.hyper.burn_in)
        values, _ = faster(self.network)(*window)
        q_taken = self.value_of(self.network, values[:, :-1], self.action_index(batch), batch.obs)
        targets = self.window_targets(batch, window, values.detach())
        counts = batch.mask.float()
        errors = functional.huber_loss(q_taken, targets, reduction="none") * counts
        number = counts.sum().clamp(min=1.0)
        loss = (batch.weight[:, None] * errors).sum() / number
        grad_norm = self.descend(self.optimizer, loss)
        self.move_target()
        q_taken = q_taken.detach()
        q_mean = (self.unscaled(q_taken) * counts).sum() / (number * self.hyper.reward_scale)
        metrics = {"loss": loss.detach(), "q_mean": q_mean, "grad_norm": grad_norm}
        return Update(metrics, window_priority((targets - q_taken).abs() * counts, counts, self.hyper.eta))

    @torch.no_grad()
    def window_targets(self, batch: Any, window: tuple[Any, ...], values: torch.Tensor) -> torch.Tensor:
        """Returns n-step returns, float32 [B, T], bootstrapped with values of the target network.

        The action after the last step is the best by the target network or, with `double`, by the network's `values`
        [B, T + 1, actions].
        """
        slow, _ = faster(self.target)(*window)
        action = best(values if self.hyper.double else slow, self.network.allowed(window[0], slow))
        value = self.unscaled(self.value_of(self.target, slow, action, window[0]))
        reward, discount, end = n_step_returns(batch, self.hyper.n_step)
        return self.scaled(self.hyper.reward_scale * reward + discount * value.gather(1, end))

    def scaled(self, values: torch.Tensor) -> torch.Tensor:
        """Converts values in units of the scaled reward to the network's scale; by default, returns them unchanged."""
        return values

    def unscaled(self, values: torch.Tensor) -> torch.Tensor:
        return values
