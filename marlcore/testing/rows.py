"""Rows that say by themselves whether they are whole: first words that name a row, and words that follow from these.

A row that is torn, or that lies where another one belongs, so shows it without a second record of what was written.
With the ticket alone as its name it is the row of csrc/test/rows.h.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["filled", "torn"]

_ODD = np.uint64(0x9E3779B97F4A7C15)


def filled(words: int, *name: Any) -> NDArray[np.uint64]:
    """Rows of so many words.

    Args:
        words: of a row, those of its name included.
        name: integers, or arrays of integers that broadcast to [...]; negative ones are taken modulo 2^64.

    Returns: uint64 [..., words].
    """
    named = [np.asarray(one).astype(np.uint64)[..., None] for one in np.broadcast_arrays(*name)]
    seed = np.zeros_like(named[0])
    for one in named:
        seed = (seed + one) * _ODD
    return np.concatenate([*named, seed + np.arange(len(named), words, dtype=np.uint64)], -1)


def torn(rows: NDArray[Any], name: int) -> NDArray[np.bool_]:
    """Which rows do not follow from their first `name` words: bool [...] of 64-bit integers [..., words]."""
    rows = rows.view(np.uint64)
    expected = filled(rows.shape[-1], *np.moveaxis(rows[..., :name], -1, 0))
    wrong: NDArray[np.bool_] = (rows != expected).any(-1)
    return wrong
