"""The base of vector environments that combine the arrays of agents which act simultaneously."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..interfaces import Outcome, Turn, VectorEnvironment
from ..observations import Values, by_name, each, put_rows, rows_at
from ..spaces import Spaces
from ..spec import Field
from .agent_view import Wrapper, failed

Joined = TypeVar("Joined")  # an array [copies, ...], or several by name
Place = Callable[[Joined, str, NDArray[np.int64], Values, bool], None]


def is_vector(env: Any) -> bool:
    """Tells whether `env` has the methods of a VectorEnvironment."""
    return hasattr(env, "observe") and hasattr(env, "act")


def index_of(copies: NDArray[np.int64], count: int) -> Any:
    """Returns the index of these copies' rows in arrays of `count` copies; for all copies a slice, which is faster."""
    return slice(None) if len(copies) == count else copies


class AtOnce(Wrapper):
    """A VectorEnvironment around another one, `env`, in which all agents of a copy act before the copy steps."""

    def __init__(self, env: VectorEnvironment) -> None:
        self._env = env
        self.copies = env.copies
        self._numbers = {agent: number for number, agent in enumerate(env.agents)}
        self._begin()

    def reset(self, seed: int) -> None:
        self._env.reset(seed)
        self._begin()

    def _begin(self) -> None:
        self._ended = self._env.ended.copy()
        self._due = np.zeros((len(self._numbers), self.copies), bool)  # which agents act in this step

    def advance(self) -> tuple[list[Outcome], list[Turn], NDArray[np.bool_]]:
        """Observes the wrapped environment.

        Returns its outcomes, its turns, and bool [copies]: whether the copy's episode ended for all agents. Raises
        EnvironmentFailed if agents act one after another.
        """
        outcomes, turns = self._env.observe()
        over: NDArray[np.bool_] = self._env.ended != self._ended
        self._ended = self._env.ended.copy()
        acted, due, continues = np.zeros((3, *self._due.shape), bool)
        for outcome in outcomes:
            acted[self._numbers[outcome.agent], index_of(outcome.copies, self.copies)] |= outcome.acted
        for turn in turns:
            at = self._numbers[turn.agent], index_of(turn.copies, self.copies)
            due[at], continues[at] = True, ~turn.begins
        if (apart := (acted & ~self._due) | (continues & ~acted)).any():
            number, copy = np.argwhere(apart)[0].tolist()
            reason = "expected agents that act simultaneously, got agents that act one after another"
            raise failed(copy, self._env.agents[number], reason)
        self._due = due
        return outcomes, turns, over


def joined(
    empty: Callable[[int], Joined], place: Place[Joined], turns: Sequence[Turn], outcomes: Sequence[Outcome],
    over: NDArray[np.bool_],
) -> tuple[Joined, Joined | None]:  # fmt: skip
    """Combines the agents' present observations, and also their final observations, into arrays [copies, ...].

    Agents whose episode continues still see an agent whose episode ended at this step. The second result is None if no
    episode ended; otherwise only its rows for ended episodes are meaningful.

    Args:
        empty: makes arrays [k, ...] in which every agent is absent.
        place: writes an agent's observations in some copies into the arrays; its last argument tells whether they are
            final observations.
        over: bool [copies], whether the copy's episode ended for all agents, so `turns` begin the next episode.
    """
    now = empty(len(over))
    for turn in turns:
        place(now, turn.agent, turn.copies, turn.obs, False)
    ends = [
        outcome.part(outcome.terminated | outcome.truncated) for outcome in outcomes if outcome.final_obs is not None
    ]
    if not ends:
        return now, None
    last: Joined = each(np.copy, now)
    put_rows(last, over, empty(int(over.sum())))
    for end in ends:
        assert end.final_obs is not None
        place(last, end.agent, end.copies, end.final_obs, True)
        continues = end.copies[~over[end.copies]]
        put_rows(now, continues, rows_at(last, continues))
    return now, last


def flat(spaces: Spaces, values: Values) -> NDArray[Any]:
    """Flattens observations [k, ...] to numbers [k, n] as `gymnasium.spaces.flatten` does, without masks."""
    arrays = by_name(values)
    return np.concatenate([_numbers(part.space, arrays[part.name]) for part in spaces.parts], axis=1)


def _numbers(space: gym.Space, array: NDArray[Any]) -> NDArray[Any]:
    """Returns a part's values [k, ...] as numbers [k, n]; choices become one-hot vectors."""
    if not isinstance(space, (gym.Discrete, gym.MultiDiscrete)):
        return array.reshape(len(array), gym.flatdim(space))
    choices = np.atleast_1d(space.n if isinstance(space, gym.Discrete) else space.nvec)
    chosen = (array - space.start).reshape(len(array), len(choices))
    return np.concatenate([chosen[:, i, None] == np.arange(size) for i, size in enumerate(choices)], axis=1)


def state_field(env: Any) -> Field | None:
    """Returns the float32 field of an environment's state, flattened; None unless its `state_space` is a Box."""
    space = getattr(env, "state_space", None)
    return Field((int(np.prod(space.shape)),), "float32") if isinstance(space, gym.Box) else None
