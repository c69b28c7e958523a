"""Several PettingZoo Parallel environments as a VectorEnvironment: all live agents act, then each copy steps once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..interfaces import Outcome, Turn
from ..spaces import Spaces
from .agent_buffers import AgentBuffers, child_seeds
from .agent_view import AgentView, may_mask
from .copies import EMPTY_EPISODES, in_copy, masks_in, rows_for
from .pettingzoo import spaces_of

__all__ = ["ParallelCopies"]


class ParallelCopies:
    """A VectorEnvironment over copies whose agents act at once: an observation has a turn for each agent.

    Copy i begins with the i-th child of the seed's SeedSequence. If the infos may hold action masks, the first copy is
    reset once here to see.

    Args:
        envs: PettingZoo Parallel environments with `possible_agents`.

    Raises:
        ValueError: marlcore does not support a space, or the agents are not known in advance.
        EnvironmentFailed: the first copy raised.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        self._envs = list(envs)
        self.copies = len(self._envs)
        observation_spaces, action_spaces = spaces_of(self._envs[0])
        self.agents: tuple[str, ...] = tuple(action_spaces)
        masked = dict.fromkeys(self.agents, False)
        if any(may_mask(observation_spaces[agent], action_spaces[agent]) for agent in self.agents):
            with in_copy(0):
                masked = masks_in(self._envs[0].reset(seed=0)[1], observation_spaces, action_spaces)
        views = {
            agent: AgentView.of(agent, observation_spaces[agent], action_spaces[agent], masked[agent])
            for agent in self.agents
        }
        self._buffers = AgentBuffers(self.agents, views, self.copies)
        self.spaces: Mapping[str, Spaces] = {agent: view.spaces for agent, view in views.items()}
        self.episodes = 0
        self.ended = np.zeros(self.copies, np.int64)
        self._actions: list[dict[str, Any]] = [{} for _ in self._envs]
        self._first: list[Any] = [None] * self.copies  # what a reset returned, until it is observed

    def reset(self, seed: int) -> None:
        """Begin an episode in every copy."""
        self.episodes = 0
        self.ended[:] = 0
        self._actions = [{} for _ in self._envs]
        for buffer in self._buffers.values():
            buffer.begin()
        for copy, (env, child) in enumerate(zip(self._envs, child_seeds(seed, self.copies), strict=True)):
            with in_copy(copy):
                self._first[copy] = env.reset(seed=child)

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        """The results of earlier actions, and the turns of the agents that act now."""
        for copy, env in enumerate(self._envs):
            with in_copy(copy):
                self._advance(copy, env)
        return self._buffers.results()

    def _advance(self, copy: int, env: Any) -> None:
        first, self._first[copy] = self._first[copy], None
        if self._begin(copy, env, *first) if first else self._step(copy, env):
            return
        for _ in range(EMPTY_EPISODES):
            self.episodes += 1
            self.ended[copy] += 1
            self._buffers.begin_copy(copy)
            if self._begin(copy, env, *env.reset()):
                return
        raise RuntimeError(f"expected an agent that acts, got {EMPTY_EPISODES} episodes without one")

    def _begin(self, copy: int, env: Any, observations: Mapping[str, Any], infos: Mapping[str, Any]) -> bool:
        """Asks the first agents of an episode; returns whether there are any."""
        for agent in env.agents:
            self._buffers[agent].ask(copy, observations[agent], infos.get(agent, {}))
        return bool(env.agents)

    def _step(self, copy: int, env: Any) -> bool:
        """Steps a copy with the actions of its agents; returns whether an agent acts next."""
        actions, self._actions[copy] = self._actions[copy], {}
        observations, rewards, terminated, truncated, infos = env.step(actions)
        ended = {agent for agent in {*terminated, *truncated} if terminated.get(agent) or truncated.get(agent)}
        staying = [agent for agent in env.agents if agent not in ended]
        for agent in actions:
            if agent in ended or agent in staying:
                ends = terminated.get(agent, False), truncated.get(agent, False)
                result = observations[agent], rewards.get(agent, 0.0), *ends, infos.get(agent, {})
                self._buffers[agent].tell(copy, result)
            else:  # it left without an end
                self._buffers[agent].begin_copy(copy)
        for agent in staying:
            self._buffers[agent].ask(copy, observations[agent], infos.get(agent, {}))
        return bool(staying)

    def act(self, turn: Turn, action: NDArray[Any]) -> None:
        """Note the actions of a turn; the copies step when all of their agents have acted, in `observe`."""
        buffer = self._buffers[turn.agent]
        copies = turn.copies.tolist()
        for copy, one in zip(copies, rows_for(buffer.view, action, len(copies)), strict=True):
            self._actions[copy][turn.agent] = one
        buffer.acted(copies)

    def close(self) -> None:
        """Close all copies, even if one fails."""
        with ExitStack() as stack:
            for env in self._envs:
                stack.callback(env.close)
