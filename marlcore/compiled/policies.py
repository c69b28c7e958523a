"""Policies that act without torch, by the weights that a learner publishes; algos/compiled/acting.py makes them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..interfaces import PRIORITY, RETURN, Action, CompiledPolicy
from .acting_networks import ActingNetwork, MemberNetworks
from .actions import EnumeratedActions, ScaledActions, TeamChoices
from .chain import Weights
from .draws import LOG_PROB, LOG_STD, Bits, Categories, Choices, Normals, noisy_actions, of_members
from .moments import moments_of, normalized
from .priorities import quantile_loss, step_error

NOTHING: dict[str, Any] = {}
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
        self._choices = Choices(actions.count, dueling, valued=scale is not None)
        self._actions, self._scale, self._quantiles = actions, scale, quantiles
        self._are_numbers = actions.are_numbers

    def load(self, weights: Weights) -> None:
        super().load(weights)
        _, self._deviation = moments_of(weights, REWARDS).get(RETURN, (0.0, None))

    def act(self, obs: Any, *, explore: Any, mask: Any, generator: np.random.Generator) -> Action:
        allowed = None if mask is None else self._actions.allowed(mask)
        epsilon = None if explore is None else explore["epsilon"]
        network = self.network
        rows = network.begin(obs)
        chosen = self._choices.choose(network.begun, rows, allowed, epsilon, generator)
        action = chosen if self._are_numbers else self._actions.decode(chosen)
        if epsilon is None or self._scale is None:
            return tuple.__new__(Action, (action, NOTHING, None, NOTHING))  # Action(action), in two thirds of the time
        unknown = {PRIORITY: np.full(rows, np.nan, np.float32)}
        return Action(action, unknown, values=self._choices.values(rows))

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
        count, members = self.network.begin(obs), self._team.members
        rows = count // members
        epsilon = None if explore is None else of_members(explore["epsilon"], rows, members)
        allowed = self._team.allowed(mask, rows)
        chosen = self._choices.choose(self.network.begun, count, allowed, epsilon, generator)
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
            action, log_prob, extras = self._draws.act(self.network.begun, self.network.begin(obs), mask, generator)
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
        """Returns actions [k, size] on the scale [-1, 1], not clipped, given standard normal noise [k, size] or 0."""
        outputs, size = self.network.outputs(obs), self._outputs
        mean = outputs[..., :size].reshape(len(outputs), -1)
        if not self._squashed:
            return mean if explore is None else mean + float(explore["noise"]) * noise
        log_std = np.minimum(np.maximum(outputs[:, size : 2 * size], LOG_STD[0]), LOG_STD[1])
        return np.tanh(mean + np.exp(log_std) * noise)
