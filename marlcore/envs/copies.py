"""Several single copies as a VectorEnvironment: each round groups the copies by whose turn it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..interfaces import Environment
from .agent_view import may_mask, result_of
from .copy_by_copy import EMPTY_EPISODES, CopyByCopy, in_copy, masks_in


class Copies(CopyByCopy):
    """A VectorEnvironment over copies whose agents act one after another.

    If the infos may hold action masks, the first copy is reset once here to see.

    Raises:
        ValueError: marlcore does not support a space. EnvironmentFailed: the first copy raised.
    """

    def __init__(self, envs: Sequence[Environment]) -> None:
        first = envs[0]
        with in_copy(0):
            masked = _masked(first)
        super().__init__(envs, first.agents, first.observation_spaces, first.action_spaces, masked)

    def _reset(self, copy: int, env: Environment, seed: int) -> None:
        env.reset(seed)

    def _advance(self, copy: int, env: Environment) -> None:
        for _ in range(EMPTY_EPISODES):
            while (agent := env.agent) is not None:
                buffer = self._buffers[agent]
                with in_copy(copy, agent):
                    result = result_of("last", env.last())
                if not buffer.tell(copy, result):
                    buffer.ask(copy, result[0], result[4])
                    return
                self._act(copy, agent, None)
            self._end(copy)
            env.reset()
        raise RuntimeError(f"expected an agent that acts, got {EMPTY_EPISODES} episodes without one")

    def _act(self, copy: int, agent: str, action: Any) -> None:
        with in_copy(copy, agent):
            self._envs[copy].step(action)


def _masked(env: Environment) -> dict[str, bool]:
    """Whether each agent's infos hold masks."""
    if not any(may_mask(env.observation_spaces[agent], env.action_spaces[agent]) for agent in env.agents):
        return dict.fromkeys(env.agents, False)
    env.reset(0)
    agent = env.agent
    infos = getattr(env, "infos", None) or ({} if agent is None else {agent: env.last()[4]})
    return masks_in(infos, env.observation_spaces, env.action_spaces)
