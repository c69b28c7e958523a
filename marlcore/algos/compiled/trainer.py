"""The base of compiled trainers, which make a torch trainer's updates while the trainer's networks are plain."""

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
    """Makes a torch trainer's updates by chains, on the trainer's tensors, while all its networks are plain.

    Once a network changes, the trainer itself makes all following updates. `state_dict` is the trainer's own.

    Attributes:
        trainer: the torch trainer, which holds the networks, the optimizers and the counts.
        reason: why the torch trainer makes the updates; empty while chains make them.
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
        """Makes chains that use the networks' tensors. Raises NotPlain if no chain can replace a part of a network."""

    @abstractmethod
    def compiled(self, batch: Batch) -> Update:
        """Makes an update on a batch of arrays; `batch.numbers` has the schedules' values."""

    def update(self, batch: Any) -> Update:
        """Makes an update on a batch of arrays or of tensors; see `Trainer.update`."""
        if self.reason or not self._watched.holds():
            self.reason = self.reason or "parts that were changed"
            return self.trainer.update(as_tensors(batch))  # type: ignore[no-any-return]
        return self.compiled(batch if type(batch) is Batch else as_arrays(batch))

    def state_dict(self) -> dict[str, Any]:
        return self.trainer.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trainer.load_state_dict(state)


class Descent:
    """Makes a ClippedAdam's steps in the core and moves the target networks; `raw` is the core's `mc_descent`."""

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
        """Sets, for the next step, the learning rate and the fraction by which targets move towards the weights."""
        self.raw.rate, self.raw.share = self._group["lr"], share

    def step(self, share: float = 0.0) -> float:
        """Makes one step, and moves targets by the fraction `share`; returns the gradient's norm before clipping."""
        self.prepare(share)
        return float(lib.mc_descend(self.raw))


def as_tensors(batch: Any) -> Any:
    if not isinstance(batch, Batch):
        return batch
    tensors = TorchBatch(batch, "cpu")
    tensors.numbers = batch.numbers  # type: ignore[attr-defined]
    return tensors


def as_arrays(batch: Any) -> Any:
    """Converts a batch of tensors to a batch of arrays that share their memory."""
    fields = {name: each(_array, value) for name, value in vars(batch).items() if name != "numbers"}
    arrays = Batch(fields, ())
    arrays.numbers = batch.numbers  # type: ignore[attr-defined]
    return arrays


def _array(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value
