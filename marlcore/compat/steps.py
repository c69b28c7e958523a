"""Steps of several environments at once, in the form of Stable-Baselines3, and their positions in lanes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..checks import as_field
from ..memory import TERMINATED, TRUNCATED
from ..observations import ALONE, rows_at
from ..spec import Field

if TYPE_CHECKING:
    from .inplace import InPlace

__all__ = ["Positions", "Step", "Transitions", "flags", "frozen", "only", "pick", "put", "put_at", "rows_check"]


class Step(NamedTuple):
    """One transition of each environment: arrays [n_envs, *shape], or dicts of them for observations."""

    obs: Any
    next_obs: Any
    action: NDArray[Any]
    reward: NDArray[np.float32]
    ends: NDArray[np.uint8]  # flags for LanesWriter.add

    @property
    def terminated(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (self.ends & TERMINATED) != 0
        return found

    @property
    def ended(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.ends != 0
        return found


@dataclass(frozen=True)
class Transitions:
    """B transitions of a sample."""

    obs: Any
    next_obs: Any
    action: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    discount: NDArray[np.float32]


class Positions:
    """The steps in a replay's lanes by their positions in a buffer, which does not count boundary rows.

    Args:
        replay: has one lane per environment; this process writes them all.
        tickets: int64 [buffer_size, n_envs], of the step at each position; -1 at empty positions.
    """

    def __init__(self, replay: InPlace, tickets: NDArray[np.int64]) -> None:
        self._replay = replay
        self.tickets = tickets

    def observations(self, later: int = 0) -> Any:
        """Observations of the steps, or of the rows after them: [buffer_size, n_envs, *shape], or a dict of them."""
        return only({name: self._copied(column, later) for name, column in self._replay.columns("obs").items()})

    def actions(self) -> NDArray[Any]:
        return self._copied(self._replay.columns("action")["action"])

    def rewards(self) -> NDArray[np.float32]:
        return self._copied(self._replay.rewards())

    def ends(self, cut_off_alone: bool) -> NDArray[np.float32]:
        """1 where an episode ended, or only where it was truncated."""
        flags = TRUNCATED if cut_off_alone else TERMINATED | TRUNCATED
        ended: NDArray[np.bool_] = (self._copied(self._replay.flags()) & flags) != 0
        return ended.astype(np.float32)

    def transitions(
        self, ahead: NDArray[np.int64], envs: NDArray[np.int64], position: int, newest: Step, gamma: float
    ) -> Transitions:
        """Transitions over the steps at positions `ahead` [B, n_steps]; each return uses them up to its end.

        A return ends with its episode, or with the newest step, at `position`.

        Raises: ValueError: a first position holds no row.
        """
        lo, hi = self._replay.windows()
        tickets, lanes = self.tickets[ahead, envs[:, None]], envs[:, None]
        first = tickets[:, 0]
        if (gone := first < lo[envs]).any():
            raise ValueError(
                f"batch_inds: expected positions whose rows are held, as sample() draws, got {ahead[gone, 0][0]}"
            )
        bits, rewards = self._replay.flags(), self._replay.rewards()
        capacity = rewards.shape[1]
        ends = ((bits[lanes, tickets % capacity] & (TERMINATED | TRUNCATED)) != 0) | (ahead == position)
        ends[:, -1] = True
        count = ends.argmax(axis=1) + 1
        last = tickets[np.arange(len(envs)), count - 1]
        powers = np.arange(ahead.shape[1])
        weights = np.where(powers < count[:, None], gamma**powers, 0.0)
        terminated = (bits[envs, last % capacity] & TERMINATED) != 0
        columns = self._replay.columns("obs")
        obs = only({name: column[envs, first % capacity] for name, column in columns.items()})
        next_obs = only({name: column[envs, (last + 1) % capacity] for name, column in columns.items()})
        waiting = last + 1 >= hi[envs]  # the newest steps' next observations are not in the lanes yet
        put_at(next_obs, waiting, pick(newest.next_obs, envs[waiting]))
        return Transitions(
            obs,
            next_obs,
            self._replay.columns("action")["action"][envs, first % capacity],
            (rewards[lanes, tickets % capacity] * weights).sum(axis=1).astype(np.float32),
            terminated,
            np.where(terminated, 0, gamma**count).astype(np.float32),
        )

    def _copied(self, column: NDArray[Any], later: int = 0) -> NDArray[Any]:
        """A column's rows by position; zeros where the lanes hold none."""
        lo, hi = self._replay.windows()
        tickets = self.tickets + later
        position, lane = ((self.tickets >= lo) & (tickets < hi)).nonzero()
        found: NDArray[Any] = np.zeros((*tickets.shape, *column.shape[2:]), column.dtype)
        found[position, lane] = column[lane, tickets[position, lane] % column.shape[1]]
        return found


def only(obs: dict[str, Any]) -> Any:
    """An observation's fields by name in the user's form: the array itself if there is only one unnamed field."""
    return obs[ALONE] if obs.keys() == {ALONE} else obs


def pick(obs: Any, index: Any) -> Any:
    return rows_at(obs, index)


def put(rows: Any, first: Any) -> None:
    """Replaces the first rows."""
    if isinstance(rows, dict):
        for name, one in rows.items():
            put(one, first[name])
    else:
        rows[: len(first)] = first


def put_at(rows: Any, where: Any, values: Any) -> None:
    """Replaces the rows at an index."""
    if isinstance(rows, dict):
        for name, one in rows.items():
            one[where] = values[name]
    else:
        rows[where] = values


def rows_check(label: str, field: Field, rows: int) -> Callable[[Any], NDArray[Any]]:
    """A callable that returns a value as an array [rows, *shape] of the field's dtype: the value itself if it is one.

    Scalars of discrete spaces may lack their own axis.
    """
    dtype, whole = field.numpy, Field((rows, *field.shape), field.dtype)
    shape, size = whole.shape, math.prod(whole.shape)

    def check(value: Any) -> NDArray[Any]:
        array: NDArray[Any] = value if value.__class__ is np.ndarray else np.asarray(value)
        if array.shape != shape and array.size == size:
            array = array.reshape(shape)
        if array.shape == shape:
            if array.dtype == dtype:
                return array
            if array.dtype.kind == dtype.kind == "f":  # as_field gives the same
                return array.astype(dtype)
        return as_field(label, whole, array)

    return check


def flags(done: Any) -> Any:
    """`done` as booleans if it consists of the numbers 0 and 1."""
    array = done if done.__class__ is np.ndarray else np.asarray(done)
    if array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all():
        return done
    return array.astype(np.bool_)


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
