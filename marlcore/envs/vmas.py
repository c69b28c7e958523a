"""VMAS's scenarios: all copies are one batch of torch tensors, and all agents act at once."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..interfaces import Outcome, Turn
from ..spaces import Spaces
from .agent_view import AgentView


class VMASEnvironment:
    """A scenario of VMAS as a `VectorEnvironment`, whose agents have the scenario's names.

    Args:
        scenario: such as balance.
        copies: VMAS's num_envs.
        options: arguments of `vmas.make_env` and of the scenario. Episodes are truncated after `max_steps`; without it,
            some scenarios never end.

    Raises: ValueError: an observation is no array, or marlcore does not support an action space.
    """

    def __init__(self, scenario: str, copies: int, **options: Any) -> None:
        try:
            import vmas
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"vmas:{scenario} needs vmas: pip install vmas ({error})", name="vmas") from None
        self._env = env = vmas.make_env(scenario, copies, device="cpu", seed=0, terminated_truncated=True, **options)
        self.copies = copies
        self.agents: tuple[str, ...] = tuple(agent.name for agent in env.agents)
        spaces = zip(self.agents, env.observation_space, env.action_space, strict=True)
        self.spaces: Mapping[str, Spaces] = {
            agent: AgentView.of(agent, _converted(seen), _converted(acted)).spaces for agent, seen, acted in spaces
        }
        self._all = np.arange(copies)
        self.reset(0)

    def reset(self, seed: int) -> None:
        self.episodes = 0
        self.ended = np.zeros(self.copies, np.int64)
        self._obs = self._env.reset(seed=seed % 2**32)
        self._actions: dict[str, NDArray[Any]] = {}
        self._begins = np.ones(self.copies, bool)

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        outcomes = self._step() if self._actions else []
        seen = zip(self.agents, self._obs, strict=True)
        return outcomes, [Turn(agent, self._all, obs.numpy(), self._begins) for agent, obs in seen]

    def _step(self) -> list[Outcome]:
        actions = [self._actions[agent].reshape(self.copies, -1) for agent in self.agents]
        self._obs, rewards, *ends, infos = self._env.step(actions)
        self._actions = {}
        terminated, truncated = (end.numpy() for end in ends)
        self._begins = terminated | truncated
        over = self._begins.nonzero()[0]
        outcomes = []
        for agent, obs, reward, info in zip(self.agents, self._obs, rewards, infos, strict=True):
            final, last = obs.numpy() if len(over) else None, [(copy, _numbers(info, copy)) for copy in over.tolist()]
            outcomes.append(Outcome(agent, self._all, reward.numpy(), terminated, truncated & ~terminated, final, last))
        for copy in over.tolist():
            self._env.reset_at(copy, return_observations=False)
        if len(over):
            self.episodes += len(over)
            self.ended[over] += 1
            (self._obs,) = self._env.get_from_scenario(True, False, False, False)
        return outcomes

    def act(self, turn: Turn, action: NDArray[Any]) -> None:
        self._actions[turn.agent] = self.spaces[turn.agent].shifted(action)

    def close(self) -> None:
        """Does nothing: the environment holds no resources."""


def _converted(space: Any) -> gym.Space:
    """Converts a space of Gym, which VMAS uses, to Gymnasium's. Raises ValueError if its kind is unsupported."""
    if hasattr(space, "n"):
        return gym.Discrete(int(space.n))
    if hasattr(space, "nvec"):
        return gym.MultiDiscrete(space.nvec)
    if hasattr(space, "low"):
        return gym.Box(space.low, space.high, dtype=np.float32)
    raise ValueError(f"vmas: expected Box, Discrete or MultiDiscrete spaces, got {space}")


def _numbers(info: Mapping[str, Any], copy: int) -> dict[str, float]:
    return {name: float(value[copy]) for name, value in info.items() if getattr(value, "ndim", 0) == 1}
