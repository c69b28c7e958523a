"""The priorities of a ring's rows by cpprb's rules, kept by the learner that samples it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.sumtree import find, level_offsets, repair
from ..ring import Held, Ints


class RingPriorities:
    """The priorities of one ring's rows since it was cleared; `window` are the rows known."""

    def __init__(self, window: Held, alpha: float, eps: float) -> None:
        self._alpha, self._eps = alpha, eps
        self._offsets = level_offsets(window.capacity)
        self._sums = np.zeros(self._offsets[-1])  # of the leaves, one a position, which come first; the last is of all
        self._minima = np.full(self._offsets[-1], np.inf)  # of the leaves above 0
        self.window = Held(window.base, window.base, window.base, window.capacity)
        self._sampled = window.base  # rows from this ticket on came after the last sample
        self._lapped = np.zeros(0, np.int64)  # positions whose drawn row was overwritten before the sample ended
        self.greatest = 1.0

    def append(self, positions: Ints, priorities: NDArray[np.float32], ok: NDArray[np.bool_]) -> None:
        """Adds new rows in ticket order; a priority of NaN means the greatest priority so far."""
        known = np.where(ok & (priorities >= 0) & np.isfinite(priorities), priorities, np.nan)
        greatest = np.fmax.accumulate(np.concatenate([[self.greatest], known]))
        leaves = self._leaves(np.where(np.isnan(known), greatest[:-1], known))
        # Rows overwritten meanwhile are not drawn.
        self._put(positions, np.where(ok, leaves, 0.0))
        self.greatest = float(greatest[-1])

    def mark_sampled(self, tickets: Ints) -> Ints:
        """Positions of the rows drawn last; until the next sample, updates apply only to rows known now."""
        self._sampled = self.window.hi
        positions = self.window.positions(tickets)
        gone = tickets < self.window.hi - self.window.stored
        self._lapped = np.setdiff1d(positions[gone], positions[~gone]) if gone.any() else positions[:0]
        return positions

    def update(self, positions: Ints, priorities: NDArray[np.float32], keep_new: bool = True) -> None:
        """Sets priorities of positions below stored; for a repeated position, the last one counts.

        `keep_new` skips rows that came after the last sample.
        """
        if keep_new:
            tickets = self.window.tickets(positions)
            current = (tickets >= self.window.lo) & (tickets < self._sampled)
            if len(self._lapped):
                current &= ~np.isin(positions, self._lapped)
            positions, priorities = positions[current], priorities[current]
        if len(positions):
            self._put(positions, self._leaves(priorities))
            self.greatest = max(self.greatest, float(priorities.max()))

    @property
    def has_mass(self) -> bool:
        return bool(self._sums[-1] > 0)

    def draw(self, count: int) -> Ints:
        """Tickets drawn in proportion to the leaves, with NumPy's global generator."""
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
        """The greatest priority and the base it belongs to, in one word."""
        return (self.window.base & 0x7FFFFFFF) << 32 | int(np.float32(self.greatest).view(np.uint32))

    def unpacked_greatest(self, word: int) -> float:
        """The greatest priority in a word of `packed_greatest`; 0 if it belongs to another base."""
        if word >> 32 != self.window.base & 0x7FFFFFFF:
            return 0.0
        return float(np.uint32(word & 0xFFFFFFFF).view(np.float32))

    def _leaves(self, priorities: NDArray[Any]) -> NDArray[np.float64]:
        leaves: NDArray[np.float64] = (priorities.astype(np.float64) + self._eps) ** self._alpha
        return leaves

    def _put(self, positions: Ints, leaves: NDArray[np.float64]) -> None:
        self._sums[positions] = leaves
        self._minima[positions] = np.where(leaves > 0, leaves, np.inf)
        repair(self._sums, self._offsets, positions.copy(), len(positions))
        repair(self._minima, self._offsets, positions.copy(), len(positions), True)
