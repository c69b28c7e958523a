"""Gymnasium environments: one agent. The only module that imports Gymnasium."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..spec import Field

try:
    import gymnasium
except ModuleNotFoundError as error:
    raise ImportError(f"marlcore.envs: {error}; try: pip install marlcore[envs]") from None

__all__ = ["GymnasiumEnvironment", "action_range", "make_gymnasium", "observation_field"]


class GymnasiumEnvironment:
    """A Gymnasium environment as an `Environment` with one agent, "agent_0".

    Action 0 is the first of the action space, whatever number it starts from. Observations are copies.

    Args:
        env: a `gymnasium.Env` with a Box observation space and a Discrete action space.

    Raises:
        ValueError: a space of another kind.
    """

    def __init__(self, env: Any) -> None:
        name = "agent_0"
        count, self._first_action = action_range(name, env.action_space)
        self.agents: tuple[str, ...] = (name,)
        self.observations: Mapping[str, Field] = {name: observation_field(name, env.observation_space)}
        self.actions: Mapping[str, int] = {name: count}
        self.agent: str | None = None
        self._env = env
        self._dtype = env.observation_space.dtype

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode."""
        obs, _ = self._env.reset(seed=seed)
        self._last = (obs, 0.0, False, False)
        self.agent = self.agents[0]

    def last(self) -> tuple[NDArray[Any], float, bool, bool]:
        """(observation, reward, terminated, truncated) of the previous step; the final ones at the end."""
        obs, reward, terminated, truncated = self._last
        return np.array(obs, self._dtype), float(reward), bool(terminated), bool(truncated)

    def step(self, action: int | None) -> None:
        """Act; None when the episode has ended."""
        _, _, terminated, truncated = self._last
        ended = bool(terminated or truncated)
        if self.agent is None or ended != (action is None):
            expected = "a reset" if self.agent is None else "None" if ended else "an action"
            raise ValueError(f"step: expected {expected}, got action {action!r}")
        if action is None:
            self.agent = None
        else:
            obs, reward, terminated, truncated, _ = self._env.step(int(action) + self._first_action)
            self._last = (obs, reward, terminated, truncated)

    def close(self) -> None:
        """Close the wrapped environment."""
        self._env.close()


def make_gymnasium(id: str, /, **options: Any) -> GymnasiumEnvironment:
    """The registered environment `id`, such as CartPole-v1, made with `options`.

    Raises:
        ValueError: no environment is registered under this id, or its spaces are not supported.
    """
    try:
        env = gymnasium.make(id, **options)
    except gymnasium.error.DependencyNotInstalled:
        raise  # the id is right, and the message says what to install
    except gymnasium.error.Error as error:
        expected = "gymnasium:<id> such as gymnasium:CartPole-v1"
        raise ValueError(f"environment: expected {expected}, got 'gymnasium:{id}' ({error})") from None
    return GymnasiumEnvironment(env)


def observation_field(agent: str, space: Any) -> Field:
    """The shape and dtype of a Box, or a ValueError naming the agent."""
    if not isinstance(space, gymnasium.spaces.Box):
        raise ValueError(f"observation space of {agent}: expected a Box, got {space}")
    return Field(space.shape, space.dtype.name)


def action_range(agent: str, space: Any) -> tuple[int, int]:
    """(number of actions, the first one) of a Discrete, or a ValueError naming the agent."""
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise ValueError(f"action space of {agent}: expected a Discrete, got {space}")
    return int(space.n), int(space.start)
