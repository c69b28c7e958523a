"""Adds the joint observation of all agents to each agent's own observation, for centralized critics."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..observations import ALONE
from ..spaces import JOINT, MASK
from ..spec import Field, as_field
from .agent_view import Wrapper, has_mask, result_of, unmasked, without_mask
from .at_once import is_vector, state_field
from .joint_vector import JointVector
from .per_agent import by_agents
from .pettingzoo import is_parallel


@dataclass(frozen=True)
class JointObservations:
    """A picklable function that makes an environment whose `agents` get joint observations."""

    env_fn: Callable[[], Any]
    agents: tuple[str, ...]

    def __call__(self) -> "JointEnvironment | JointVector":
        return self.around(self.env_fn())

    def around(self, env: Any) -> "JointEnvironment | JointVector":
        """Returns an environment of one copy, or a VectorEnvironment, with joint observations."""
        return JointVector(env, self.agents) if is_vector(env) else JointEnvironment(env, self.agents)


class JointEnvironment(Wrapper):
    """A PettingZoo Parallel environment whose `agents` observe {"observation": their own, "joint_observation": all}.

    The joint observation, float32, is the environment's state if it has a `state_space`; otherwise all possible agents'
    observations one after another, with zeros for agents that have left. Masks stay where they are.

    Raises: ValueError: the environment is of another kind.
    """

    def __init__(self, env: Any, agents: tuple[str, ...]) -> None:
        env = by_agents(env)
        if not is_parallel(env):
            kind = "an AEC environment" if hasattr(env, "last") else type(env).__name__
            raise ValueError(
                f"joint observations: expected a PettingZoo Parallel environment, such as "
                f"pettingzoo-parallel:mpe2.simple_spread_v3, got {kind}"
            )
        self._env = env
        self._for = frozenset(agents)
        self._spaces = {agent: env.observation_space(agent) for agent in env.possible_agents}
        self._sizes = {agent: gym.flatdim(space) for agent, space in self._spaces.items()}
        self._state = state_field(env)
        self._field = self._state or Field((sum(self._sizes.values()),), "float32")
        self._joint = gym.Box(-np.inf, np.inf, self._field.shape, np.float32)

    def observation_space(self, agent: str) -> gym.Space:
        space = self._spaces[agent]
        if agent not in self._for:
            return space
        if not has_mask(space):
            return gym.Dict({ALONE: space, JOINT: self._joint})
        return gym.Dict({ALONE: gym.Dict({ALONE: without_mask(space), JOINT: self._joint}), MASK: space[MASK]})

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], Any]:
        observations, infos = result_of("reset", self._env.reset(seed=seed, options=options))
        return self._joined(observations, self._env.agents), infos

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
        observations, *others = self._env.step(actions)
        return self._joined(observations, {*actions, *self._env.agents}), *others

    def _joined(self, observations: Mapping[str, Any], there: Collection[str]) -> dict[str, Any]:
        """Adds the joint observation, in which agents that are not `there` have zeros."""
        joined = dict(observations)
        joint = self._joint_of({agent: obs for agent, obs in observations.items() if agent in there})
        for agent in self._for & joined.keys():
            alone = joined[agent]
            if has_mask(self._spaces[agent]):
                joined[agent] = {ALONE: {ALONE: unmasked(alone), JOINT: joint}, MASK: alone[MASK]}
            else:
                joined[agent] = {ALONE: alone, JOINT: joint}
        return joined

    def _joint_of(self, observations: Mapping[str, Any]) -> NDArray[Any]:
        if self._state is not None:
            return state_of(self._env, self._state)
        with np.errstate(over="ignore"):  # an observation beyond its dtype becomes infinite, which is refused later
            parts = [
                gym.flatten(space, observations[agent]) if agent in observations else np.zeros(self._sizes[agent])
                for agent, space in self._spaces.items()
            ]
        return as_field(JOINT, self._field, np.concatenate(parts))


def state_of(env: Any, field: Field) -> NDArray[Any]:
    """Returns the environment's state in the form of `field`. Raises ValueError or TypeError if it does not fit."""
    return as_field("state()", field, np.asarray(env.state()).reshape(-1))
