"""The network of a policy that acts by torch: its algorithm and its model."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..interfaces import Action, Algorithm
from ..observations import Values
from .model import PolicyModel


@dataclass
class TorchNetwork:
    """Acts as a `CompiledPolicy` does, by the algorithm's own `act`, with a recurrent state if it has one."""

    algorithm: Algorithm
    model: PolicyModel  # its acting part, on `device`
    device: torch.device

    def __post_init__(self) -> None:
        self.model.eval()  # switches dropout off: a greedy policy draws nothing

    @property
    def weights(self) -> dict[str, Any]:
        """Copies of the model's tensors, in the host's memory."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}

    def load(self, weights: Mapping[str, Any]) -> None:
        self.model.load_state_dict(weights)

    def act(
        self, obs: Values, *, explore: Mapping[str, Any] | None, mask: NDArray[np.bool_] | None,
        generator: np.random.Generator, state: Mapping[str, torch.Tensor] | None = None,
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
        """See `Algorithm.first_priority`; takes the rewards as the environment gave them."""
        if self.model.rewards is not None:
            reward = self.model.rewards(torch.tensor(reward, device=self.device)).numpy(force=True)
        return self.algorithm.first_priority(before, reward, discount, after)

    def __deepcopy__(self, memo: dict[int, Any]) -> "TorchNetwork":
        return replace(self, model=copy.deepcopy(self.model, memo))
