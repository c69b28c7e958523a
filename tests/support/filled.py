"""Modules and mappings of arrays filled with one number, so that a torn copy of their weights shows."""

from collections.abc import Iterable
from typing import Any

import numpy as np

CYCLE = 4096  # numbers up to it are exact in float32


def module() -> Any:
    from torch import nn

    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])


def tree() -> dict[str, Any]:
    return {"layers": [{"weight": np.zeros((64, 64), np.float32), "bias": np.zeros(64, np.float32)} for _ in range(4)]}


MODELS = {"module": module, "tree": tree}


def words(model: Any) -> list[np.ndarray]:
    """The arrays of a module or mapping, which share its memory."""
    if isinstance(model, dict):
        return [array for layer in model["layers"] for array in layer.values()]
    return [parameter.detach().numpy() for parameter in model.parameters()]


def words_of_row(store: Any, slot: int) -> list[np.ndarray]:
    """A copy of a slot's arrays, not validated."""
    row = store.slot_array(slot).copy()
    return [part.view(np.float32) for _, part in store.layout.parts(row)]


def fill(model: Any, value: float) -> Any:
    for array in words(model):
        array[...] = value % CYCLE
    return model


def value_of(arrays: Iterable[np.ndarray]) -> float:
    """The one number of all words; NaN if they are torn."""
    flat = np.concatenate([array.ravel() for array in arrays])
    return float(flat[0]) if (flat == flat[0]).all() else np.nan
