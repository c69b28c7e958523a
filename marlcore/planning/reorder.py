"""Writing an expansion into a graph's arrays in the graph's order, block by block to save memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .expansion import Expansion

BLOCK = 1 << 20  # outcomes that are moved at once, unless one state has more


def write_in_order(arrays: dict[str, NDArray[Any]], found: Expansion, order: NDArray[np.int64]) -> None:
    """Writes the rows and outcomes of an expansion.

    Args:
        arrays: those of `Layout.bind`; those of rows and outcomes are written.
        order: the states' numbers in the graph's order, int64 [states].
    """
    rows_of, first_outcome = np.asarray(found.rows), found.first
    first_row = np.cumsum(rows_of) - rows_of
    outcomes_of = np.diff(first_outcome)
    lengths, profile = np.asarray(found.outcomes), np.asarray(found.profile)
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order))
    np.cumsum(rows_of[order], out=arrays["row_start"][1:])
    ends = np.cumsum(outcomes_of[order])
    row = outcome = low = 0
    while low < len(order):
        high = max(low + 1, int(np.searchsorted(ends, outcome + BLOCK, "right")))
        states = order[low:high]
        rows = _ranges(first_row[states], rows_of[states])
        outcomes = _ranges(first_outcome[states], outcomes_of[states])
        arrays["profile"][row : row + len(rows)] = profile[rows]
        arrays["start"][row + 1 : row + len(rows) + 1] = outcome + np.cumsum(lengths[rows])
        into = slice(outcome, outcome + len(outcomes))
        arrays["successor"][into] = place[np.asarray(found.successor)[outcomes]]
        if "probability" in arrays:
            arrays["probability"][into] = np.asarray(found.probability)[outcomes]
        row, outcome, low = row + len(rows), outcome + len(outcomes), high


def _ranges(first: NDArray[np.int64], counts: NDArray[Any]) -> NDArray[np.int64]:
    """The numbers first[i] to first[i] + counts[i] - 1 for each i, one after the other."""
    shift = first - (np.cumsum(counts) - counts)
    found: NDArray[np.int64] = np.repeat(shift, counts)
    found += np.arange(len(found))
    return found
