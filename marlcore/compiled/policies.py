"""Policies that act without torch, by the weights that a learner publishes; algos/compiled/acting.py makes them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..interfaces import PRIORITY, RETURN, Action, CompiledPolicy
from ..memory import lib
from .acting_networks import ActingNetwork, MemberNetworks
from .actions import EnumeratedActions, ScaledActions, TeamChoices
from .chain import NO_LAYERS, Floats, Weights, pointer
from .draws import (
    LOG_PROB,
    LOG_STD,
    Bits,
    Categories,
    Choices,
    Normals,
    explore,
    ints_of,
    noisy_actions,
    of_members,
)
from .moments import moments_of, normalized
from .priorities import quantile_loss, step_error

REWARDS = "rewards"  # the module of a model that has the moments of discounted returns


class NetworkPolicy(CompiledPolicy):
    """Acts by a network's outputs; a pickle or a deep copy keeps the weights that were loaded last."""

    def __init__(self, network: ActingNetwork) -> None:
        self.network = network
        self.weights: Weights = {}

    def load(self, weights: Weights) -> None:
        self.weights = weights
        self.network.load(weights)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.weights:
            self.load(self.weights)


class ValuePolicy(NetworkPolicy):
    """Chooses actions of the highest value; to explore, it chooses at random.

    Args:
        dueling: whether the network outputs the actions' advantages, followed by the state's value.
        scale: the factor of rewards in first priorities; None: actors compute no priorities.
        quantiles: the number of quantiles, and kappa, for IQN, whose priorities are its quantile loss; None: a
            priority is the absolute error.
    """

    def __init__(
        self, network: Any, actions: EnumeratedActions, dueling: bool, scale: float | None = None,
        quantiles: tuple[int, float] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(network)
        self._choices = Choices(actions.count)
        self._actions, self._dueling, self._scale, self._quantiles = actions, dueling, scale, quantiles

    def load(self, weights: Weights) -> None:
        super().load(weights)
        _, self._deviation = moments_of(weights, REWARDS).get(RETURN, (0.0, None))

    def act(self, obs: Any, *, explore: Any, mask: Any, generator: np.random.Generator) -> Action:
        allowed = None if mask is None else self._actions.allowed(mask)
        if explore is not None and self._scale is not None:
            return self._valued(obs, allowed, explore["epsilon"], generator)
        epsilon = None if explore is None else explore["epsilon"]
        chosen = self._choices.choose(*self.network.begun(obs), allowed, epsilon, generator)
        return Action(self._actions.decode(chosen))

    def _valued(self, obs: Any, allowed: Any, epsilon: Any, generator: np.random.Generator) -> Action:
        """Chooses actions, and adds the values from which first priorities are computed."""
        outputs = self.network.outputs(obs)
        best = self._choices.choose(NO_LAYERS, outputs, allowed)
        chosen = best.copy()
        explore(chosen, self._actions.count, allowed, epsilon, generator)
        unknown = {PRIORITY: np.full(len(chosen), np.nan, np.float32)}
        values = {"taken": self._values(outputs, chosen), "best": self._values(outputs, best)}
        return Action(self._actions.decode(chosen), unknown, values=values)

    def _values(self, outputs: Floats, action: NDArray[np.int64]) -> Floats:
        (rows, row), value = outputs.shape, np.empty(len(action), np.float32)
        choice = rows, self._actions.count, self._dueling
        lib.mc_values_taken(*choice, pointer(outputs), row, ints_of(action), pointer(value))
        return value

    def first_priority(self, before: Any, reward: Any, discount: float, after: Any) -> NDArray[np.float32]:
        if self._scale is None:
            return super().first_priority(before, reward, discount, after)
        if self._deviation is not None:
            reward = normalized(reward, 0.0, self._deviation)
        error = step_error(self._scale, before, reward, discount, after)
        priority = error if self._quantiles is None else quantile_loss(error, *self._quantiles)
        return priority.astype(np.float32)


class TeamValuePolicy(NetworkPolicy):
    """Chooses each member's action of the highest value; to explore, it chooses at random."""

    def __init__(self, network: MemberNetworks, choices: TeamChoices) -> None:
        super().__init__(network)
        self._team, self._choices = choices, Choices(choices.count)

    def act(self, obs: Any, *, explore: Any, mask: Any, generator: np.random.Generator) -> Action:
        outputs = self.network.outputs(obs)
        rows, members, row = outputs.shape
        epsilon = None if explore is None else of_members(explore["epsilon"], rows, members)
        allowed = self._team.allowed(mask, rows)
        chosen = self._choices.choose(NO_LAYERS, outputs.reshape(-1, row), allowed, epsilon, generator)
        return Action(chosen.reshape(rows, members))


class DrawingPolicy(NetworkPolicy):
    """Draws actions from a distribution; without exploration, it chooses the most probable actions.

    Args:
        log_std: the name, in the weights, of the logarithms of a Box's standard deviations; None for other spaces.
        stores: whether rows store the actions' log-probabilities.
    """

    def __init__(self, network: Any, draws: Categories | Bits | Normals, log_std: str | None, stores: bool) -> None:
        super().__init__(network)
        self._draws, self._name, self._stores = draws, log_std, stores

    def load(self, weights: Weights) -> None:
        super().load(weights)
        self._log_std = None if self._name is None else np.array(weights[self._name])

    def act(self, obs: Any, *, explore: Any, mask: Any, generator: np.random.Generator) -> Action:
        if explore is None:
            return Action(self._draws.mode(self.network.outputs(obs), mask))
        if isinstance(self._draws, Categories):
            action, log_prob, extras = self._draws.act(*self.network.begun(obs), mask, generator)
        else:
            action, log_prob, extras = self._draws.draw(self.network.outputs(obs), mask, generator, self._log_std)
        return Action(action, {LOG_PROB: log_prob, **extras} if self._stores else {})


class NoisyBoxPolicy(NetworkPolicy):
    """Chooses actions of a Box; to explore, it adds noise or, with probability epsilon, draws uniformly.

    Args:
        outputs: the number of components of the action that one network computes; in a team, of a member's action.
        squashed: whether a network outputs means and log standard deviations of actions before tanh, as in SAC;
            otherwise it outputs the actions, within [-1, 1].
    """

    def __init__(self, network: Any, actions: ScaledActions, outputs: int, squashed: bool) -> None:
        super().__init__(network)
        self._actions, self._outputs, self._squashed = actions, outputs, squashed

    def act(self, obs: Any, *, explore: Any, mask: Any, generator: np.random.Generator) -> Action:
        if explore is None:
            return Action(self._actions.decode(self._scaled(obs, 0.0, explore)))
        rows = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        action = noisy_actions(
            rows, self._actions, lambda noise: self._scaled(obs, noise, explore), explore["epsilon"], generator
        )
        return Action(action)

    def _scaled(self, obs: Any, noise: Any, explore: Any) -> Any:
        """Returns actions [k, size] in units of [-1, 1], not clipped, given standard normal noise."""
        outputs, size = self.network.outputs(obs), self._outputs
        mean = outputs[..., :size].reshape(len(outputs), -1)
        if not self._squashed:
            return mean if explore is None else mean + float(explore["noise"]) * noise
        log_std = np.minimum(np.maximum(outputs[:, size : 2 * size], LOG_STD[0]), LOG_STD[1])
        return np.tanh(mean + np.exp(log_std) * noise)
