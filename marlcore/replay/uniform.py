"""Uniform drawing: the strategy of a sampler without priorities."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels import uniform
from ..transitions import BatchMemory, ReadPlan


class Uniform:
    """Draws without priorities: each transition or sequence that can be drawn is equally likely, of weight 1."""

    all_zero = False  # if no row can be drawn, whether only priorities of 0 prevent it
    limit = sys.float_info.max  # of priorities; unused, since there are none

    def __init__(self, read_plan: ReadPlan) -> None:
        self._read_plan = read_plan
        self._one_ticket = np.zeros((2, 1), np.int64)

    def prepare(self, memory: BatchMemory) -> None:
        """Compiles or loads the kernels without drawing."""
        d = self._read_plan
        uniform.draw(d.plan, d.columns, memory.address, np.empty(0, np.int64))
        self.can_draw()

    def can_draw(self) -> bool:
        """Whether any row can be drawn; the call changes no draw, past or future."""
        self._read_plan.read_windows()
        return bool(uniform.list_sampleable(self._read_plan.plan, self._one_ticket))

    def draw(self, memory: BatchMemory, rows: NDArray[np.int64]) -> tuple[int, int]:
        """Draws transitions into the output rows, slot i into rows[i]; returns (slots filled, draws refused).

        It fills no slot if no row can be drawn.
        """
        d = self._read_plan
        d.read_windows()
        filled, refused = uniform.draw(d.plan, d.columns, memory.address, rows)
        return filled or self.draw_listed(memory, rows), refused

    def draw_listed(self, memory: BatchMemory, rows: NDArray[np.int64]) -> int:
        """Draws from a list of the tickets that can be drawn, where `draw` would refuse nearly all its choices."""
        d = self._read_plan
        tickets = np.empty((2, int(np.sum(d.windows[1] - d.windows[0]))), np.int64)
        listed = uniform.list_sampleable(d.plan, tickets)
        return int(uniform.draw_listed(d.plan, d.columns, memory.address, rows, tickets, listed)) if listed else 0

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Does nothing: there is no state to restore."""
