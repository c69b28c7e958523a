"""How far rounding may take two results apart: tolerances that follow from the arithmetic, not from a machine."""

from typing import Any

import numpy as np
import pytest


def rounding(terms: int, scale: float = 1.0, dtype: str = "float32") -> dict[str, float]:
    """The tolerances `rtol` and `atol` between two results of the same sums, in any order, fused or not.

    A result behind n roundings is off by at most n u / (1 - n u) of what it were if every number in it were positive; u
    is half the distance from 1 to the next number (Higham 2002, "Accuracy and stability of numerical algorithms",
    lemma 3.1). Both results may be off.

    `terms` are the roundings behind a result: the numbers in its sum, added up over sums that feed each other; about 4
    for each exp, log, tanh or power. `scale` bounds that positive result; `dtype` is the less precise one of the two.
    """
    unit = float(np.finfo(dtype).eps) / 2
    most = 2 * terms * unit / (1 - terms * unit)
    return {"rtol": most, "atol": most * float(scale)}


def near(expected: Any, terms: int, scale: float = 1.0, dtype: str = "float32") -> Any:
    """What equals `expected` up to rounding, for `assert found == near(...)`; see `rounding`."""
    most = rounding(terms, scale, dtype)
    return pytest.approx(expected, rel=most["rtol"], abs=most["atol"])
