"""The last observations of each copy of the environment, for models that take several at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...observations import Values, each
from ...spec import Field


class Stack:
    """The last observations of each copy, oldest first, in the form [copies, stack, ...] of a model's input."""

    def __init__(
        self, obs: Field | Mapping[str, Field], copies: int, stack: int, pad: Literal["repeat", "zero"]
    ) -> None:
        self._frames: Values = each(lambda field: np.zeros((copies, stack, *field.shape), field.dtype), obs)
        self._pad = pad

    def push(self, obs: Values, at: Any, begins: NDArray[np.bool_]) -> Values:
        """The stacks [k, stack, ...] that end with these observations [k, ...]."""

        def pushed(frames: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
            stacks: NDArray[Any] = frames[at]
            stacks[:, :-1] = stacks[:, 1:]
            stacks[:, -1] = new
            if begins.any():
                stacks[begins, :-1] = new[begins, None] if self._pad == "repeat" else 0
            if not isinstance(at, slice):
                frames[at] = stacks
            return stacks

        stacks: Values = each(pushed, self._frames, obs)
        return stacks
