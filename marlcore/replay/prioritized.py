"""Prioritized drawing (Schaul et al. 2016, arXiv:1511.05952): the sampler's own sum tree over all lanes."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..arrays import is_tensor, without_grad
from ..checks import brief, state_array
from ..declared import Declared, Number, Whole
from ..kernels import priorities as kernels
from ..kernels import uniform
from ..kernels.sumtree import empty_tree, level_offsets, repair_range
from ..spec import Field, TransitionSpec
from ..transitions import BatchMemory, LaneView, ReadPlan, RecordLayout, address_of

BETA = Number(0, 1)
FIRST = 1.0  # the priority of the first transitions


@dataclass(frozen=True)
class Prioritized(Declared):
    """How a sampler prefers some transitions or sequences to others.

    The probability P of each is proportional to its mass (priority + epsilon)^alpha. The total of all masses is split
    into batch_size equal parts, and one row is drawn from each part. `batch.weight` corrects for the preference: it is
    (N P)^-beta for N transitions, divided by the largest weight of the batch, as in the paper's algorithm 1. A new
    transition has the highest priority so far, initially 1; epsilon is added to that too.

    Attributes:
        alpha: at least 0; 0 draws uniformly.
        beta: from 0 to 1, at the first batch; assigning to a sampler's `beta`, or `sample(beta=...)`, replaces it.
        epsilon: at least 0; added to each priority.
        beta_steps: batches over which beta rises linearly to 1; None keeps it constant.
        beta_inserts: like beta_steps, but in environment steps: transitions written to the sampler's lanes.
        initial: name of an extra, a float32 scalar, in which actors store each transition's first priority;
            NaN means the highest priority so far.
    """

    alpha: Annotated[float, Number(0)] = 0.6
    beta: Annotated[float, BETA] = 0.4
    epsilon: Annotated[float, Number(0)] = field(default=1e-6, kw_only=True)
    beta_steps: Annotated[int | None, Whole(1)] = field(default=None, kw_only=True)
    beta_inserts: Annotated[int | None, Whole(1)] = field(default=None, kw_only=True)
    initial: str | None = field(default=None, kw_only=True)

    def limit(self, leaves: int) -> float:
        """Returns the highest priority for which the sum of `leaves` masses is finite."""
        mass = sys.float_info.max / (2 * leaves)
        return float(mass ** (1 / max(1.0, float(self.alpha))) - self.epsilon)

    def check(self, spec: TransitionSpec) -> None:
        """Raises ValueError if beta_steps and beta_inserts are given, or `initial` is no float32 scalar of the spec."""
        if self.beta_steps is not None and self.beta_inserts is not None:
            raise ValueError(f"prioritized.beta_inserts: expected None beside beta_steps, got {self.beta_inserts}")
        extras = spec.extra_fields
        if self.initial is not None and extras.get(self.initial) != Field():
            extra = extras[self.initial].describe() if self.initial in extras else "no extra"
            got = f"{self.initial!r}, which is {extra}"
            raise ValueError(f"prioritized.initial: expected the name of a float32 () extra, got {got}")


EQUAL = Prioritized(alpha=0.0)


class PriorityTree:
    """Draws rows by priority from a sum tree in private memory, and computes their weights; see also _Uniform."""

    def __init__(self, options: Prioritized, lanes: LaneView, read_plan: ReadPlan) -> None:
        geometry = lanes.geometry
        leaves = geometry.lanes * geometry.capacity
        self.batches = 0  # drawn so far; beta depends on them
        self.fixed_beta: float | None = None  # replaces the beta of the options
        self._options = options
        self._inserted = lanes.native.inserted
        self._read_plan = read_plan
        self._path = lanes.segment.path
        self._lane_count = geometry.lanes
        self._leaves = leaves
        self.limit = options.limit(leaves)
        if self.limit < FIRST:
            raise ValueError(f"prioritized: expected alpha and epsilon that give finite masses, got {options}")
        self._offsets = level_offsets(leaves)
        self._tree = empty_tree(self._offsets)
        self._marks = np.zeros(leaves, np.uint8)
        self._reach = np.zeros((2, geometry.lanes), np.int64)
        window = [read_plan.plan[name][0] for name in ("stack", "n_step", "length", "burn_in", "period")]
        self._kind = {"exponents": np.array([options.alpha, options.epsilon]), "window": np.array(window)}
        self._record = np.zeros(1, kernels.PRIORITIES)
        self._set(lanes.layout)
        self._room = 0  # rows or updates for which there is scratch
        self._scratch: list[Any] = []
        self.resize(read_plan.chosen.shape[1])

    def resize(self, count: int) -> None:
        """Makes room for draws and updates of `count` rows."""
        if count > self._room:
            self._scratch.append(np.ones((3, count)))  # also for the leaves, as int64
            for name, array in zip(("points", "masses", "leaves"), self._scratch[-1], strict=True):
                self._record[name] = address_of(array)
            self._room = count
            del self._scratch[:-1]  # now: an interrupt above leaves addresses of older ones

    def _set(self, layout: RecordLayout) -> None:
        record, options = self._record, self._options
        record["alpha"], record["epsilon"], record["limit"] = options.alpha, options.epsilon, self.limit
        record["highest"] = FIRST + options.epsilon
        record["nodes"], record["levels"] = len(self._tree), len(self._offsets) - 1
        record["bad_lane"] = record["bad_ticket"] = -1
        arrays = [self._tree, self._offsets, self._marks, *self._reach]
        for name, array in zip(("tree", "offsets", "marks", "floor", "caught"), arrays, strict=True):
            record[name] = address_of(array)
        for place in layout.of_role("extra"):
            if place.name == options.initial:
                record["initial"] = self._read_plan.plan["records"][0] + place.offset
                record["initial_stride"] = self._read_plan.plan["record_stride"][0]

    @property
    def beta(self) -> float:
        """The exponent of the next batch's weights."""
        options = self._options
        if self.fixed_beta is not None:
            return self.fixed_beta
        over = options.beta_inserts or options.beta_steps
        done = self._inserted() if options.beta_inserts else self.batches
        return options.beta + (1.0 - options.beta) * (min(1.0, done / over) if over else 0.0)

    @property
    def total(self) -> float:
        """The total mass at the last batch."""
        return float(self._tree[-1])

    @property
    def all_zero(self) -> bool:
        return bool(self._marks.any()) and not self.total > 0.0

    def prepare(self, memory: BatchMemory) -> None:
        nothing = np.empty(0, np.int64)
        self.draw(memory, nothing)
        self.update(nothing, nothing)
        kernels.weigh(self._read_plan.plan, memory.address, nothing, self._record, self.beta)

    def drawable(self, most: int) -> int:
        self._catch_up()
        if most == 1:
            return min(1, math.ceil(self.total))
        return int(uniform.list_sampleable(self._read_plan.plan, np.zeros((2, most), np.int64)))

    def draw(self, memory: BatchMemory, rows: NDArray[np.int64]) -> tuple[int, int]:
        """Draws as `_Uniform.draw` does.

        Raises ValueError if an actor stored a bad priority, which from then on counts as the highest.
        """
        self._catch_up()
        if self._record["bad_ticket"][0] >= 0 and len(rows):
            self._refuse_bad()
        d = self._read_plan
        return kernels.draw(d.plan, d.columns, memory.address, rows, self._record), 0

    def weigh(self, memory: BatchMemory, rows: NDArray[np.int64], beta: float | None = None) -> None:
        """Computes the importance weights of a batch's rows, by the argument `beta` if given; then advances beta."""
        beta = self.beta if beta is None else beta
        kernels.weigh(self._read_plan.plan, memory.address, rows, self._record, beta)
        self.batches += 1

    def update(self, index: ArrayLike, priority: ArrayLike) -> int:
        indices, values = checked_priorities(index, priority, self.limit)
        self.resize(len(indices))
        d = self._read_plan
        d.read_windows()
        return int(kernels.update(d.plan, self._record, indices, values))

    def start_anew(self) -> None:
        """Forgets all priorities, also the highest so far."""
        self._tree[:], self._marks[:], self._reach[:] = 0.0, 0, 0
        self._record["highest"] = FIRST + self._options.epsilon

    def _catch_up(self) -> None:
        self._read_plan.read_windows()
        kernels.catch_up(self._read_plan.plan, self._record)

    def _refuse_bad(self) -> None:
        lane, ticket = self._record["bad_lane"][0], self._record["bad_ticket"][0]
        self._record["bad_lane"] = self._record["bad_ticket"] = -1
        d = self._read_plan
        d.chosen[:, 0] = lane, ticket, ticket
        if not len(d.lapped(1)):  # else the row was overwritten, perhaps during the read
            label, got = f"{self._path}: {self._options.initial}", f"another number in lane {lane}, ticket {ticket}"
            raise ValueError(f"{label}: expected priorities from 0 to {self.limit:.3g}, got {got}")

    def state_dict(self) -> dict[str, NDArray[Any]]:
        beta = {} if self.fixed_beta is None else {"beta": np.array(self.fixed_beta)}
        return beta | {
            **self._kind,
            "masses": self._tree[: self._leaves].copy(),
            "marks": self._marks.copy(),
            "reach": self._reach.copy(),
            "highest": np.array(float(self._record["highest"][0])),
            "batches": np.array(self.batches),
        }

    def forget(self, state: dict[str, NDArray[Any]], tickets: NDArray[np.int64]) -> None:
        """Removes from a state, in each lane, the rows at or above the lane's ticket in `tickets`, int64 [lanes]."""
        reach = np.minimum(state["reach"], tickets, out=state["reach"])
        behind = self._behind(reach)
        for name in ("masses", "marks"):
            state[name].reshape(behind.shape)[behind] = 0

    def _behind(self, reach: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Marks the leaves, bool [lanes, rows], that belong to no ticket in [floor, caught); `reach` holds both."""
        floor, caught = reach[:, :, None]
        per_lane = self._leaves // self._lane_count
        behind: NDArray[np.bool_] = (np.arange(per_lane) - floor) % per_lane >= caught - floor
        return behind

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        for name, array in self.state_dict().items():
            if name != "beta":
                state_array(state, name, array.shape, array.dtype)
        for name, same in self._kind.items():
            if (state[name] != same).any():
                expected = f"the state of a sampler with the {name} {same.tolist()}"
                raise ValueError(f"state: expected {expected}, got {state[name].tolist()}")
        masses = state["masses"]
        if not ((masses >= 0).all() and masses.sum() < np.inf):
            raise ValueError("state: expected masses of at least 0 with a finite sum")
        if not (0 <= state["highest"] < np.inf and state["batches"] >= 0):
            got = f"{state['highest']} and {state['batches']}"
            raise ValueError(f"state: expected highest and batches of at least 0, got {got}")
        beta = BETA("state: beta", float(state_array(state, "beta", (), np.float64))) if "beta" in state else None
        floor, caught = state["reach"][:, :, None]
        self._read_plan.read_windows()
        per_lane = self._leaves // self._lane_count
        if not ((floor >= 0) & (floor <= caught) & (caught <= self._read_plan.windows[1][:, None])).all():
            raise ValueError("state: expected the state of a sampler of this replay, got tickets that it does not have")
        if (caught - floor > per_lane).any():
            raise ValueError(f"state: expected at most the {per_lane} rows of a lane, got {(caught - floor).max()}")
        behind = self._behind(state["reach"])
        if (unseen := masses.reshape(behind.shape)[behind]).any():
            raise ValueError(f"state: expected masses of 0 for rows that the sampler has not seen, got {unseen.max()}")
        self._tree[: self._leaves] = masses
        repair_range(self._tree, self._offsets, 0, 0, self._leaves)
        self._marks[:] = state["marks"]
        self._reach[:] = state["reach"]
        self._record["highest"] = state["highest"]
        self.batches, self.fixed_beta = int(state["batches"]), beta


def checked_priorities(
    index: ArrayLike, priority: ArrayLike, limit: float = sys.float_info.max
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Returns the arguments of `Sampler.update_priorities` as arrays; raises the same errors."""
    indices, values = checked_index(index), _array("priority", priority, np.float64)
    if values.shape == (len(indices), 1):
        values = values[:, 0]
    if values.shape != indices.shape:
        raise ValueError(f"priority: expected a number for each index, shape {indices.shape}, got {values.shape}")
    row = kernels.first_bad(values, limit)
    if row >= 0:
        highest = f", not above {limit:.3g}" if values[row] > limit and values[row] < np.inf else ""
        got = f"{values[row]} in row {row}, index {indices[row]}"
        raise ValueError(f"priority: expected finite numbers of at least 0{highest}, got {got}")
    return indices, values


def checked_index(index: ArrayLike) -> NDArray[np.int64]:
    """Returns the index of some rows as an array. Raises ValueError if it is not integers (n,)."""
    indices = _array("index", index, None)
    if indices.ndim != 1 or (indices.dtype.kind not in "iu" and len(indices)):
        raise ValueError(f"index: expected integers (n,), got {indices.dtype} {indices.shape}")
    return np.ascontiguousarray(indices, np.int64)


def _array(label: str, value: Any, dtype: Any) -> NDArray[Any]:
    if is_tensor(value):  # perhaps on a GPU
        value = without_grad(value).cpu().numpy()
    try:
        return np.asarray(value, dtype, order="C")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{label}: expected numbers (n,), got {brief(value)} ({brief(error)})") from None
