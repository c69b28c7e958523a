"""Joint observations in a vector environment: all agents' observations as columns of one array."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..checks import brief
from ..errors import EnvironmentFailed
from ..interfaces import Outcome, Turn, VectorEnvironment
from ..observations import ALONE, Values, by_name, part_name
from ..spaces import JOINT, MASK, Spaces
from ..spec import Field, rows_of
from .at_once import AtOnce, flat, index_of, joined, state_field


class JointVector(AtOnce):
    """A VectorEnvironment whose `agents` get joint observations, as in `JointEnvironment`.

    If the environment has a `state_space` that is a Box, the joint observation is the environment's state. The
    environment then needs a method `states()` that returns two arrays [copies, ...]: the states in which agents act
    next, and the states at the end of episodes, which are read only where an episode ended.

    Raises: ValueError: the environment has such a `state_space`, but no `states()`.
    """

    def __init__(self, env: VectorEnvironment, agents: Sequence[str]) -> None:
        super().__init__(env)
        self.agents = env.agents
        self._for = frozenset(agents)
        self._fields = {agent: Field((_size(env.spaces[agent]),), "float32") for agent in env.agents}
        ends = np.cumsum([field.shape[0] for field in self._fields.values()]).tolist()
        self._columns = dict(zip(env.agents, map(slice, [0, *ends[:-1]], ends), strict=True))
        self._state = state_field(env)
        if self._state and not hasattr(env, "states"):
            raise ValueError(f"states: expected a method that returns all copies' states, got none in {brief(env)}")
        self._field = self._state or Field((ends[-1],), "float32")
        joint = gym.Box(-np.inf, np.inf, self._field.shape, np.float32)
        self.spaces: dict[str, Spaces] = {agent: env.spaces[agent] for agent in env.agents}
        for agent in self._for:
            seen = gym.Dict({ALONE: env.spaces[agent].observation, JOINT: joint})
            self.spaces[agent] = replace(env.spaces[agent], observation=seen)

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        outcomes, turns, over = self.advance()
        try:
            now, last = self._joint(outcomes, turns, over)
        except (ValueError, TypeError) as error:
            raise EnvironmentFailed(f"environment: {error}") from error
        turns = [turn._replace(obs=self._beside(turn.agent, turn.copies, turn.obs, now)) for turn in turns]
        return [self._at_end(outcome, last) for outcome in outcomes], turns

    def _at_end(self, outcome: Outcome, last: Any) -> Outcome:
        if outcome.final_obs is None:
            return outcome
        return outcome._replace(final_obs=self._beside(outcome.agent, outcome.copies, outcome.final_obs, last))

    def _joint(self, outcomes: list[Outcome], turns: list[Turn], over: NDArray[np.bool_]) -> tuple[Any, Any]:
        """Returns the present joint observations [copies, n], and those at the end of ended episodes [copies, n]."""
        if self._state is None:
            return joined(self._field.zeros, self._place, turns, outcomes, over)
        now, last = (np.reshape(states, (self.copies, -1)) for states in self._env.states())
        return rows_of("states()", self._state, now, self.copies), rows_of("states()", self._state, last, self.copies)

    def _place(self, joint: NDArray[Any], agent: str, copies: NDArray[np.int64], seen: Values, final: bool) -> None:
        spaces = self._env.spaces[agent]
        masks = [by_name(seen)[MASK]] if spaces.masked else []
        numbers = np.concatenate([*masks, flat(spaces, seen)], axis=1)
        joint[index_of(copies, self.copies), self._columns[agent]] = rows_of(
            JOINT, self._fields[agent], numbers, len(copies)
        )

    def _beside(self, agent: str, copies: NDArray[np.int64], values: Values, joint: NDArray[Any]) -> Values:
        """Adds the joint observations of these copies to an agent's observations [k, ...]."""
        if agent not in self._for:
            return values
        alone = by_name(values)
        named = {part_name((ALONE, *part.keys)): alone[part.name] for part in self._env.spaces[agent].parts}
        named[JOINT] = joint[index_of(copies, self.copies)]
        return {name: alone[MASK] if name == MASK else named[name] for name in by_name(self.spaces[agent].obs)}


def _size(spaces: Spaces) -> int:
    return sum(int(gym.flatdim(part.space)) for part in spaces.parts) + (spaces.choices if spaces.masked else 0)
