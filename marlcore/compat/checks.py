"""Checks of numeric arguments."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np

from ..checks import came, check_whole


def whole_number(label: str, value: Any, least: int) -> int:
    """`value` as an int; a float may be whole. Raises ValueError: it is not an integer, or is less than `least`."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        value = int(value) if int(value) == value else value
    check_whole(label, value, least)
    return int(value)


def number(label: str, value: Any, most: float = math.inf) -> float:
    """`value` as a float. Raises ValueError: it is not a finite number from 0 to `most`."""
    if isinstance(value, (int, float, np.number)) and 0 <= value <= most and value < math.inf:
        return float(value)
    expected = "a finite number of at least 0" if most == math.inf else f"a number from 0 to {most}"
    raise ValueError(f"{label}: expected {expected}, got {came(value)}")
