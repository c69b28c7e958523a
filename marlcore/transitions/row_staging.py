"""Staging of many transitions for one call of the C core: each field's array is checked, then copied or lent."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import rows_of
from ..spec import Field, TransitionSpec
from .layout import REWARD_OFFSET, Place, RecordLayout
from .staging import Put, put_all, put_of_observation

__all__ = ["RowStaging", "Slots"]

_REWARD = Field((), "float32")
_FLAG = Field((), "bool")
_FLOATS = frozenset(map(np.dtype, ("float16", "float32", "float64")))


@dataclass(frozen=True)
class Slots:
    """Where the values of `count` rows go: the indices of their records."""

    count: int
    at: slice | NDArray[np.int64]


class RowStaging:
    """Rows on their way into lanes: small fields are staged in records, large ones are lent to the C core.

    Args:
        spec, layout: of the replay.
        records: staging, uint8 [n, record bytes].
        rows: the records of the transitions.
        finals: the records of the boundary rows.
        ends: bool [3, m]; its first two lines are the transitions' terminated and truncated.
        ended: the transitions' places in those lines.
        column_put: makes the callable that checks and lends the rows of a large field, given its place, its name in
            errors, and `rows` or `finals`.

    Attributes:
        rows: transitions.
    """

    def __init__(
        self,
        spec: TransitionSpec,
        layout: RecordLayout,
        records: NDArray[np.uint8],
        rows: Slots,
        finals: Slots,
        ends: NDArray[np.bool_],
        ended: Slots,
        column_put: Callable[[Place, str, Slots], Put],
    ) -> None:
        self.rows = rows.count
        self._ends = ends
        self._some_ended = False

        def put_of(place: Place, label: str, slots: Slots = rows) -> Put:
            if place.column:
                return column_put(place, label, slots)
            return rows_put(label, place.field, place.views(records), slots)

        def observation(role: str, label: str, slots: Slots) -> Put:
            return put_of_observation(label, spec, layout.of_role(role), lambda place, one: put_of(place, one, slots))

        self._put_reward = rows_put("reward", _REWARD, records.view(np.float32)[:, REWARD_OFFSET // 4], rows)
        self._put_ends = [rows_put(name, _FLAG, ends[i], ended) for i, name in enumerate(("terminated", "truncated"))]
        self._put_obs = observation("obs", "obs", rows)
        self._put_action = put_of(layout.of_role("action")[0], "action")
        self._extras = {place.name: put_of(place, place.label) for place in layout.of_role("extra")}
        if spec.next_obs:
            self._extras["next_obs"] = observation("next_obs", "next_obs", rows)
        self._put_finals = observation("obs", "final_obs", finals)

    def put(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        final_obs: Any,
        extras: dict[str, Any],
    ) -> None:
        """Checks and stages every field, each with a leading axis of its rows."""
        self._put_reward(reward)
        self._stage_ends(terminated, truncated)
        if final_obs is not None:
            self._put_finals(final_obs)
        self._put_obs(obs)
        self._put_action(action)
        if extras or self._extras:
            put_all("extras", self._extras, extras)

    def _stage_ends(self, terminated: Any, truncated: Any) -> None:
        """Stages the flags of rows that ended their episode; None: no row did."""
        some = terminated is not None or truncated is not None
        if not some and not self._some_ended:
            return
        self._some_ended = True  # stays set if a check below fails
        for i, value in enumerate((terminated, truncated)):
            if value is None:
                self._ends[i].fill(False)
            else:
                self._put_ends[i](value)
        self._some_ended = some


def rows_put(label: str, field: Field, view: NDArray[Any], slots: Slots) -> Put:
    """A callable that checks a field's rows, [count, *shape], and writes them into `view` at the slots."""
    rows, dtype, shape = slots.count, field.numpy, (slots.count, *field.shape)
    at: Any = slots.at
    if isinstance(at, slice):
        view, at = view[at], ...
    direct = {dtype}  # of arrays that an assignment converts as `rows_of` does
    wider: frozenset[np.dtype[Any]] = frozenset()  # the same, unless a value is beyond the field's range
    if dtype in _FLOATS:
        direct = {one for one in _FLOATS if one.itemsize <= dtype.itemsize}
        wider = _FLOATS - direct
    raising = Context()  # entering np.errstate in each call takes longer than the assignment
    raising.run(np.seterr, over="raise")

    def put(value: Any) -> None:
        fits = value.__class__ is np.ndarray and value.shape == shape
        if fits and value.dtype in direct:
            view[at] = value
            return
        if fits and value.dtype in wider:
            try:
                raising.run(view.__setitem__, at, value)
                return
            except FloatingPointError:
                pass  # `rows_of` says which value
        view[at] = rows_of(label, field, value, rows)

    return put
