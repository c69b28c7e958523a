"""The base of compiled trainers: they update a torch trainer's tensors, and leave to it what they cannot update."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ...compiled import pointer
from ...interfaces import Update
from ...memory import ffi, lib
from ...observations import each
from ...transitions import Batch, TorchBatch
from .plain import NotPlain, Watched


class CompiledTrainer:
    """Makes a trainer's updates by chains, on the same tensors, while its networks are plain.

    Once a network changes, the trainer itself makes all following updates. State is that of the trainer.

    Attributes:
        trainer: of torch, with its networks, optimizers and counts.
        reason: why updates are the trainer's own; empty while they are compiled.
    """

    takes_arrays = True

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.hyper = trainer, trainer.hyper
        self.reason = ""
        try:
            self._watched = Watched(*self.networks())
            self.build()
        except NotPlain as error:
            self.reason = str(error)

    @abstractmethod
    def networks(self) -> Sequence[nn.Module]:
        """Returns the networks that the trainer trains."""

    @abstractmethod
    def build(self) -> None:
        """Makes the networks' compiled forms (`Chain`) on their tensors. Raises NotPlain: a part has none."""

    @abstractmethod
    def compiled(self, batch: Batch) -> Update:
        """Makes an update on a batch of arrays; `batch.numbers` has the schedules' values."""

    def update(self, batch: Any) -> Update:
        """Makes an update on a batch of arrays or of tensors; see `Trainer.update`."""
        if not self.reason and not self._watched.holds():
            self.reason = "parts that were changed"
        if self.reason:
            return self.trainer.update(as_tensors(batch))  # type: ignore[no-any-return]
        return self.compiled(as_arrays(batch))

    def state_dict(self) -> dict[str, Any]:
        return self.trainer.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trainer.load_state_dict(state)


class Descent:
    """Steps of a ClippedAdam, with its targets' moves, on its tensors and theirs.

    Attributes:
        raw: the core's `mc_descent`.
    """

    def __init__(self, optimizer: Any, most: float, targets: Sequence[torch.Tensor] = ()) -> None:
        tensors, self._group = optimizer.tensors, optimizer.param_groups[0]
        states = [optimizer.state[tensor] for tensor in tensors]
        columns: dict[str, Sequence[torch.Tensor]] = {
            "weight": tensors,
            "gradient": [tensor.grad for tensor in tensors],
            "mean": [state["exp_avg"] for state in states],
            "square": [state["exp_avg_sq"] for state in states],
            "target": targets,
        }
        rows = ffi.new("struct mc_tensor[]", [{"size": tensor.numel()} for tensor in tensors])
        number = optimizer._step.numpy()
        self._kept = [rows, number]
        for name, column in columns.items():
            arrays = [tensor.detach().numpy() for tensor in column]
            for row, array in zip(rows, arrays, strict=bool(arrays)):
                setattr(row, name, pointer(array))
            self._kept += arrays
        numbers = {"count": len(rows), "epsilon": self._group["eps"], "most": most}
        numbers |= dict(zip(("beta1", "beta2"), self._group["betas"], strict=True))
        self.raw = ffi.new("struct mc_descent *", {"tensors": rows, "number": pointer(number), **numbers})

    def prepare(self, share: float) -> None:
        """Sets the learning rate and the share of the way that targets move, for the next step."""
        self.raw.rate, self.raw.share = self._group["lr"], share

    def step(self, share: float = 0.0) -> float:
        """Makes one step, and moves the targets by this share; returns the gradient's norm before clipping."""
        self.prepare(share)
        return float(lib.mc_descend(self.raw))


def as_tensors(batch: Any) -> Any:
    if not isinstance(batch, Batch):
        return batch
    tensors = TorchBatch(batch, "cpu")
    tensors.numbers = batch.numbers  # type: ignore[attr-defined]
    return tensors


def as_arrays(batch: Any) -> Any:
    """Returns a batch of tensors as one of arrays, views of the same memory; a batch of arrays itself."""
    if isinstance(batch, Batch):
        return batch
    fields = {name: each(_array, value) for name, value in vars(batch).items() if name != "numbers"}
    arrays = Batch(fields, ())
    arrays.numbers = batch.numbers  # type: ignore[attr-defined]
    return arrays


def _array(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value
