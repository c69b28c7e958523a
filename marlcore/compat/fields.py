"""Rows of arbitrary named fields in lanes of transitions: they are the extras; the other fields are unused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..spec import Field, TransitionSpec
from ..transitions import Writer

__all__ = ["append", "spec_of"]

_UNUSED = Field((), "uint8")


def spec_of(fields: Mapping[str, Field]) -> TransitionSpec:
    """The spec of rows with these fields that do not follow one another."""
    return TransitionSpec(_UNUSED, _UNUSED, dict(fields), next_obs=True)


def append(writer: Writer, rows: Mapping[str, NDArray[Any]], count: int) -> int:
    """Adds `count` rows of such a spec, each field [count, *shape], all or none; returns the first ticket."""
    if count == 1:
        return writer.add(0, 0, 0.0, next_obs=0, **{name: array[0] for name, array in rows.items()})
    unused = np.zeros(count, np.uint8)
    return writer.add_batch(unused, unused, np.zeros(count, np.float32), next_obs=unused, **rows)
