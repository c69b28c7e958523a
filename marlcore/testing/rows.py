"""Rows that prove their own integrity: the first words name the row, and the other words are computed from them.

So a reader detects a torn or misplaced row without a record of the writes. csrc/test/rows.h makes the same rows from
tickets.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_ODD = np.uint64(0x9E3779B97F4A7C15)


def filled(words: int, *name: Any) -> NDArray[np.uint64]:
    """Makes rows, uint64 [..., words], each of which begins with the words of its name.

    Args:
        name: integers, or arrays of integers that broadcast to [...]; negative ones are taken modulo 2^64.
    """
    named = [np.asarray(word).astype(np.uint64)[..., None] for word in np.broadcast_arrays(*name)]
    seed = np.zeros_like(named[0])
    for word in named:
        seed = (seed + word) * _ODD
    return np.concatenate([*named, seed + np.arange(len(named), words, dtype=np.uint64)], -1)


def torn(rows: NDArray[Any], name: int) -> NDArray[np.bool_]:
    """Returns which rows, 64-bit integers [..., words], do not match their first `name` words: bool [...]."""
    rows = rows.view(np.uint64)
    expected = filled(rows.shape[-1], *np.moveaxis(rows[..., :name], -1, 0))
    wrong: NDArray[np.bool_] = (rows != expected).any(-1)
    return wrong
