"""Prioritized drawing (Schaul et al. 2016, arXiv:1511.05952): the sampler's own tree of sums over all lanes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import came
from ..kernels import priorities as kernels
from ..kernels import rows
from ..kernels.sumtree import level_offsets, repair_range
from ..spec import TransitionSpec
from ..transitions import Drawing, Lanes, RecordLayout, check_count

__all__ = ["Prioritized", "PriorityTree", "checked_priorities"]


@dataclass(frozen=True)
class Prioritized:
    """How a sampler prefers some transitions, or sequences, to others.

    Each is drawn with a probability in proportion to (priority + epsilon)^alpha, one from each of batch_size equal
    parts of the total. `batch.weight` corrects for that: it is (N P)^-beta, divided by the largest weight of the
    batch, as in the paper's algorithm 1. What was never given a priority has the highest one so far, at first 1.

    Attributes:
        alpha: from 0, which draws uniformly, on.
        beta: from 0 to 1.
        epsilon: at least 0; what is added to each priority.
        beta_steps: batches in which beta rises to 1, in equal steps; None keeps it.
        initial: name of an extra, a float32 scalar, in which actors store each transition's first priority;
            NaN stands for the highest one so far.
    """

    alpha: float = 0.6
    beta: float = 0.4
    epsilon: float = 1e-6
    beta_steps: int | None = None
    initial: str | None = None

    def __post_init__(self) -> None:
        for name, high in (("alpha", np.inf), ("beta", 1.0), ("epsilon", np.inf)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 <= value <= high:
                bounds = f"from 0 to {high:g}" if high < np.inf else "of at least 0"
                raise ValueError(f"{name}: expected a number {bounds}, got {value!r}")
            if np.isinf(value):
                raise ValueError(f"{name}: expected a finite number, got {value!r}")
        if self.beta_steps is not None:
            check_count("beta_steps", self.beta_steps)

    def limit(self, leaves: int) -> float:
        """The highest priority for which the sum of so many masses is finite."""
        highest = sys.float_info.max / (2 * leaves)
        return highest if self.alpha <= 1 else float(highest ** (1 / self.alpha))

    def check(self, spec: TransitionSpec) -> None:
        """Raises ValueError: `initial` is not such an extra of the spec."""
        one = spec.extras.get(self.initial) if self.initial is not None else None
        if self.initial is not None and (one is None or (one.shape, one.dtype, one.every) != ((), "float32", 1)):
            came = f"{self.initial!r}, which is {one.describe() if one else 'none of them'}"
            raise ValueError(f"prioritized.initial: expected the name of a float32 () extra, got {came}")


class PriorityTree:
    """The priorities of one sampler, who alone reads and writes them.

    Attributes:
        batches: how many were drawn, which beta depends on.
    """

    def __init__(self, options: Prioritized, lanes: Lanes, drawing: Drawing) -> None:
        geometry, batch_size = lanes.geometry, drawing.chosen.shape[1]
        leaves = geometry.lanes * geometry.capacity
        self.batches = 0
        self._options = options
        self._drawing = drawing
        self._path = lanes.segment.path
        self._lanes = geometry.lanes
        self._leaves = leaves
        self._offsets = level_offsets(leaves)
        self._tree = np.zeros(int(self._offsets[-1]))
        self._marks = np.zeros(leaves, np.uint8)
        self._reach = np.zeros((2, geometry.lanes), np.int64)
        self._numbers = np.array([options.alpha, options.epsilon, 1.0, options.limit(leaves)])
        window = drawing.table[[rows.STACK, rows.N_STEP, rows.LENGTH, rows.BURN_IN, rows.PERIOD]]
        self._kind = {"exponents": np.array([options.alpha, options.epsilon]), "window": window}
        self._initial = _source_of(options.initial, lanes.layout, drawing)
        self._bad = np.full(2, -1, np.int64)
        self._points = np.ones((2, batch_size))
        self._scratch = np.zeros(batch_size, np.int64)

    @property
    def beta(self) -> float:
        """The exponent of the next batch's weights."""
        options = self._options
        if options.beta_steps is None:
            return options.beta
        return options.beta + (1.0 - options.beta) * min(1.0, self.batches / options.beta_steps)

    @property
    def highest(self) -> float:
        """The highest priority so far, epsilon included."""
        return float(self._numbers[kernels.HIGHEST])

    @property
    def total(self) -> float:
        """The mass of all that could be drawn at the last batch."""
        return float(self._tree[-1])

    @property
    def present(self) -> bool:
        """Whether something could be drawn if it had any mass."""
        return bool(self._marks.any())

    def catch_up(self, out: NDArray[np.uint8], row: int) -> None:
        """Takes in what was written since the last call; output row `row` is scratch."""
        d = self._drawing
        d.read_windows()
        kernels.catch_up(
            d.body, d.table, 1.0, d.windows, self._reach, self._tree, self._offsets, self._marks, self._numbers,
            self._initial, self._bad, row, d.chosen, d.successors, out,
        )  # fmt: skip

    def _refuse_bad(self) -> None:
        lane, ticket = self._bad.tolist()
        self._bad[:] = -1
        d = self._drawing
        d.chosen[rows.LANE, 0], d.chosen[rows.LOWEST, 0] = lane, ticket
        if not len(d.lapped(1)):  # else it was overwritten, perhaps while it was read
            raise ValueError(
                f"{self._path}: {self._options.initial}: expected priorities from 0 to "
                f"{self._numbers[kernels.LIMIT]:.3g}, got another in lane {lane}, ticket {ticket}"
            )

    def draw(self, gamma: float, state: NDArray[np.uint64], fill: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
        """Fills the output rows `fill`, after `catch_up`; returns how many slots were filled.

        Raises ValueError: an actor's priority is negative or infinite; it counts as the highest so far.
        """
        if self._bad[1] >= 0 and len(fill):
            self._refuse_bad()
        d = self._drawing
        filled: int = kernels.draw(
            d.body, d.table, gamma, d.windows, state, fill, self._tree, self._offsets, self._marks,
            self._points, self._scratch, d.frames, d.fields, d.states, d.chosen, d.successors, out,
        )  # fmt: skip
        return filled

    def weigh(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Writes the weights of a batch, of which these rows were drawn here; beta moves on."""
        kernels.weigh(self._drawing.table, rows, self._points[1], self.beta, out)
        self.batches += 1

    def update(self, index: ArrayLike, priority: ArrayLike) -> int:
        """See `Sampler.update_priorities`; returns how many were ignored."""
        indices, values = checked_priorities(index, priority, self._numbers[kernels.LIMIT])
        if len(indices) > len(self._scratch):
            self._scratch = np.zeros(len(indices), np.int64)
        d = self._drawing
        d.read_windows()
        ignored: int = kernels.update(
            d.table, d.windows, self._reach, self._tree, self._offsets, self._marks, self._numbers, indices, values,
            self._scratch,
        )  # fmt: skip
        return ignored

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """What a tree needs to go on, as arrays."""
        return {
            **self._kind,
            "masses": self._tree[: self._leaves].copy(),
            "marks": self._marks.copy(),
            "reach": self._reach.copy(),
            "highest": np.array(self.highest),
            "batches": np.array(self.batches),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict`. Raises ValueError: it is of another sampler, or no such state."""
        for name, mine in self.state_dict().items():
            came = state.get(name)
            if not isinstance(came, np.ndarray) or came.shape != mine.shape or came.dtype != mine.dtype:
                array = np.asarray(came)
                got = "nothing" if came is None else f"{type(came).__name__} of {array.dtype} {array.shape}"
                raise ValueError(f"state: expected {name} as {mine.dtype} {mine.shape}, got {got}")
        for name, same in self._kind.items():
            if (state[name] != same).any():
                raise ValueError(
                    f"state: expected that of a sampler with the {name} {same.tolist()}, got {state[name].tolist()}"
                )
        masses = state["masses"]
        if not ((masses >= 0).all() and masses.sum() < np.inf):
            raise ValueError("state: expected masses of at least 0 with a finite sum")
        if not (0 <= state["highest"] < np.inf and state["batches"] >= 0):
            got = f"{state['highest']} and {state['batches']}"
            raise ValueError(f"state: expected highest and batches of at least 0, got {got}")
        floor, caught = state["reach"][:, :, None]
        self._drawing.read_windows()
        per_lane = self._leaves // self._lanes
        if not ((floor >= 0) & (floor <= caught) & (caught <= self._drawing.windows[1][:, None])).all():
            raise ValueError("state: expected the state of a sampler of this replay, got tickets that it does not have")
        if (caught - floor > per_lane).any():
            raise ValueError(f"state: expected at most the {per_lane} rows of a lane, got more")
        behind = (np.arange(per_lane) - floor) % per_lane >= caught - floor
        if masses.reshape(behind.shape)[behind].any():
            raise ValueError("state: expected masses of 0 for rows that the sampler has not seen, got others")
        self._tree[: self._leaves] = masses
        repair_range(self._tree, self._offsets, 0, 0, self._leaves)
        self._marks[:] = state["marks"]
        self._reach[:] = state["reach"]
        self._numbers[kernels.HIGHEST] = state["highest"]
        self.batches = int(state["batches"])


def checked_priorities(
    index: ArrayLike, priority: ArrayLike, limit: float = sys.float_info.max
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The arguments of `Sampler.update_priorities` as arrays; raises as it does."""
    indices, values = _array("index", index, None), _array("priority", priority, np.float64)
    if indices.ndim != 1 or (indices.dtype.kind not in "iu" and len(indices)):
        raise ValueError(f"index: expected integers (n,), got {indices.dtype} {indices.shape}")
    if values.shape != indices.shape:
        raise ValueError(f"priority: expected one for each index, shape {indices.shape}, got {values.shape}")
    row = kernels.first_bad(values, limit)
    if row >= 0:
        highest = f", not above {limit:.3g}" if values[row] > limit and values[row] < np.inf else ""
        raise ValueError(
            f"priority: expected finite numbers of at least 0{highest}, "
            f"got {values[row]} in row {row}, index {indices[row]}"
        )
    return np.ascontiguousarray(indices, np.int64), values


def _array(label: str, value: Any, dtype: Any) -> NDArray[Any]:
    if value.__class__ is not np.ndarray and hasattr(value, "detach"):  # a tensor, perhaps with gradients, on a GPU
        value = value.detach().cpu().numpy()
    try:
        return np.asarray(value, dtype, order="C")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{label}: expected numbers (n,), got {came(value)} ({came(error)})") from None


def _source_of(name: str | None, layout: RecordLayout, drawing: Drawing) -> NDArray[np.int64]:
    """Offset and stride of an extra, int64 [1, 2], or [0, 2] of none."""
    places = [place for place in layout.of_role("extra") if place.name == name]
    stride, base = int(drawing.table[1]), int(drawing.table[0])
    return np.array([(base + place.offset, stride) for place in places], np.int64).reshape(-1, 2)
