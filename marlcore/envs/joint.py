"""The observations of all agents beside each agent's own, for critics that see what no agent sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..observations import ALONE
from ..spaces import JOINT, MASK
from ..spec import Field, as_field
from .agent_view import result_of


@dataclass(frozen=True)
class JointObservations:
    """A picklable function that makes an environment whose `agents` get joint observations.

    Attributes:
        env_fn: makes a PettingZoo Parallel environment.
        agents: their names.
    """

    env_fn: Callable[[], Any]
    agents: tuple[str, ...]

    def __call__(self) -> JointEnvironment:
        """Raises ValueError: it is of another kind."""
        return JointEnvironment(self.env_fn(), self.agents)


class JointEnvironment:
    """A PettingZoo Parallel environment whose `agents` observe {"observation": their own, "joint_observation": all}.

    The joint observation is the environment's state, if it has a `state_space`; otherwise the observations of all
    possible agents one after another, zeros for those that have left: float32. Masks stay where they are.

    Raises: ValueError: the environment is of another kind.
    """

    def __init__(self, env: Any, agents: tuple[str, ...]) -> None:
        if not hasattr(env, "possible_agents") or hasattr(env, "last"):
            raise ValueError(
                f"joint observations: expected a PettingZoo Parallel environment, such as "
                f"pettingzoo-parallel:mpe2.simple_spread_v3, got {env!r}"
            )
        self._env = env
        self._for = frozenset(agents)
        state = getattr(env, "state_space", None)
        self._has_state = isinstance(state, gym.Box)
        self._spaces = {agent: env.observation_space(agent) for agent in env.possible_agents}
        flat = {agent: gym.utils.flatten_space(space).shape for agent, space in self._spaces.items()}
        self._sizes = {agent: int(np.prod(shape)) for agent, shape in flat.items()}
        size = int(np.prod(state.shape)) if state is not None and self._has_state else sum(self._sizes.values())
        self._joint = gym.Box(-np.inf, np.inf, (size,), np.float32)
        self._field = Field((size,), "float32")

    def observation_space(self, agent: str) -> gym.Space:
        """An agent's observation space, with the joint observation if it gets one."""
        space = self._spaces[agent]
        if agent not in self._for:
            return space
        if not _has_mask(space):
            return gym.Dict({ALONE: space, JOINT: self._joint})
        return gym.Dict({ALONE: gym.Dict({ALONE: _unmasked(space), JOINT: self._joint}), MASK: space[MASK]})

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], Any]:
        """Begin an episode."""
        observations, infos = result_of("reset", self._env.reset(seed=seed, options=options))
        return self._joined(observations), infos

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
        """Take the actions of all agents."""
        observations, *rest = self._env.step(actions)
        return self._joined(observations), *rest

    def _joined(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        joint = self._joint_of(observations)
        return {
            agent: self._with(self._spaces[agent], one, joint) if agent in self._for else one
            for agent, one in observations.items()
        }

    def _joint_of(self, observations: Mapping[str, Any]) -> NDArray[Any]:
        if self._has_state:
            return as_field(JOINT, self._field, np.asarray(self._env.state()).reshape(-1))
        with np.errstate(over="ignore"):  # an observation beyond its dtype becomes infinite, which is refused later
            parts = [
                gym.utils.flatten(space, observations[agent]) if agent in observations else np.zeros(self._sizes[agent])
                for agent, space in self._spaces.items()
            ]
        return as_field(JOINT, self._field, np.concatenate(parts))

    @staticmethod
    def _with(space: gym.Space, observation: Any, joint: NDArray[np.float32]) -> dict[str, Any]:
        if not _has_mask(space):
            return {ALONE: observation, JOINT: joint}
        return {ALONE: {ALONE: _unmasked(observation), JOINT: joint}, MASK: observation[MASK]}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._env, name)


def _has_mask(space: gym.Space) -> bool:
    return isinstance(space, gym.Dict) and MASK in space.spaces


def _unmasked(of: Any) -> Any:
    """An observation, or its space, without the mask."""
    parts = of.spaces if isinstance(of, gym.Dict) else of
    rest = {key: part for key, part in parts.items() if key != MASK}
    if rest.keys() == {ALONE}:
        return rest[ALONE]
    return gym.Dict(rest) if isinstance(of, gym.Dict) else rest
