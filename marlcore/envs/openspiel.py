"""OpenSpiel's games: chance moves are drawn, simultaneous moves are made in turn, and masks allow legal actions."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from ..checks import did_you_mean
from ..lazy import missing
from ..observations import ALONE
from ..spaces import MASK
from .agent_view import check_action


class OpenSpielGame:
    """A game of OpenSpiel as an `Environment` with agents "player_0", "player_1" and so on.

    A player observes the tensor of its information state if the game has one, otherwise the observation tensor.

    Args:
        name: such as kuhn_poker, or with parameters "goofspiel(num_cards=4)".
        parameters: further parameters of the game.

    Attributes:
        game: the `pyspiel.Game`, whose `new_initial_state()` is a root for `mc.exploitability`.
        state: the `pyspiel.State` of the present episode.

    Raises: ValueError: there is no such game, or its states have no tensors.
    """

    def __init__(self, name: str, **parameters: Any) -> None:
        try:
            import pyspiel
        except ModuleNotFoundError as error:
            raise missing(f"openspiel:{name}", error) from None
        if name.partition("(")[0] not in (names := pyspiel.registered_names()):
            raise ValueError(f"environment: expected openspiel:<game>, got {name!r}{did_you_mean(name, names)}")
        try:
            game = pyspiel.load_game(name, parameters) if parameters else pyspiel.load_game(name)
        except (pyspiel.SpielError, TypeError) as error:
            expected = "environment: expected parameters that the game of OpenSpiel takes"
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{expected}, got {name!r} with {parameters} ({reason})") from None
        kind, dynamics = game.get_type(), pyspiel.GameType.Dynamics
        if kind.dynamics == dynamics.SIMULTANEOUS:
            game = pyspiel.convert_to_turn_based(game)
        self._complete = kind.provides_information_state_tensor
        if kind.dynamics == dynamics.MEAN_FIELD or not (self._complete or kind.provides_observation_tensor):
            raise ValueError(f"environment: expected a game (not mean-field) whose states have tensors, got {name!r}")
        self.game = game
        self._shape = game.information_state_tensor_shape() if self._complete else game.observation_tensor_shape()
        self._actions: int = game.num_distinct_actions()
        choices = gym.Discrete(self._actions)
        seen = gym.Dict({ALONE: gym.Box(-np.inf, np.inf, self._shape), MASK: gym.MultiBinary(self._actions)})
        self.agents: tuple[str, ...] = tuple(f"player_{i}" for i in range(game.num_players()))
        self.observation_spaces: Mapping[str, gym.Space] = dict.fromkeys(self.agents, seen)
        self.action_spaces: Mapping[str, gym.Space] = dict.fromkeys(self.agents, choices)
        self.agent: str | None = None
        self._generator = np.random.default_rng()

    def reset(self, seed: int | None = None) -> None:
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        self.state = self.game.new_initial_state()
        self._paid = [0.0] * len(self.agents)  # the part of each player's return that it has had as rewards
        self._leaving = [*range(len(self.agents))]  # players that have not yet had their last turn, after the end
        self._draw_chance()

    def last(self) -> tuple[dict[str, Any], float, bool, bool, Mapping[str, Any]]:
        player = self._player
        reward = self.state.returns()[player] - self._paid[player]
        return self.seen(self.state, player), reward, self.state.is_terminal(), False, {}

    def step(self, action: int | None) -> None:
        check_action(self.agent, action, self.state.is_terminal())
        if action is None:
            self._leaving.pop(0)
        else:
            self._paid[self._player] = self.state.returns()[self._player]
            self.state.apply_action(int(action))
        self._draw_chance()

    def seen(self, state: Any, player: int) -> dict[str, Any]:
        """Returns a player's observation of a `pyspiel.State`, with its mask, in the form of a policy's `act`."""
        tensor = state.information_state_tensor(player) if self._complete else state.observation_tensor(player)
        mask = np.zeros(self._actions, np.int8)
        mask[state.legal_actions(player)] = 1
        return {ALONE: np.reshape(np.array(tensor, np.float32), self._shape), MASK: mask}

    def close(self) -> None:
        pass

    def _draw_chance(self) -> None:
        """Plays chance's moves, then sets the next agent: the state's player; after the end, each player in turn."""
        state = self.state
        while state.is_chance_node():
            actions, odds = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(int(self._generator.choice(actions, p=np.divide(odds, sum(odds)))))
        movers = self._leaving if state.is_terminal() else [state.current_player()]
        self._player = movers[0] if movers else -1
        self.agent = self.agents[self._player] if movers else None
