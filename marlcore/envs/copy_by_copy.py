"""What VectorEnvironments over single copies have in common: they advance the copies one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..errors import EnvironmentFailed
from ..interfaces import Outcome, Turn
from ..spaces import MASK, Spaces
from .agent_buffers import AgentBuffers, child_seeds
from .agent_view import AgentView, may_mask

EMPTY_EPISODES = 1000  # in a row without an action, after which the environment counts as broken


class CopyByCopy(ABC):
    """A VectorEnvironment over copies; copy i begins with the i-th child of the seed's SeedSequence.

    Args:
        envs: the copies.
        agents: their names, in the order of the turns.
        observation_spaces, action_spaces: by agent.
        masked: by agent, whether its infos hold masks.

    Raises: ValueError: marlcore does not support a space.
    """

    def __init__(
        self,
        envs: Sequence[Any],
        agents: Sequence[str],
        observation_spaces: Mapping[str, gym.Space],
        action_spaces: Mapping[str, gym.Space],
        masked: Mapping[str, bool],
    ) -> None:
        self._envs = list(envs)
        self.copies = len(self._envs)
        self.agents: tuple[str, ...] = tuple(agents)
        views = {
            agent: AgentView.of(agent, observation_spaces[agent], action_spaces[agent], masked[agent])
            for agent in self.agents
        }
        self._buffers = AgentBuffers(self.agents, views, self.copies)
        self.spaces: Mapping[str, Spaces] = {agent: view.spaces for agent, view in views.items()}
        self.episodes = 0
        self.ended = np.zeros(self.copies, np.int64)

    def reset(self, seed: int) -> None:
        """Begin an episode in every copy."""
        self.episodes = 0
        self.ended[:] = 0
        for buffer in self._buffers.values():
            buffer.begin()
        for copy, (env, child) in enumerate(zip(self._envs, child_seeds(seed, self.copies), strict=True)):
            with in_copy(copy):
                self._reset(copy, env, child)

    @abstractmethod
    def _reset(self, copy: int, env: Any, seed: int) -> None:
        """Begins a copy's first episode."""

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        """The results of earlier actions, and the turns of the agents that act now."""
        for copy, env in enumerate(self._envs):
            with in_copy(copy):
                self._advance(copy, env)
        return self._buffers.results()

    @abstractmethod
    def _advance(self, copy: int, env: Any) -> None:
        """Advances a copy to the next turns of live agents, across ends and starts of episodes."""

    def _end(self, copy: int) -> None:
        """Counts an episode of a copy as over."""
        self.episodes += 1
        self.ended[copy] += 1
        self._buffers.begin_copy(copy)

    def act(self, turn: Turn, action: NDArray[Any]) -> None:
        """Perform the actions of a turn."""
        buffer = self._buffers[turn.agent]
        copies = turn.copies.tolist()
        for copy, one in zip(copies, _for_copies(buffer.view, action, len(copies)), strict=True):
            self._act(copy, turn.agent, one)
        buffer.acted(copies)

    @abstractmethod
    def _act(self, copy: int, agent: str, action: Any) -> None:
        """Takes an agent's action in a copy."""

    def close(self) -> None:
        """Close all copies, even if one fails."""
        with ExitStack() as stack:
            for env in self._envs:
                stack.callback(env.close)


class in_copy:  # noqa: N801 - reads as "with in_copy(3)"; a generator's would cost three times as much
    """Turns an environment's exception into EnvironmentFailed with the number of its copy, and the agent if known."""

    __slots__ = ("_agent", "_copy")

    def __init__(self, copy: int, agent: str = "") -> None:
        self._copy = copy
        self._agent = agent

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, EnvironmentFailed):
            where = f"{self._copy}, {self._agent}" if self._agent else self._copy
            raise EnvironmentFailed(f"environment copy {where}: {type(error).__name__}: {error}") from error


def masks_in(
    infos: Mapping[str, Mapping[str, Any]],
    observation_spaces: Mapping[str, gym.Space],
    action_spaces: Mapping[str, gym.Space],
) -> dict[str, bool]:
    """Whether each agent's infos hold masks, by its first info; an agent without one follows the others."""
    found = {agent: MASK in info for agent, info in infos.items()}
    return {
        agent: may_mask(observation_spaces[agent], space) and found.get(agent, any(found.values()))
        for agent, space in action_spaces.items()
    }


def _for_copies(view: AgentView, action: NDArray[Any], rows: int) -> list[Any]:
    """The actions of a turn, one for each copy, as its environment takes them: a Discrete's as Python integers."""
    actions = view.convert(action, rows)
    return actions.tolist() if isinstance(view.spaces.action, gym.Discrete) else list(actions)
