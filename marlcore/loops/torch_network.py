"""A policy that acts by torch: its algorithm, its model, and the recurrent states of its copies."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..checks import names_error
from ..interfaces import PREVIOUS_REWARD, Action, Algorithm
from ..observations import Values
from .model import PolicyModel

State = Mapping[str, torch.Tensor]


@dataclass
class TorchNetwork:
    """Has the methods of a `CompiledPolicy`, but acts by the algorithm's own `act`; keeps no recurrent state."""

    algorithm: Algorithm
    model: PolicyModel  # its acting part, on `device`
    device: torch.device

    def __post_init__(self) -> None:
        self.model.eval()  # switches dropout off: a greedy policy draws nothing

    @property
    def weights(self) -> dict[str, Any]:
        """Copies of the model's tensors, in host memory."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}

    def load(self, weights: Mapping[str, Any]) -> None:
        self.model.load_state_dict(weights)

    def act(
        self, obs: Values, *, explore: Mapping[str, Any] | None, mask: NDArray[np.bool_] | None,
        generator: np.random.Generator, state: State | None = None,
    ) -> Action:  # fmt: skip
        model, tensors = self.model, self._moved(obs)
        if model.norm is not None:
            tensors = model.norm(tensors)
        allowed = None if mask is None else self._moved(mask)
        return self.algorithm.act(model.model, tensors, explore=explore, state=state, mask=allowed, generator=generator)

    def _moved(self, arrays: Any) -> Any:
        if isinstance(arrays, dict):
            return {name: self._moved(array) for name, array in arrays.items()}
        return torch.from_numpy(arrays).to(self.device)

    def first_priority(
        self, before: Mapping[str, NDArray[Any]], reward: NDArray[Any], discount: float,
        after: Mapping[str, NDArray[Any]],
    ) -> NDArray[np.float32]:  # fmt: skip
        """See `Algorithm.first_priority`; takes the environment's rewards, not normalized."""
        if self.model.rewards is not None:
            reward = self.model.rewards(torch.tensor(reward, device=self.device)).numpy(force=True)
        return self.algorithm.first_priority(before, reward, discount, after)

    def __deepcopy__(self, memo: dict[int, Any]) -> "TorchNetwork":
        return replace(self, model=copy.deepcopy(self.model, memo))


class RecurrentStates:
    """Keeps each copy's recurrent state in tensors [copies, ...] by name, once a network has returned a state.

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

        Raises ValueError if a part is missing or unknown, or has another shape.
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
