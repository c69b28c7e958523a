"""Several PettingZoo Parallel environments as a VectorEnvironment: all live agents act, then each copy steps once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..checks import came
from .agent_view import failed, may_mask, result_of
from .copy_by_copy import EMPTY_EPISODES, CopyByCopy, in_copy, masks_in
from .pettingzoo import spaces_of


class ParallelCopies(CopyByCopy):
    """A VectorEnvironment over copies whose agents act at once: an observation has a turn for each agent.

    If the infos may hold action masks, the first copy is reset once here to see. The copies step in `observe`, when all
    of their agents have acted.

    Args:
        envs: PettingZoo Parallel environments with `possible_agents`.

    Raises:
        ValueError: marlcore does not support a space, or the agents are not known in advance.
        EnvironmentFailed: the first copy raised.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        observation_spaces, action_spaces = spaces_of(envs[0])
        masked = dict.fromkeys(action_spaces, False)
        if any(may_mask(observation_spaces[agent], action_spaces[agent]) for agent in masked):
            with in_copy(0):
                masked = masks_in(result_of("reset", envs[0].reset(seed=0))[1], observation_spaces, action_spaces)
        super().__init__(envs, tuple(action_spaces), observation_spaces, action_spaces, masked)
        self._actions: list[dict[str, Any]] = [{} for _ in self._envs]
        self._first: list[Any] = [None] * self.copies  # what a reset returned, until it is observed

    def _reset(self, copy: int, env: Any, seed: int) -> None:
        self._actions[copy] = {}
        self._first[copy] = result_of("reset", env.reset(seed=seed))

    def _advance(self, copy: int, env: Any) -> None:
        first, self._first[copy] = self._first[copy], None
        if self._begin(copy, env, *first) if first else self._step(copy, env):
            return
        for _ in range(EMPTY_EPISODES):
            self._end(copy)
            if self._begin(copy, env, *result_of("reset", env.reset())):
                return
        raise RuntimeError(f"expected an agent that acts, got {EMPTY_EPISODES} episodes without one")

    def _begin(self, copy: int, env: Any, observations: Mapping[str, Any], infos: Mapping[str, Any]) -> bool:
        """Asks the first agents of an episode; returns whether there are any."""
        for agent in env.agents:
            self._buffers[agent].ask(copy, _observed(copy, agent, observations), infos.get(agent, {}))
        return bool(env.agents)

    def _step(self, copy: int, env: Any) -> bool:
        """Steps a copy with the actions of its agents; returns whether an agent acts next."""
        actions, self._actions[copy] = self._actions[copy], {}
        observations, rewards, terminated, truncated, infos = result_of("step", env.step(actions))
        ended = {agent for agent in {*terminated, *truncated} if terminated.get(agent) or truncated.get(agent)}
        staying = [agent for agent in env.agents if agent not in ended]
        for agent in actions:
            if agent in ended or agent in staying:
                ends = terminated.get(agent, False), truncated.get(agent, False)
                result = _observed(copy, agent, observations), rewards.get(agent, 0.0), *ends, infos.get(agent, {})
                self._buffers[agent].tell(copy, result)
            else:  # it left without an end
                self._buffers[agent].begin_copy(copy)
        for agent in staying:
            self._buffers[agent].ask(copy, _observed(copy, agent, observations), infos.get(agent, {}))
        return bool(staying)

    def _act(self, copy: int, agent: str, action: Any) -> None:
        self._actions[copy][agent] = action


def _observed(copy: int, agent: str, observations: Mapping[str, Any]) -> Any:
    """An agent's observation. Raises EnvironmentFailed: there is none."""
    if agent not in observations:
        raise failed(copy, agent, f"obs: expected an observation, got those of {came(list(observations))}")
    return observations[agent]
