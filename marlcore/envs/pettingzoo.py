"""PettingZoo environments of both kinds, known by their methods, since some do not derive from PettingZoo's classes."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from gymnasium import Space

from .agent_view import AgentView, result_of


def spaces_of(env: Any) -> tuple[dict[str, Space], dict[str, Space]]:
    """The observation and action spaces of all agents that may ever act.

    Raises: ValueError: the agents are not known in advance, or marlcore does not support a space.
    """
    names = getattr(env, "possible_agents", None)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"possible_agents of {env}: expected a list of names, got {names!r}")
    observations = {name: env.observation_space(name) for name in names}
    actions = {name: env.action_space(name) for name in names}
    for name in names:
        AgentView.of(name, observations[name], actions[name])
    return observations, actions


class AECEnvironment:
    """A PettingZoo AEC environment as an `Environment`.

    Args:
        env: a `pettingzoo.AECEnv`, or an object with its methods, with `possible_agents`.

    Raises: ValueError: the agents are not known in advance, or marlcore does not support a space.
    """

    def __init__(self, env: Any) -> None:
        if not hasattr(env, "possible_agents") or not hasattr(env, "last"):
            raise ValueError(f"AECEnvironment: expected a PettingZoo AEC environment, got {env!r}")
        spaces = spaces_of(env)
        self.observation_spaces: Mapping[str, Space] = spaces[0]
        self.action_spaces: Mapping[str, Space] = spaces[1]
        self.agents: tuple[str, ...] = tuple(self.action_spaces)
        self.agent: str | None = None
        self._env = env

    @property
    def infos(self) -> Mapping[str, Mapping[str, Any]]:
        """The latest info of every agent that takes part."""
        infos: Mapping[str, Mapping[str, Any]] = self._env.infos
        return infos

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode."""
        self._env.reset(seed=seed)
        self._select()

    def last(self) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        """(observation, reward since its previous action, terminated, truncated, info) of `agent`."""
        result: tuple[Any, float, bool, bool, Mapping[str, Any]] = self._env.last()
        return result

    def step(self, action: Any) -> None:
        """Perform an action of `agent`; None for an agent whose episode has ended."""
        if self.agent is None:
            raise ValueError(f"step: expected a reset, since the episode is over, got action {action!r}")
        ended = bool(self._env.terminations[self.agent] or self._env.truncations[self.agent])
        check_action(self.agent, action, ended)
        self._env.step(action)
        self._select()

    def close(self) -> None:
        """Close the wrapped environment."""
        self._env.close()

    def _select(self) -> None:
        self.agent = self._env.agent_selection if self._env.agents else None


class ParallelEnvironment:
    """A PettingZoo Parallel environment as an `Environment`: the agents act in turns, the environment in rounds.

    A round begins with the last turns of agents whose episode ended in the previous round. Then each live agent acts
    once, in the order of `env.agents`; when all actions are collected, the environment steps.

    Args:
        env: a `pettingzoo.ParallelEnv`, or an object with its methods, with `possible_agents`.

    Raises: ValueError: the agents are not known in advance, or marlcore does not support a space.
    """

    def __init__(self, env: Any) -> None:
        if not hasattr(env, "possible_agents") or hasattr(env, "last"):
            raise ValueError(f"ParallelEnvironment: expected a PettingZoo Parallel environment, got {env!r}")
        spaces = spaces_of(env)
        self.observation_spaces: Mapping[str, Space] = spaces[0]
        self.action_spaces: Mapping[str, Space] = spaces[1]
        self.agents: tuple[str, ...] = tuple(self.action_spaces)
        self.agent: str | None = None
        self.infos: Mapping[str, Mapping[str, Any]] = {}
        self._env = env

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode."""
        self._obs, self.infos = result_of("reset", self._env.reset(seed=seed))
        self._rewards: Mapping[str, float] = {}
        self._terminated: Mapping[str, bool] = {}
        self._truncated: Mapping[str, bool] = {}
        self._actions: dict[str, Any] = {}
        self._begin_round()

    def last(self) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        """(observation, reward of the previous round, terminated, truncated, info) of `agent`."""
        agent = self._turns[0]
        return (
            self._obs[agent],
            self._rewards.get(agent, 0.0),
            self._terminated.get(agent, False),
            self._truncated.get(agent, False),
            self.infos.get(agent, {}),
        )

    def step(self, action: Any) -> None:
        """Perform an action of `agent`; None for an agent whose episode has ended."""
        if self.agent is None:
            raise ValueError(f"step: expected a reset, since the episode is over, got action {action!r}")
        check_action(self.agent, action, self._ended(self.agent))
        self._turns.popleft()
        if action is not None:
            self._actions[self.agent] = action
        if self._turns:
            self.agent = self._turns[0]
            return
        if self._actions:
            step = result_of("step", self._env.step(self._actions))
            self._obs, self._rewards, self._terminated, self._truncated, self.infos = step
        self._begin_round()

    def close(self) -> None:
        """Close the wrapped environment."""
        self._env.close()

    def _begin_round(self) -> None:
        leaving = [agent for agent in self._actions if self._ended(agent)]
        staying = [agent for agent in self._env.agents if not self._ended(agent)]
        self._turns = deque(leaving + staying)
        self._actions = {}
        self.agent = self._turns[0] if self._turns else None

    def _ended(self, agent: str) -> bool:
        return bool(self._terminated.get(agent) or self._truncated.get(agent))


def check_action(agent: str, action: Any, ended: bool) -> None:
    """Raises ValueError unless the action is None exactly when the agent's episode has ended."""
    if ended != (action is None):
        expected = "None" if ended else "an action"
        raise ValueError(f"step: expected {expected} from {agent}, got {action!r}")


FUNCTIONS = {"pettingzoo": "env", "pettingzoo-parallel": "parallel_env"}


def make_pettingzoo(kind: str, module: str, /, **options: Any) -> Any:
    """The environment made by a module's `env(**options)` or `parallel_env(**options)`.

    Args:
        kind: "pettingzoo" for `env`, "pettingzoo-parallel" for `parallel_env`.
        module: such as mpe2.simple_spread_v3; sisl.pursuit_v5 is short for pettingzoo.sisl.pursuit_v5.

    Raises: ValueError: no such module or function exists.
    """
    function = FUNCTIONS[kind]
    for path in (module, f"pettingzoo.{module}"):
        constructor = getattr(_import_if_there(path), function, None)
        if constructor is not None:
            return constructor(**options)
    expected = f"{kind}:<module> with {function}(), such as {kind}:mpe2.simple_spread_v3"
    hint = "pip install marlcore[envs] brings mpe2 and pettingzoo"
    raise ValueError(f"environment: expected {expected}, got '{kind}:{module}' ({hint})")


def _import_if_there(path: str) -> ModuleType | None:
    if not all(part.isidentifier() for part in path.split(".")):
        return None
    try:
        with warnings.catch_warnings():
            # PettingZoo 1.27 deprecates its modules in favour of its registry. Other packages and older versions
            # of PettingZoo lack the registry, but modules work everywhere.
            warnings.filterwarnings("ignore", "The old environment creation API", DeprecationWarning)
            return import_module(path)
    except ModuleNotFoundError as error:
        if f"{path}.".startswith(f"{error.name}."):
            return None
        raise  # the module exists, but one of its imports does not
