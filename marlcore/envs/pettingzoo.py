"""PettingZoo environments of both kinds; only this module imports PettingZoo.

It ignores infos and the action masks in them, so an environment must accept every action.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..spec import Field
from .gymnasium import action_range, observation_field

try:
    import pettingzoo
except ModuleNotFoundError as error:
    raise ImportError(f"marlcore.envs: {error}; try: pip install marlcore[envs]") from None

__all__ = ["AECEnvironment", "ParallelEnvironment", "make_pettingzoo"]


class _PettingZooEnvironment:
    """The common part of both kinds: the agents and their spaces, checked once."""

    def __init__(self, env: Any, kind: Any) -> None:
        if not isinstance(env, kind):
            raise ValueError(f"{type(self).__name__}: expected a pettingzoo.{kind.__name__}, got {env!r}")
        names = getattr(env, "possible_agents", None)
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError(f"possible_agents of {env}: expected a list of names, got {names!r}")
        ranges = {name: action_range(name, env.action_space(name)) for name in names}
        self.agents: tuple[str, ...] = tuple(names)
        self.observations: Mapping[str, Field] = {
            name: observation_field(name, env.observation_space(name)) for name in names
        }
        self.actions: Mapping[str, int] = {name: count for name, (count, _) in ranges.items()}
        self.agent: str | None = None
        self._env = env
        self._first_action = {name: first for name, (_, first) in ranges.items()}

    def close(self) -> None:
        """Close the wrapped environment."""
        self._env.close()


class AECEnvironment(_PettingZooEnvironment):
    """A PettingZoo AEC environment as an `Environment`.

    Action 0 is the first of an agent's action space, whatever its start. Observations are copies.

    Args:
        env: a `pettingzoo.AECEnv` with `possible_agents`, Box observation and Discrete action spaces.

    Raises:
        ValueError: a space is of another kind, or the agents are not known in advance.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env, pettingzoo.AECEnv)

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode."""
        self._env.reset(seed=seed)
        self._select()

    def last(self) -> tuple[NDArray[Any], float, bool, bool]:
        """(observation, reward since its previous action, terminated, truncated) of `agent`."""
        obs, reward, terminated, truncated, _ = self._env.last()
        agent = self._env.agent_selection
        return np.array(obs, self.observations[agent].dtype), float(reward), bool(terminated), bool(truncated)

    def step(self, action: int | None) -> None:
        """Perform an action of `agent`; None for an agent whose episode has ended."""
        if self.agent is None:
            raise ValueError(f"step: expected a reset, since the episode is over, got action {action!r}")
        env, agent = self._env, self.agent
        ended = bool(env.terminations[agent] or env.truncations[agent])
        check_action(agent, action, ended)
        env.step(None if action is None else int(action) + self._first_action[agent])
        self._select()

    def _select(self) -> None:
        self.agent = self._env.agent_selection if self._env.agents else None


class ParallelEnvironment(_PettingZooEnvironment):
    """A PettingZoo Parallel environment as an `Environment`: the agents act in turns, the environment in rounds.

    A round begins with the last turns of agents whose episode ended in the previous round. Then each live agent acts
    once, in the order of `env.agents`; when all actions are collected, the environment steps. Action 0 is the first of
    an agent's action space, whatever its start. Observations are copies.

    Args:
        env: a `pettingzoo.ParallelEnv` with `possible_agents`, Box observation and Discrete action spaces.

    Raises:
        ValueError: a space is of another kind, or the agents are not known in advance.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env, pettingzoo.ParallelEnv)

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode."""
        self._obs, _ = self._env.reset(seed=seed)
        self._rewards: Mapping[str, float] = {}
        self._terminated: Mapping[str, bool] = {}
        self._truncated: Mapping[str, bool] = {}
        self._actions: dict[str, int] = {}
        self._begin_round()

    def last(self) -> tuple[NDArray[Any], float, bool, bool]:
        """(observation, reward of the previous round, terminated, truncated) of `agent`."""
        agent = self._turns[0]
        return (
            np.array(self._obs[agent], self.observations[agent].dtype),
            float(self._rewards.get(agent, 0.0)),
            bool(self._terminated.get(agent)),
            bool(self._truncated.get(agent)),
        )

    def step(self, action: int | None) -> None:
        """Perform an action of `agent`; None for an agent whose episode has ended."""
        if self.agent is None:
            raise ValueError(f"step: expected a reset, since the episode is over, got action {action!r}")
        check_action(self.agent, action, self._ended(self.agent))
        self._turns.popleft()
        if action is not None:
            self._actions[self.agent] = int(action) + self._first_action[self.agent]
        if self._turns:
            self.agent = self._turns[0]
            return
        if self._actions:
            step = self._env.step(self._actions)
            self._obs, self._rewards, self._terminated, self._truncated, _ = step
        self._begin_round()

    def _begin_round(self) -> None:
        leaving = [agent for agent in self._actions if self._ended(agent)]
        staying = [agent for agent in self._env.agents if not self._ended(agent)]
        self._turns = deque(leaving + staying)
        self._actions = {}
        self.agent = self._turns[0] if self._turns else None

    def _ended(self, agent: str) -> bool:
        return bool(self._terminated.get(agent) or self._truncated.get(agent))


def check_action(agent: str, action: int | None, ended: bool) -> None:
    """Raises ValueError unless the action is None exactly when the agent's episode has ended."""
    if ended != (action is None):
        expected = "None" if ended else "an action"
        raise ValueError(f"step: expected {expected} from {agent}, got {action!r}")


KINDS: dict[str, tuple[type[AECEnvironment] | type[ParallelEnvironment], str]] = {
    "pettingzoo": (AECEnvironment, "env"),
    "pettingzoo-parallel": (ParallelEnvironment, "parallel_env"),
}


def make_pettingzoo(kind: str, module: str, /, **options: Any) -> AECEnvironment | ParallelEnvironment:
    """The environment made by a module's `env(**options)` or `parallel_env(**options)`.

    Args:
        kind: "pettingzoo" for `env`, "pettingzoo-parallel" for `parallel_env`.
        module: such as mpe2.simple_spread_v3; sisl.pursuit_v5 is short for pettingzoo.sisl.pursuit_v5.

    Raises:
        ValueError: no such module or function exists, or marlcore does not support the environment's spaces.
    """
    adapter, function = KINDS[kind]
    for path in (module, f"pettingzoo.{module}"):
        constructor = getattr(_import_if_there(path), function, None)
        if constructor is not None:
            return adapter(constructor(**options))
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
