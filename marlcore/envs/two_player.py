"""Environments of two players whose one `step` takes both actions in one vector, such as hockey."""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym
from numpy.typing import ArrayLike, NDArray

from ..checks import brief, check_whole
from ..spec import Field, as_field
from .agent_view import Wrapper, as_reward, result_of

PLAYERS = ("player_1", "player_2")
WINNER = "winner"


class TwoPlayer(Wrapper):
    """Turns an environment written for its first player into a PettingZoo Parallel environment of both.

    `env` is like a Gymnasium environment, and has methods for its second player: `obs_agent_two()`,
    `get_info_agent_two()` and, unless the game is zero-sum, `get_reward_agent_two(info)`. `step` takes the first
    player's action, followed by the second's; `info["winner"]` is 1 if the first player has won, -1 if the second has,
    otherwise 0. Each player here has an info of its own, in which the winner is 1 for the player that has won.

    Args:
        env: the environment, or Gymnasium's wrappers of it; ObservationWrappers and RewardWrappers serve both players.
        actions: [n, k], a table from which players choose a row by its number, for algorithms of discrete actions;
            None: an action is the player's half of the Box, float [k].
        max_steps: number of steps after which an episode without a winner is truncated, even if the environment reports
            `terminated` at that step; None leaves the environment's ends as they are.

    Attributes:
        possible_agents: "player_1" and "player_2". agents: the players of the current episode.

    Raises: TypeError: the environment lacks a method. ValueError: its action space cannot be halved, or the table's
        rows are not as long as a half.
    """

    def __init__(self, env: Any, *, actions: ArrayLike | None = None, max_steps: int | None = None) -> None:
        games = [each for each in (env, getattr(env, "unwrapped", env)) if hasattr(each, "obs_agent_two")]
        if not games or not hasattr(games[0], "get_info_agent_two"):
            missing = "get_info_agent_two" if games else "obs_agent_two"
            raise TypeError(f"env: expected a game of two players with the method {missing}, got {brief(env)}")
        if max_steps is not None:
            check_whole("max_steps", max_steps)
        self.possible_agents = list(PLAYERS)
        self.agents: list[str] = []
        self._env = env
        self._game = games[0]
        wrappers = [] if games[0] is env else _wrappers_of(env)
        self._see = [each.observation for each in wrappers if isinstance(each, gymnasium.ObservationWrapper)]
        self._pay = [each.reward for each in wrappers if isinstance(each, gymnasium.RewardWrapper)]
        self._max_steps = max_steps
        self._reward_of_two = getattr(games[0], "get_reward_agent_two", None)
        self._halves = dict(zip(PLAYERS, _halves(env.action_space), strict=True))
        self._table = None if actions is None else _checked_table(actions, self._halves)

    def observation_space(self, agent: str) -> gym.Space:
        return self._env.observation_space

    def action_space(self, agent: str) -> gym.Space:
        return self._halves[agent] if self._table is None else gym.Discrete(len(self._table))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        obs, info = result_of("reset", self._env.reset(seed=seed))
        self.agents = list(PLAYERS)
        self._steps = 0
        return self._by_player(obs), self._infos(info)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        both = [actions[agent] if self._table is None else self._table[int(actions[agent])] for agent in PLAYERS]
        obs, reward, terminated, truncated, info = result_of("step", self._env.step(np.concatenate(both)))
        self._steps += 1
        if self._max_steps is not None and self._steps >= self._max_steps and not info.get(WINNER):
            terminated, truncated = False, True
        if terminated or truncated:
            self.agents = []
        infos = self._infos(info)
        first = as_reward(reward)
        second = -first
        if self._reward_of_two is not None:
            second = as_reward(_changed(self._reward_of_two(infos[PLAYERS[1]]), self._pay))
        rewards = dict(zip(PLAYERS, (first, second), strict=True))
        ends = dict.fromkeys(PLAYERS, terminated), dict.fromkeys(PLAYERS, truncated)
        return self._by_player(obs), rewards, *ends, infos

    def _by_player(self, first: Any) -> dict[str, Any]:
        """Returns both players' observations in the space's dtype; `first` is the first player's, in any dtype."""
        space = self._env.observation_space
        both = dict(zip(PLAYERS, (first, _changed(self._game.obs_agent_two(), self._see)), strict=True))
        if not isinstance(space, gym.Box):
            return both
        field = Field(space.shape, np.dtype(space.dtype).name)
        return {player: as_field(f"{player}: obs", field, obs) for player, obs in both.items()}

    def _infos(self, first: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        second = dict(self._game.get_info_agent_two())
        if WINNER in first:
            second[WINNER] = -first[WINNER]
        return dict(zip(PLAYERS, (dict(first), second), strict=True))


def _wrappers_of(env: Any) -> list[Any]:
    """Returns the wrappers around an environment, the innermost first."""
    return [*_wrappers_of(env.env), env] if isinstance(env, gymnasium.Wrapper) else []


def _changed(value: Any, changes: list[Callable[[Any], Any]]) -> Any:
    return reduce(lambda changed, change: change(changed), changes, value)


def _halves(space: Any) -> tuple[gym.Box, gym.Box]:
    if not isinstance(space, gym.Box) or len(space.shape) != 1 or space.shape[0] % 2:
        raise ValueError(f"action space: expected a Box of even length, one half for each player, got {space}")
    k = space.shape[0] // 2
    low, high = space.low, space.high
    return gym.Box(low[:k], high[:k], dtype=space.dtype), gym.Box(low[k:], high[k:], dtype=space.dtype)


def _checked_table(actions: ArrayLike, halves: Mapping[str, gym.Box]) -> NDArray[Any]:
    half = halves[PLAYERS[0]]
    table = np.asarray(actions, half.dtype)
    if table.ndim != 2 or not len(table) or table.shape[1] != half.shape[0]:
        raise ValueError(
            f"actions: expected a table [n, {half.shape[0]}] of a player's actions, got shape {table.shape}"
        )
    for row in table:
        for of_player in halves.values():
            if not of_player.contains(row):
                raise ValueError(f"actions: expected rows within {of_player}, got {row.tolist()}")
    return table
