"""The places of a graph's arrays in its segment."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..memory import LINE

_LARGEST = 2**40  # of each count


@dataclass(frozen=True)
class Layout:
    """Counts that define a graph's arrays.

    Attributes:
        agents, actions: of the world model.
        states, rows, outcomes: states, their possible profiles, and the outcomes of these.
        probability: the dtype of probabilities; None without any.
        pickled: bytes of the pickled states.
    """

    agents: int
    actions: int
    states: int
    rows: int
    outcomes: int
    probability: str | None
    pickled: int

    def __post_init__(self) -> None:
        """Raises ValueError: a count or the dtype is out of range."""
        for name, value in asdict(self).items():
            if name != "probability":
                check_whole(name, value, 1 if name in ("agents", "actions", "states") else 0, _LARGEST)
        if self.probability not in (None, "float32", "float64"):
            raise ValueError(f"probability: expected float32, float64 or None, got {self.probability!r}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def shapes(self) -> dict[str, tuple[str, int]]:
        """By array: its dtype and length."""
        found = {
            "row_start": ("int64", self.states + 1),
            "profile": ("int32", self.rows),
            "start": ("int64", self.rows + 1),
            "successor": ("int32", self.outcomes),
            "level": ("int64", self.states),
            "pickled": ("uint8", self.pickled),
        }
        return found | ({"probability": (self.probability, self.outcomes)} if self.probability else {})

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(_lines(dtype, count) for dtype, count in self.shapes.values())

    def bind(self, body: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """The arrays by name. Raises ValueError: the body is too short for them."""
        if self.nbytes > len(body):
            raise ValueError(f"body: expected {self.nbytes} bytes, got {len(body)}")
        arrays, at = {}, 0
        for name, (dtype, count) in self.shapes.items():
            arrays[name] = body[at : at + count * np.dtype(dtype).itemsize].view(dtype)
            at += _lines(dtype, count)
        return arrays


def _lines(dtype: str, count: int) -> int:
    """An array's bytes, rounded up to whole lines."""
    return -(-count * np.dtype(dtype).itemsize // LINE) * LINE
