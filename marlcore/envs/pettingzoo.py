"""Adapters of PettingZoo's AEC and Parallel environments, told apart by their methods, not by their base classes."""

import warnings
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from gymnasium import Space

from ..checks import brief
from .agent_view import Absent, Adapter, AgentView, Result, check_action, failed, result_of

ByAgent = Mapping[str, Any]
FUNCTIONS = {"pettingzoo": "env", "pettingzoo-parallel": "parallel_env"}


def is_parallel(env: Any) -> bool:
    return hasattr(env, "possible_agents") and not hasattr(env, "last")


def spaces_of(env: Any) -> tuple[Mapping[str, Space], Mapping[str, Space]]:
    """Returns all possible agents' observation and action spaces. Raises ValueError if a space is not supported."""
    names = getattr(env, "possible_agents", None)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"possible_agents of {env}: expected a list of names, got {names!r}")
    observations = {name: env.observation_space(name) for name in names}
    actions = {name: env.action_space(name) for name in names}
    for name in names:
        AgentView.of(name, observations[name], actions[name])
    return observations, actions


class AECEnvironment(Adapter):
    """A PettingZoo AEC environment, or an object with its methods and `possible_agents`, as an `Environment`.

    Raises: ValueError: the agents are not known in advance, or marlcore does not support a space.
    """

    def __init__(self, env: Any) -> None:
        if not hasattr(env, "possible_agents") or not hasattr(env, "last"):
            raise ValueError(f"AECEnvironment: expected a PettingZoo AEC environment, got {env!r}")
        self.observation_spaces, self.action_spaces = spaces_of(env)
        self.agents: tuple[str, ...] = tuple(self.action_spaces)
        self.agent: str | None = None
        self._env = env

    @property
    def infos(self) -> Any:
        return self._env.infos

    def reset(self, seed: int | None = None) -> None:
        self._env.reset(seed=seed)
        self._select()

    def last(self) -> Any:
        return self._env.last()

    def step(self, action: Any) -> None:
        ends = self._env.terminations, self._env.truncations
        check_action(self.agent, action, self.agent is not None and any(end[self.agent] for end in ends))
        self._env.step(action)
        self._select()

    def _select(self) -> None:
        self.agent = self._env.agent_selection if self._env.agents else None


class ParallelRounds(Adapter):
    """A PettingZoo Parallel environment in rounds: all live agents act, then the environment steps."""

    def __init__(self, env: Any, copy: int = 0) -> None:
        self.observation_spaces, self.action_spaces = spaces_of(env)
        self.agents: tuple[str, ...] = tuple(self.action_spaces)
        self.infos: Mapping[str, Mapping[str, Any]] = {}
        self._env = env
        self._copy = copy

    def reset(self, seed: int | None = None) -> None:
        observations, self.infos = result_of("reset", self._env.reset(seed=seed))
        self._actions: dict[str, Any] = {}
        self._results = self._results_of(self._env.agents, observations, {}, {}, {})

    def round(self) -> Mapping[str, Result | Absent]:
        """Steps if agents acted; returns the agents' results by name, in the form of `Environment.last`.

        Agents whose episode ended come first, then agents that act next, then absent agents, with `Absent` results. The
        result is empty when the episode is over.
        """
        if self._actions:
            self._step()
        results, self._results = self._results, {}
        return results

    def act(self, agent: str, action: Any) -> None:
        if action is not None:
            self._actions[agent] = action

    def _step(self) -> None:
        actions, self._actions = self._actions, {}
        observations, rewards, terminated, truncated, self.infos = result_of("step", self._env.step(actions))
        ended = {agent for agent in {*terminated, *truncated} if terminated.get(agent) or truncated.get(agent)}
        staying = [agent for agent in self._env.agents if agent not in ended]
        named = [agent for agent in actions if agent in ended] + staying
        self._results = self._results_of(named, observations, rewards, terminated, truncated)
        for agent in (actions.keys() | rewards.keys()) - self._results.keys():
            if agent in self.action_spaces:
                self._results[agent] = Absent(rewards.get(agent, 0.0))

    def _results_of(
        self, agents: list[str], observations: ByAgent, rewards: ByAgent, terminated: ByAgent, truncated: ByAgent
    ) -> dict[str, Result | Absent]:
        """Returns these agents' results by name. Raises EnvironmentFailed if an agent has no observation."""
        results: dict[str, Result | Absent] = {}
        for agent in agents:
            if agent not in observations:
                reason = f"obs: expected an observation, got observations of {brief(list(observations))}"
                raise failed(self._copy, agent, reason)
            ends = terminated.get(agent, False), truncated.get(agent, False)
            results[agent] = observations[agent], rewards.get(agent, 0.0), *ends, self.infos.get(agent, {})
        return results


class ParallelEnvironment(ParallelRounds):
    """A PettingZoo Parallel environment as an `Environment`: the agents act in turns, the environment in rounds.

    A round begins with the last turns of agents whose episode ended in the previous round. Then each live agent acts
    once, in the order of `env.agents`; when all actions are collected, the environment steps.

    Raises: ValueError: the agents are not known in advance, or marlcore does not support a space.
    """

    def __init__(self, env: Any) -> None:
        if not is_parallel(env):
            raise ValueError(f"ParallelEnvironment: expected a PettingZoo Parallel environment, got {env!r}")
        super().__init__(env)
        self.agent: str | None = None

    def reset(self, seed: int | None = None) -> None:
        super().reset(seed)
        self._begin_round()

    def last(self) -> Result:
        assert self.agent is not None
        return self._turns[self.agent]

    def step(self, action: Any) -> None:
        agent = check_action(self.agent, action, self.agent is not None and any(self.last()[2:4]))
        self.act(agent, action)
        del self._turns[agent]
        self.agent = next(iter(self._turns), None)
        if self.agent is None:
            self._begin_round()

    def _begin_round(self) -> None:
        self._turns = {agent: result for agent, result in self.round().items() if not isinstance(result, Absent)}
        self.agent = next(iter(self._turns), None)


def make_pettingzoo(kind: str, module: str, /, **options: Any) -> Any:
    """Makes an environment by a module's `env(**options)` or, for "pettingzoo-parallel", its `parallel_env`.

    The module sisl.pursuit_v5 is short for pettingzoo.sisl.pursuit_v5. Raises: ValueError: no such function exists;
    ImportError: PettingZoo is not installed.
    """
    function = FUNCTIONS[kind]
    for path in (module, f"pettingzoo.{module}"):
        constructor = getattr(_import_if_there(path), function, None)
        if constructor is not None:
            return constructor(**options)
    if find_spec("pettingzoo") is None:
        raise ImportError(f"environment: '{kind}:{module}' comes with pettingzoo; try: pip install 'marlcore[envs]'")
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
