"""Several single copies as a VectorEnvironment: each round groups the copies by whose turn it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..errors import EnvironmentFailed
from ..interfaces import Environment, Outcome, Turn
from ..spaces import MASK, Spaces
from .agent_buffers import AgentBuffers, child_seeds
from .agent_view import AgentView, may_mask

__all__ = ["EMPTY_EPISODES", "Copies", "in_copy", "masks_in", "rows_for"]

EMPTY_EPISODES = 1000  # in a row without an action, after which the environment counts as broken


class Copies:
    """A VectorEnvironment over copies whose agents act one after another.

    Copy i begins with the i-th child of the seed's SeedSequence. If the infos may hold action masks, the first copy is
    reset once here to see.

    Raises:
        ValueError: marlcore does not support a space. EnvironmentFailed: the first copy raised.
    """

    def __init__(self, envs: Sequence[Environment]) -> None:
        self._envs = list(envs)
        self.copies = len(self._envs)
        first = self._envs[0]
        self.agents: tuple[str, ...] = tuple(first.agents)
        with in_copy(0):
            masked = _masked(first)
        views = {
            agent: AgentView.of(agent, first.observation_spaces[agent], first.action_spaces[agent], masked[agent])
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
                env.reset(child)

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        """The results of earlier actions, and the turns of the agents that act now."""
        for copy, env in enumerate(self._envs):
            with in_copy(copy):
                self._advance(copy, env)
        return self._buffers.results()

    def _advance(self, copy: int, env: Environment) -> None:
        """Advances a copy to the next turn of a live agent, across ends and starts of episodes."""
        for _ in range(EMPTY_EPISODES):
            while (agent := env.agent) is not None:
                buffer = self._buffers[agent]
                result = env.last()
                if not buffer.tell(copy, result):
                    buffer.ask(copy, result[0], result[4])
                    return
                env.step(None)
            self.episodes += 1
            self.ended[copy] += 1
            self._buffers.begin_copy(copy)
            env.reset()
        raise RuntimeError(f"expected an agent that acts, got {EMPTY_EPISODES} episodes without one")

    def act(self, turn: Turn, action: NDArray[Any]) -> None:
        """Perform the actions of a turn."""
        buffer = self._buffers[turn.agent]
        copies = turn.copies.tolist()
        for copy, one in zip(copies, rows_for(buffer.view, action, len(copies)), strict=True):
            with in_copy(copy):
                self._envs[copy].step(one)
        buffer.acted(copies)

    def close(self) -> None:
        """Close all copies, even if one fails."""
        with ExitStack() as stack:
            for env in self._envs:
                stack.callback(env.close)


class in_copy:  # noqa: N801 - reads as "with in_copy(3)"; a generator's would cost three times as much
    """Turns an environment's exception into EnvironmentFailed with the number of its copy."""

    __slots__ = ("_copy",)

    def __init__(self, copy: int) -> None:
        self._copy = copy

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, EnvironmentFailed):
            raise EnvironmentFailed(f"environment copy {self._copy}: {type(error).__name__}: {error}") from error


def rows_for(view: AgentView, action: NDArray[Any], rows: int) -> list[Any]:
    """The actions of a turn, one for each copy, as its environment takes them: a Discrete's as Python integers."""
    actions = view.convert(action, rows)
    return actions.tolist() if isinstance(view.spaces.action, gym.Discrete) else list(actions)


def _masked(env: Environment) -> dict[str, bool]:
    """Whether each agent's infos hold masks."""
    if not any(may_mask(env.observation_spaces[agent], env.action_spaces[agent]) for agent in env.agents):
        return dict.fromkeys(env.agents, False)
    env.reset(0)
    agent = env.agent
    infos = getattr(env, "infos", None) or ({} if agent is None else {agent: env.last()[4]})
    return masks_in(infos, env.observation_spaces, env.action_spaces)


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
