"""The recurrent states of a policy that acts, one for each copy of the environment."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..checks import names_error
from ..interfaces import PREVIOUS_REWARD

State = Mapping[str, torch.Tensor]


class RecurrentStates:
    """Keeps the state of each copy, tensors [copies, ...] by name, from the first one that a network returns.

    Attributes:
        before: the state [k, ...] with which the last actions were chosen.
    """

    def __init__(self, copies: int) -> None:
        self._copies = copies
        self._state: dict[str, torch.Tensor] = {}
        self._read: State | None = None
        self.before: State = {}

    def read(self, index: Any, begins: NDArray[np.bool_]) -> State:
        """Returns the state [k, ...] of the copies `index`, zeroed where an episode begins."""
        state: State = {name: rows[index] for name, rows in self._state.items()}
        if begins.any():
            fresh = torch.from_numpy(begins)
            state = {name: rows.masked_fill(_wide(fresh, rows), 0) for name, rows in state.items()}
        self._read = state
        return state

    def keep(self, state: State, index: Any, rows: int) -> None:
        """Stores the new state [rows, ...] of the copies `index`, without changing `before`.

        Raises ValueError: a part is missing or unknown, or has another shape.
        """
        self.before = self._read or {name: torch.zeros_like(part) for name, part in state.items()}
        if not self._state:
            self._state = {name: part.new_zeros((self._copies, *part.shape[1:])) for name, part in state.items()}
        if state.keys() != self._state.keys():
            raise names_error("state of the algorithm", self._state, state)
        for name, stored in self._state.items():
            if state[name].shape != (rows, *stored.shape[1:]):
                expected, got = (rows, *stored.shape[1:]), tuple(state[name].shape)
                raise ValueError(f"{name} of the algorithm's state: expected shape {expected}, got {got}")
        if isinstance(index, slice):
            self._state = dict(state)  # `before` holds views of the old tensors
            return
        with torch.inference_mode():  # the tensors may be inference tensors
            for name, stored in self._state.items():
                stored[index] = state[name]

    def reward(self, reward: NDArray[Any], index: Any) -> None:
        """Stores the rewards [k] of the last actions in the copies `index`, if the state has a part for them."""
        if PREVIOUS_REWARD in self._state:
            with torch.inference_mode():
                self._state[PREVIOUS_REWARD][index] = torch.as_tensor(reward).to(self._state[PREVIOUS_REWARD])


def _wide(flags: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Reshapes flags [k] so that they broadcast over rows [k, ...], and moves them to the rows' device."""
    return flags.to(rows.device).reshape(-1, *([1] * (rows.ndim - 1)))
