"""Computes the exact exploitability of policies in two-player games small enough to enumerate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..checks import brief

_CLOSE = 1e-6  # tolerance of sums: probabilities to 1, returns to 0


class GameState(Protocol):
    """A state of an extensive-form game; OpenSpiel's `pyspiel.State` fits this protocol."""

    def is_terminal(self) -> bool: ...

    def is_chance_node(self) -> bool: ...

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        """Returns a chance node's actions and their probabilities."""

    def current_player(self) -> int:
        """Returns the player who acts, 0 or 1."""

    def legal_actions(self) -> Sequence[int]: ...

    def child(self, action: int) -> GameState:
        """Returns a new state after the action; this state stays unchanged."""

    def returns(self) -> Sequence[float]:
        """Returns the returns of players 0 and 1 at a terminal state; their sum is 0."""

    def information_state_string(self) -> str:
        """Encodes everything that the current player knows, including its own earlier actions."""


Floats: TypeAlias = NDArray[np.float64]
Strategy: TypeAlias = Callable[[Any], Mapping[int, float]]


def exploitability(
    root: GameState,
    strategies: Strategy | Sequence[Strategy] | Sequence[Sequence[Strategy]],
    weights: Sequence[float] | Sequence[Sequence[float]] | None = None,
) -> float:
    """Returns the mean return, over both players, of best responses to a strategy or a mixture of strategies.

    This is half of NashConv, and equals OpenSpiel's `exploitability`: 0 for an equilibrium, positive otherwise. A
    strategy acts for both players, unless each player has its own strategies. A mixture draws a strategy before each
    game, and plays that strategy to the end.

    The cost is the number of states times the depth of the game.

    Args:
        root: the first state of a zero-sum game with perfect recall, in which players move one at a time.
        strategies: a function, a sequence of functions, or two such sequences, for player 0 and for player 1. Each
            function maps a state to a dict from the current player's legal actions to their probabilities; missing
            actions have 0. Each function is called once for each information state.
        weights: the probability of each strategy: a sequence, or two sequences if `strategies` are two; None: the
            probabilities are equal.

    Raises: ValueError: the weights or a strategy's probabilities are no distribution, a player is neither 0 nor 1, or
        the game's returns do not sum to 0.
    """
    given: Any = [strategies] if callable(strategies) else list(strategies)
    shares: Any = [None] * 2 if weights is None else weights
    if not given or any(map(callable, given)):  # the strategies act for both players
        given, shares = [given] * 2, [weights] * 2
    if len(given) != 2 or len(shares) != 2:
        raise ValueError(f"strategies, weights: expected two of each, got {len(given)} and {len(shares)}")
    mixtures = [(list(mixed), _shares(len(mixed), share)) for mixed, share in zip(given, shares, strict=True)]
    return sum(_BestResponse(1 - seat, mixed).value(root, share) for seat, (mixed, share) in enumerate(mixtures)) / 2


def _shares(count: int, weights: Sequence[float] | None) -> Floats:
    shares = np.ones(count) / max(count, 1) if weights is None else np.asarray(weights, np.float64)
    if not count or shares.shape != (count,) or not is_distribution(shares):
        raise ValueError(f"weights: expected {count} probabilities that sum to 1, got {brief(weights)}")
    return shares


def is_distribution(values: Floats) -> bool:
    return bool(np.isfinite(values).all() and (values >= -_CLOSE).all() and abs(values.sum() - 1.0) <= _CLOSE)


@dataclass
class _BestResponse:
    """Computes a player's best response to a mixture of the opponent's strategies.

    The methods' argument `reach` [strategies] is each strategy's weight times the probability that the strategy and
    chance lead to `state` if the player always moves towards it.
    """

    player: int
    others: Sequence[Strategy]
    _reached: dict[str, list[tuple[GameState, Floats]]] = field(default_factory=lambda: defaultdict(list))
    _chosen: dict[str, int] = field(default_factory=dict)
    _probabilities: dict[str, Floats] = field(default_factory=dict)  # [legal actions, strategies]

    def value(self, root: GameState, reach: Floats) -> float:
        self._collect(root, reach)
        return self._value(root, reach)

    def _collect(self, state: GameState, reach: Floats) -> None:
        """Collects the states in which the player acts; states with the same information state form a group."""
        if self._acts_in(state):
            self._reached[state.information_state_string()].append((state, reach))
        for child, further in self._children(state, reach):
            self._collect(child, further)

    def _acts_in(self, state: GameState) -> bool:
        if state.is_terminal() or state.is_chance_node():
            return False
        if state.current_player() not in (0, 1):
            raise ValueError(f"current_player: expected 0 or 1, got {state.current_player()}")
        return state.current_player() == self.player

    def _children(self, state: GameState, reach: Floats) -> list[tuple[GameState, Floats]]:
        if state.is_terminal():
            return []
        if state.is_chance_node():
            return [(state.child(action), reach * odds) for action, odds in state.chance_outcomes()]
        if self._acts_in(state):
            return [(state.child(action), reach) for action in state.legal_actions()]
        rows = zip(state.legal_actions(), self._odds(state), strict=True)
        return [(state.child(action), reach * odds) for action, odds in rows]

    def _value(self, state: GameState, reach: Floats) -> float:
        """Returns the player's expected return from the state on, times `reach`, summed over the strategies."""
        if state.is_terminal():
            returns = state.returns()
            if len(returns) != 2 or abs(sum(returns)) > _CLOSE:
                raise ValueError(f"returns: expected two whose sum is 0, got {brief(list(returns))}")
            return float(returns[self.player] * reach.sum())
        if self._acts_in(state):
            return self._value(state.child(self._best(state)), reach)
        return sum(self._value(child, further) for child, further in self._children(state, reach))

    def _best(self, state: GameState) -> int:
        """Returns the action that is best on average over all states that the player cannot tell from this state."""
        information = state.information_state_string()
        if information not in self._chosen:
            values = {
                action: sum(self._value(alike.child(action), reach) for alike, reach in self._reached[information])
                for action in state.legal_actions()
            }
            self._chosen[information] = max(values, key=values.__getitem__)
        return self._chosen[information]

    def _odds(self, state: GameState) -> Floats:
        information = state.information_state_string()
        if information not in self._probabilities:
            columns = [_column(strategy(state), [*state.legal_actions()], information) for strategy in self.others]
            self._probabilities[information] = np.stack(columns, axis=1)
        return self._probabilities[information]


def _column(given: Any, actions: list[int], information: str) -> Floats:
    odds = given if isinstance(given, Mapping) and given.keys() <= {*actions} else {}
    column = np.array([odds.get(action, 0.0) for action in actions], np.float64)
    if not is_distribution(column):
        expected = f"strategies: expected a dict of probabilities of the actions {actions} that sum to 1"
        raise ValueError(f"{expected}, got {brief(given)} in {information!r}")
    return column
