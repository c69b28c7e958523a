"""Steps of several environments at once, as Stable-Baselines3 hands them over, and where they lie in lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._native import TERMINATED, TRUNCATED
from .inplace import InPlace

__all__ = ["Positions", "Step", "Transitions", "pick", "put", "put_at", "same"]


@dataclass(frozen=True)
class Step:
    """One transition of each environment: arrays [n_envs, *shape], or dicts of them for observations."""

    obs: Any
    next_obs: Any
    action: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]

    @property
    def ended(self) -> NDArray[np.bool_]:
        return self.terminated | self.truncated


@dataclass(frozen=True)
class Transitions:
    """What a sample is made of: B transitions."""

    obs: Any
    next_obs: Any
    action: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    discount: NDArray[np.float32]


class Positions:
    """The steps in the lanes of a replay by their positions in a buffer, which counts without boundary rows.

    Args:
        replay: a lane for each environment, all written by this process.
        tickets: int64 [buffer_size, n_envs], of the step at each position; -1 where there is none.
    """

    def __init__(self, replay: InPlace, tickets: NDArray[np.int64]) -> None:
        self._replay = replay
        self.tickets = tickets

    def observations(self, later: int = 0) -> Any:
        """Those of the steps, or of the rows after them: [buffer_size, n_envs, *shape], a dict for dict ones."""
        found = {name: self._copied(column, later) for name, column in self._replay.columns("obs").items()}
        return found[""] if found.keys() == {""} else found

    def actions(self) -> NDArray[Any]:
        return self._copied(self._replay.columns("action")[""])

    def rewards(self) -> NDArray[np.float32]:
        return self._copied(self._replay.rewards())

    def ends(self, cut_off_alone: bool) -> NDArray[np.float32]:
        """1 where an episode ended, or where it was cut off."""
        flags = TRUNCATED if cut_off_alone else TERMINATED | TRUNCATED
        ended: NDArray[np.bool_] = (self._copied(self._replay.flags()) & flags) != 0
        return ended.astype(np.float32)

    def _copied(self, column: NDArray[Any], later: int = 0) -> NDArray[Any]:
        """A column's rows by position; zeros where the lanes hold none."""
        lo, hi = self._replay.windows()
        tickets = self.tickets + later
        position, lane = ((self.tickets >= lo) & (tickets < hi)).nonzero()
        found: NDArray[Any] = np.zeros((*tickets.shape, *column.shape[2:]), column.dtype)
        found[position, lane] = column[lane, tickets[position, lane] % column.shape[1]]
        return found


def pick(obs: Any, index: Any) -> Any:
    return {name: one[index] for name, one in obs.items()} if isinstance(obs, dict) else obs[index]


def same(one: Any, other: Any) -> bool:
    """Whether two observations are the same bytes: a NaN equals itself here."""
    if isinstance(one, dict):
        return all(same(one[name], other[name]) for name in one)
    return bool(one.tobytes() == other.tobytes())


def put(rows: Any, first: Any) -> None:
    """Replaces the first rows."""
    if isinstance(rows, dict):
        for name, one in rows.items():
            put(one, first[name])
    else:
        rows[: len(first)] = first


def put_at(rows: Any, where: Any, values: Any) -> None:
    """Replaces the rows that an index names."""
    if isinstance(rows, dict):
        for name, one in rows.items():
            one[where] = values[name]
    else:
        rows[where] = values
