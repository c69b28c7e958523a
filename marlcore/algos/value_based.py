"""Bases of algorithms that learn action values: epsilon-greedy actions, first priorities, targets, trainers."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ..declared import Whole
from ..interfaces import PRIORITY, Action, ReplaySource
from ..spaces import Spaces
from ..spec import Field, TransitionSpec
from .base import Hyperparameters, Layers, LearningRate, Positive, Request, Share, TargetTrainer
from .fast import faster
from .networks.actions import JointActions
from .networks.qnetwork import best
from .networks.torso import rows_in


@dataclass(frozen=True)
class QLearning(Hyperparameters):
    """Hyperparameters of all algorithms that learn action values."""

    learning_rate: LearningRate = 2.5e-4
    """Adam's step size, above 0; a number or a schedule, such as "linear(2.5e-4, 0, 1000000)"."""
    hidden: Layers = (128, 64)
    """Units in each fully connected layer, at least one layer; the last is the head's."""
    double: bool = True
    """Choose the next action by the network, evaluate it by the target network (van Hasselt et al. 2016)."""
    dueling: bool = True
    """Estimate the state's value and the actions' advantages separately (Wang et al. 2016)."""
    tau: Share = 0.02
    """Fraction of the network mixed into the target after each update, in (0, 1]; used if target_update_freq is 0."""
    target_update_freq: Annotated[int, Whole(0)] = 0
    """Updates between copies of the network to the target; 0 moves the target by tau after each update."""
    max_grad_norm: Positive = 10.0
    """Larger gradients are scaled down to this norm; above 0."""
    reward_scale: Positive = 0.1
    """Factor on rewards, above 0; errors beyond 1 count linearly, so aim at rewards near 1."""

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """A row without extras. Raises ValueError: see JointActions."""
        JointActions(self.owner, spaces.action)
        return super().transition(spaces)


@dataclass(frozen=True)
class FeedforwardQLearning(QLearning):
    """Base of algorithms whose model is a QNetwork without memory.

    Actors may compute the first priorities of transitions, so that new ones need not all count as the most surprising
    (Horgan et al. 2018, "Distributed prioritized experience replay", arXiv:1803.00933, section 3): here the error of
    one step, whose values the actor has when it chooses its actions.
    """

    actor_priorities: bool = False
    """With prioritized replay: actors compute each transition's first priority (Horgan et al. 2018)."""

    def transition(self, spaces: Spaces) -> TransitionSpec:
        """A row, whose only extra is the first priority if actors compute it. Raises ValueError: see JointActions."""
        spec = super().transition(spaces)
        return dataclasses.replace(spec, extras={PRIORITY: Field()}) if self.actor_priorities else spec

    def source(self, chosen: ReplaySource) -> ReplaySource:
        """The chosen one, with first priorities if actors compute them."""
        if not self.actor_priorities or chosen.prioritized is None:
            return chosen
        return dataclasses.replace(chosen, prioritized=dataclasses.replace(chosen.prioritized, initial=PRIORITY))

    def chosen(self, model: Any, obs: Any, request: Request) -> Action:
        """Epsilon-greedy actions; `explore` holds "epsilon".

        The network runs only if some row is greedy, or if actors compute first priorities.
        """
        actions: JointActions = model.actions
        allowed = actions.allowed(request.mask)
        random = random_actions(rows_in(obs), actions.count, allowed, request)
        if random[0].all() and not self.actor_priorities:
            return Action(actions.decode(random[1]))
        values = faster(model)(obs)
        greedy: NDArray[np.int64] = best(values, allowed).cpu().numpy()
        chosen = np.where(*random, greedy)
        if not self.actor_priorities:
            return Action(actions.decode(chosen))
        all_values, rows = values.cpu().numpy(), np.arange(len(chosen))
        unknown = {PRIORITY: np.full(len(chosen), np.nan, np.float32)}
        of_rows = {"taken": all_values[rows, chosen], "best": all_values[rows, greedy]}
        return Action(actions.decode(chosen), unknown, values=of_rows)

    def greedy(self, model: Any, obs: Any, state: Any, mask: torch.Tensor | None) -> Any:
        return model.actions.decoded(best(faster(model)(obs), model.actions.allowed(mask))), None

    def first_priority(
        self,
        before: Mapping[str, NDArray[Any]],
        reward: NDArray[Any],
        discount: float,
        after: Mapping[str, NDArray[Any]],
    ) -> NDArray[np.float32]:
        """See `priority_of`, of the error of one step; NaN where a value is unknown."""
        error: NDArray[Any] = np.abs(self.reward_scale * reward + discount * after["best"] - before["taken"])
        return self.priority_of(error).astype(np.float32)

    def priority_of(self, error: NDArray[Any]) -> NDArray[Any]:
        """The priorities of transitions with these absolute errors, in units of reward_scale times the reward."""
        return error


def random_actions(
    rows: int, actions: int, allowed: torch.Tensor | None, request: Request
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which rows explore, and a random allowed action of each row.

    The draws from the generator depend neither on epsilon nor on the mask. Of a row's n allowed actions it is the one
    numbered floor(place * n), for a place drawn from [0, 1).
    """
    explores, place = request.generator.random((2, rows))
    explores = explores < request.explore["epsilon"]
    if allowed is None:
        return explores, (place * actions).astype(np.int64)
    passed = allowed.cpu().numpy().cumsum(1)
    rank = (place * passed[:, -1]).astype(np.int64)
    return explores, (passed > rank[:, None]).argmax(1)


class QTrainer(TargetTrainer):
    """A network's optimizer and its target network."""

    kept: ClassVar[tuple[str, ...]] = ("target", "optimizer", "updates")

    def __init__(self, hyper: QLearning, network: Any) -> None:
        super().__init__(hyper, network)
        self.network = network
        self.optimizer = self.adam(list(network.parameters()))

    def step(self, loss: torch.Tensor) -> torch.Tensor:
        """One gradient step on `loss`, then the target's update; returns the gradient's norm before clipping."""
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        return self.advance()

    def advance(self) -> torch.Tensor:
        """A step by the parameters' gradients, then the target's update; returns their norm before clipping."""
        grad_norm = self.optimizer.clip_and_step(self.hyper.max_grad_norm)
        self.updates += 1
        interval = self.hyper.target_update_freq
        if not interval:
            self.soft_update(self.hyper.tau)
        elif self.updates % interval == 0:
            self.soft_update(1.0)
        return grad_norm
