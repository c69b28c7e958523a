"""Arguments that are numbers, checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..checks import came

__all__ = ["number", "whole_number"]


def whole_number(label: str, value: Any, least: int) -> int:
    """`value` as an int; a float without a fraction is one. Raises ValueError: it is none, or less than `least`."""
    try:
        found = int(value)
        whole = bool(found == value)
    except (TypeError, ValueError, OverflowError):
        whole = False
    if not whole or found < least:
        raise ValueError(f"{label}: expected an integer of at least {least}, got {came(value)}")
    return found


def number(label: str, value: Any, most: float = math.inf) -> float:
    """`value` as a float when it is a finite number from 0 to `most`. Raises ValueError: it is not."""
    if isinstance(value, (int, float, np.number)) and 0 <= value <= most and value < math.inf:
        return float(value)
    expected = "a finite number of at least 0" if most == math.inf else f"a number from 0 to {most}"
    raise ValueError(f"{label}: expected {expected}, got {came(value)}")
