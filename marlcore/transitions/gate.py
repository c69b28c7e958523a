"""What a writer waits for before each add: a replay's limiter, or a queue's reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Gate(Protocol):
    """A condition that a writer passes before each add.

    Attributes:
        spare_rows: rows of a lane that an add leaves free.
    """

    spare_rows: int

    def wait(self, transitions: int, boundaries: int, timeout: float | None, check_open: Callable[[], None]) -> bool:
        """Waits until these rows may be added; False means that the writer must drop them.

        Args:
            transitions, boundaries: how many rows of each kind.
            timeout: seconds; None waits for ever.
            check_open: raises if the writer was closed meanwhile.

        Raises: TimeoutError: the wait exceeded the timeout. ValueError: no wait would ever be enough.
        """


class VectorGate(Protocol):
    """A condition that the writer of several lanes passes before each add."""

    def wait_each(
        self,
        which: NDArray[np.int64],
        boundaries: NDArray[np.bool_],
        timeout: float | None,
        check_open: Callable[[], None],
    ) -> NDArray[np.bool_] | bool:
        """Waits until a row may be added to each of k lanes; returns the rows that the writer must drop, bool [k].

        Args:
            which: int64 [k], the lanes, as indices of the writer's lanes.
            boundaries: bool [k], the rows that a boundary row follows.
            timeout, check_open: see `Gate.wait`.

        Raises: as `Gate.wait`.
        """
