"""Gymnasium environments, with one agent; only this module imports Gymnasium."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..spec import Field

try:
    import gymnasium
except ModuleNotFoundError as error:
    raise ImportError(f"marlcore.envs: {error}; try: pip install marlcore[envs]") from None

# Prefix of an environment's id: the package that registers the id when imported.
PACKAGES = {
    "ALE": "ale-py",
    "BabyAI": "minigrid",
    "FlappyBird": "flappy-bird-gymnasium",
    "MiniGrid": "minigrid",
    "highway": "highway-env",
}

__all__ = ["GymnasiumEnvironment", "action_range", "is_registered", "make_gymnasium", "observation_field"]


class GymnasiumEnvironment:
    """A Gymnasium environment as an `Environment` with one agent, "agent_0".

    Action 0 is the first of the action space, whatever its start. Observations are copies.

    Args:
        env: a `gymnasium.Env` with a Box observation space and a Discrete action space.

    Raises:
        ValueError: a space is of another kind.
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
    """The registered environment `id`, such as CartPole-v1 or ALE/Pong-v5, made with `options`.

    Raises:
        ValueError: the id is not registered, or marlcore does not support the environment's spaces.
        ImportError: a package that it needs is not installed.
    """
    _import_what_registers(id)
    try:
        env = gymnasium.make(id, **options)
    except gymnasium.error.DependencyNotInstalled as error:  # the id is right; the message names the missing package
        raise ImportError(f"environment: 'gymnasium:{id}': {error}") from None
    except gymnasium.error.Error as error:
        expected = "gymnasium:<id> such as gymnasium:CartPole-v1, or gymnasium:<package that registers it>:<id>"
        raise ValueError(f"environment: expected {expected}, got 'gymnasium:{id}' ({error})") from None
    return GymnasiumEnvironment(env)


def is_registered(id: str) -> bool:
    """Whether the id is currently registered with Gymnasium."""
    return id in gymnasium.registry


def _import_what_registers(id: str) -> None:
    """Imports the package that registers `id`, if its name follows from the id; some register only when imported.

    Raises ImportError: a package of the table above is not installed.
    """
    if ":" in id or id in gymnasium.registry:
        return
    namespace, slash, _ = id.partition("/")
    package = PACKAGES.get(namespace if slash else id.partition("-")[0])
    module = package.replace("-", "_") if package else namespace if slash else ""
    if module.isidentifier() and importlib.util.find_spec(module) is not None:
        importlib.import_module(module)
    elif package:
        raise ImportError(f"environment: 'gymnasium:{id}' comes with {package}; try: pip install {package}")


def observation_field(agent: str, space: Any) -> Field:
    """The shape and dtype of a Box. Raises ValueError, naming the agent: it is another kind of space."""
    if not isinstance(space, gymnasium.spaces.Box):
        raise ValueError(f"observation space of {agent}: expected a Box, got {space}")
    return Field(space.shape, space.dtype.name)


def action_range(agent: str, space: Any) -> tuple[int, int]:
    """(number of actions, first action) of a Discrete. Raises ValueError, naming the agent: another kind of space."""
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise ValueError(
            f"action space of {agent}: expected a Discrete, got {space}; DQN and IQN need discrete actions"
        )
    return int(space.n), int(space.start)
