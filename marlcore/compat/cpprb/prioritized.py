"""cpprb's prioritized buffers: the learner's process keeps the priorities, and draws by cpprb's rules."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...checks import brief
from ...declared import Number
from ...kernels.sumtree import find, level_offsets, repair
from ...replay import Prioritized
from ...spec import Field
from ..ring import Held, Ints, Rows, whole_number
from ..ring_lane import MARK
from .base import EnvDict, MPReplayBuffer, RingBuffer, check_not_empty

_POSITIVE = Number(0)


class RingPriorities:
    """The priorities of a ring's rows since the ring was cleared; `window` is the range of rows with a priority."""

    def __init__(self, window: Held, alpha: float, eps: float) -> None:
        self._alpha, self._eps = alpha, eps
        self._offsets = level_offsets(window.capacity)
        self._sums = np.zeros(self._offsets[-1])  # the leaves by position, then sums of leaves, last the sum of all
        self._minima = np.full(self._offsets[-1], np.inf)  # the leaves above 0 by position, then minima of leaves
        self.window = Held(window.base, window.base, window.base, window.capacity)
        self._sampled = window.base  # rows from this ticket on were added after the last sample
        self._lapped = np.zeros(0, np.int64)  # positions whose drawn row was overwritten before the sample ended
        self.greatest = 1.0
        self.unfinished: tuple[Ints, NDArray[np.float64]] | None = None  # what an interrupted `put` has not put whole

    def append(self, positions: Ints, priorities: NDArray[np.float32], ok: NDArray[np.bool_]) -> None:
        """Adds priorities of new rows in ticket order; NaN means the greatest so far. Rows not `ok` get none."""
        known = np.where(ok & (priorities >= 0) & np.isfinite(priorities), priorities, np.nan)
        greatest = np.fmax.accumulate(np.concatenate([[self.greatest], known]))
        leaves = self._leaves(np.where(np.isnan(known), greatest[:-1], known))
        # Rows overwritten meanwhile are not drawn.
        self.put(positions, np.where(ok, leaves, 0.0))
        self.greatest = float(greatest[-1])

    def mark_sampled(self, tickets: Ints) -> Ints:
        """Notes for `update` which rows a sample drew, and returns the positions of these rows."""
        self._sampled = self.window.hi
        positions = self.window.positions(tickets)
        gone = tickets < self.window.hi - self.window.stored
        self._lapped = np.setdiff1d(positions[gone], positions[~gone]) if gone.any() else positions[:0]
        return positions

    def update(self, positions: Ints, priorities: NDArray[np.float32], keep_new: bool = True) -> None:
        """Sets the priorities at positions that hold rows; for a repeated position, the last priority counts.

        With `keep_new`, skips a position if its row was overwritten during or after the last sample.
        """
        if keep_new:
            tickets = self.window.tickets(positions)
            current = (tickets >= self.window.lo) & (tickets < self._sampled)
            if len(self._lapped):
                current &= ~np.isin(positions, self._lapped)
            positions, priorities = positions[current], priorities[current]
        if len(positions):
            self.greatest = max(self.greatest, float(priorities.max()))
            self.put(positions, self._leaves(priorities))

    def put(self, positions: Ints, leaves: NDArray[np.float64]) -> None:
        self.unfinished = positions, leaves
        self._sums[positions] = leaves
        self._minima[positions] = np.where(leaves > 0, leaves, np.inf)
        repair(self._sums, self._offsets, positions.copy(), len(positions))
        repair(self._minima, self._offsets, positions.copy(), len(positions), True)
        self.unfinished = None

    def draw(self, count: int) -> Ints:
        """Draws tickets in proportion to (priority + eps) ** alpha, int64 [count]; draws none if all of these are 0."""
        if not self._sums[-1] > 0:
            return np.zeros(0, np.int64)
        points = np.random.random_sample(count) * self._sums[-1]
        order = np.argsort(points)
        ascending, leaves = np.empty((2, count), np.int64)
        find(self._sums, self._offsets, points[order], ascending, count)
        leaves[order] = ascending
        return self.window.tickets(leaves)

    def weights(self, positions: Ints, beta: float) -> NDArray[np.float32]:
        least = self._minima[-1]
        shares = least / np.maximum(self._sums[positions], least)
        weights: NDArray[np.float32] = np.power(shares, beta).astype(np.float32)
        return weights

    def packed_greatest(self) -> int:
        """Packs the greatest priority and the ring's base (see ring.py) into one word."""
        return (self.window.base & 0x7FFFFFFF) << 32 | int(np.float32(self.greatest).view(np.uint32))

    def unpacked_greatest(self, word: int) -> float:
        """Returns the greatest priority in a word of `packed_greatest`; 0 if the ring has been cleared since."""
        if word >> 32 != self.window.base & 0x7FFFFFFF:
            return 0.0
        return float(np.uint32(word & 0xFFFFFFFF).view(np.float32))

    def _leaves(self, priorities: NDArray[Any]) -> NDArray[np.float64]:
        leaves: NDArray[np.float64] = (priorities.astype(np.float64) + self._eps) ** self._alpha
        return leaves


class PrioritizedBuffer(RingBuffer):
    """A ring sampled in proportion to priorities; see MPPrioritizedReplayBuffer."""

    _own_fields: Mapping[str, Field] = {"priorities": Field((), "float32")}  # NaN if add got none
    _keeps_new = True  # whether an update skips rows that were added since the last sample

    def __init__(
        self, size: int, env_dict: EnvDict | None = None, *, alpha: float = 0.6, eps: float = 1e-4, **kwargs: Any
    ) -> None:
        super().__init__(size, env_dict, **kwargs)  # type: ignore[arg-type]  # of the other base of each subclass
        self._alpha, self._eps = _POSITIVE("alpha", alpha), _POSITIVE("eps", eps)
        limit = Prioritized(self._alpha, epsilon=self._eps).limit(self._ring.capacity)
        self._most = min(limit, float(np.finfo(np.float32).max))
        if self._most < 1.0:
            raise ValueError(f"alpha, eps: expected a finite sum of (1 + eps) ** alpha, got alpha={alpha}, eps={eps}")
        self._learner: RingPriorities | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_learner": None}

    def add(self, /, *, priorities: ArrayLike | None = None, **kwargs: ArrayLike) -> int | None:
        """Adds one or more steps, all or none.

        Args:
            priorities: one per step, at least 0, and so small that the sum of all (priority + eps) ** alpha is finite;
                by default the greatest priority so far.
            kwargs: see MPReplayBuffer.

        Returns, raises: see MPReplayBuffer. ValueError: the number of priorities is wrong, or one is out of range.
        """
        rows, steps = self._rows(kwargs)
        unset = np.full(steps, np.nan, np.float32)
        rows["priorities"] = unset if priorities is None else self._checked(priorities, steps)
        return self._append(rows, steps)

    def sample(self, batch_size: int, beta: float = 0.4) -> Rows:
        """Draws transitions in proportion to their priorities, with replacement, by NumPy's global generator.

        Args:
            batch_size: rows.
            beta: exponent of the importance weights.

        Returns: each field, [batch_size, *shape]; "weights" float32, "indexes" uint64, each [batch_size]. A weight is
            (p / the least p stored) ** -beta, where p = (priority + eps) ** alpha.

        Raises: see MPReplayBuffer. ValueError: no transition has a priority + eps above 0.
        """
        count = whole_number("batch_size", batch_size, 0)
        _POSITIVE("beta", beta)
        while True:
            learner = self._caught_up()
            rows, tickets = self._ring.whole(count, self._draw, *self._fields)
            if learner is self._learner:  # otherwise another process cleared the ring between two draws
                break
        positions = learner.mark_sampled(tickets)
        sample = {name: rows[name] for name in self._fields}
        sample["weights"] = learner.weights(positions, beta)
        sample["indexes"] = positions.astype(np.uint64)
        return sample

    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Sets new priorities at positions from `sample`.

        Skips a position if its row was overwritten during or after the last `sample`; a buffer for one process does so
        only with check_for_update=True.

        Args:
            indexes: positions, [n] or any shape with n elements; floats must be whole.
            priorities: one per index, in the range that `add` takes.

        Raises:
            TypeError: indexes are not integers, or priorities are None.
            ValueError: the numbers of priorities and indexes differ, or an index or priority is out of range.
        """
        if indexes is None or priorities is None:
            raise TypeError(f"indexes, priorities: expected arrays, got {brief(indexes)} and {brief(priorities)}")
        positions = np.ravel(np.asarray(indexes))
        if positions.dtype.kind == "f" and (positions == np.trunc(positions)).all():
            positions = positions.astype(np.int64)
        if len(positions) and positions.dtype.kind not in "iu":
            raise TypeError(f"indexes: expected integers, got dtype {positions.dtype}")
        checked = self._checked(priorities, len(positions))
        if len(positions) and positions.dtype.kind == "i" and positions.min() < 0:
            raise ValueError(f"indexes: expected positions of at least 0, got {positions.min()}")
        learner = self._caught_up()
        known = positions < learner.window.stored
        learner.update(positions[known].astype(np.int64), checked[known], self._keeps_new)
        self._ring.lane.words.store(MARK, learner.packed_greatest())

    def get_max_priority(self) -> float:
        """Returns the greatest priority since the buffer was cleared, at least 1.

        In a buffer for several processes, priorities of rows that were overwritten before this process looked do not
        count. In a process other than the learner, this is the greatest priority of the rows held and of the learner's
        last update.
        """
        learner = self._caught_up()
        return max(learner.greatest, learner.unpacked_greatest(self._ring.lane.words.load(MARK)))

    def _draw(self, count: int) -> Ints:
        learner = self._caught_up()
        check_not_empty(learner.window)
        tickets = learner.draw(count)
        # The ring still holds rows of the learner's window, so their priorities sum to 0.
        if len(tickets) < count and self._ring.window().lo < learner.window.hi:
            raise ValueError("sample: expected a transition with a priority + eps above 0, got none")
        return tickets

    def _checked(self, priorities: ArrayLike, count: int) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            array = np.ravel(np.asarray(priorities, np.float32))
        if len(array) != count:
            raise ValueError(f"priorities: expected {count} numbers, got {len(array)}")
        bad = array[~((array >= 0) & (array.astype(np.float64) <= self._most))]
        if len(bad):
            raise ValueError(f"priorities: expected numbers from 0 to {self._most:.6g}, got {brief(bad.tolist())}")
        return array

    def _caught_up(self) -> RingPriorities:
        window = self._ring.window()
        learner = self._learner
        if learner is None or learner.window.base != window.base:
            learner = self._learner = RingPriorities(window, self._alpha, self._eps)
        if learner.unfinished is not None:
            learner.put(*learner.unfinished)
        pending = np.arange(max(learner.window.hi, window.hi - window.stored), window.hi)
        if len(pending):
            rows, ok = self._ring.gather(pending, "priorities")
            whole = np.ones(len(pending), np.bool_) if ok is None else ok
            learner.append(window.positions(pending), rows["priorities"], whole)
        learner.window = window
        return learner


class MPPrioritizedReplayBuffer(PrioritizedBuffer, MPReplayBuffer):
    """An MPReplayBuffer sampled in proportion to (priority + eps) ** alpha (Schaul et al. 2016, section 3.3).

    The process that samples, the learner, keeps the priorities: before each sample or update, it reads the priorities
    that `add` stored with new rows.

    Args:
        size, env_dict: see MPReplayBuffer.
        alpha: exponent of the priorities, at least 0.
        eps: added to each priority, at least 0.
        kwargs: further arguments of MPReplayBuffer.

    Raises: see MPReplayBuffer.
    """
