"""A learner's numbers are finite before they leave it: its loss, and its weights and state."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import InitVar, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from ...errors import Diverged
from .model import PolicyModel


@dataclass
class FiniteCheck:
    """Checks a policy's loss, weights and checkpoints; each method raises Diverged if a number is NaN or infinite.

    Buffers and parts of the trainer's state that were infinite at the beginning, such as a mask of -inf, may stay so.
    """

    policy: str
    model: PolicyModel
    trainer: InitVar[Mapping[str, Any]]  # its state at the beginning
    checkpoint: Path
    saved: int | None  # the updates of the checkpoint in that file

    def __post_init__(self, trainer: Mapping[str, Any]) -> None:
        model = self.model
        first = chain(model.whole.named_buffers(), model.acting.named_buffers(), _tensors("trainer", trainer))
        self._exempt = {name for name, tensor in first if _is_float(tensor) and bool(torch.isinf(tensor).any())}

    def check_loss(self, loss: float, updates: int) -> None:
        if not math.isfinite(loss):
            self._refuse(f"the loss is {loss}", updates)

    def check_published(self, updates: int) -> None:
        """Checks the weights of the acting part: one pass over them, without a wait for each tensor."""
        acting = self.model.acting
        self._check(chain(acting.named_parameters(), acting.named_buffers()), updates)

    def check_saved(self, trainer: Mapping[str, Any], updates: int) -> None:
        whole, norm = self.model.whole, self.model.acting
        self._check(chain(whole.named_parameters(), whole.named_buffers(), norm.named_buffers()), updates)
        self._check(_tensors("trainer", trainer), updates)

    @torch.no_grad()
    def _check(self, named: Iterator[tuple[str, torch.Tensor]], updates: int) -> None:
        tensors = {name: tensor for name, tensor in named if _is_float(tensor) and name not in self._exempt}
        sums: dict[torch.device, list[torch.Tensor]] = {}  # by device, for one wait each
        for tensor in tensors.values():
            sums.setdefault(tensor.device, []).append(tensor.sum().float())
        if all(torch.stack(on_device).isfinite().all() for on_device in sums.values()):
            return
        for name, tensor in tensors.items():  # a sum of finite numbers may be infinite
            wrong = ~torch.isfinite(tensor)
            if wrong.any():
                self._refuse(f"{name} holds {tensor[wrong][0].item()}", updates)

    def _refuse(self, what: str, updates: int) -> None:
        kept = f"the checkpoint of update {self.saved} is kept, {str(self.checkpoint)!r}"
        raise Diverged(
            f"{self.policy}: expected finite numbers, but {what} at update {updates}; nothing more is published; "
            + ("there is no checkpoint yet" if self.saved is None else kept)
        )


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 0


def _tensors(name: str, state: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors and floats in a state of dicts and sequences, with the names that lead to them."""
    if isinstance(state, torch.Tensor):
        yield name, state
    elif isinstance(state, float):
        yield name, torch.tensor(state, dtype=torch.float64)
    elif isinstance(state, (Mapping, list, tuple)):
        for key, part in state.items() if isinstance(state, Mapping) else enumerate(state):
            yield from _tensors(f"{name}.{key}", part)
