"""The base of compiled trainers: they update a torch trainer's tensors, and leave to it what they cannot update."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import nn

from ...compiled import Adam
from ...interfaces import Update
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
        """Makes the chains on the networks' present tensors. Raises NotPlain: a part that no chain can stand for."""

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


class OptimizerArrays:
    """Steps of a ClippedAdam, and moves of targets, on its tensors."""

    def __init__(self, optimizer: Any, targets: Sequence[Any] = ()) -> None:
        tensors, state = optimizer.tensors, optimizer.state

        def arrays(of: Sequence[Any]) -> list[Any]:
            return [tensor.detach().numpy() for tensor in of]

        self._number = optimizer._step.numpy()
        self._group = optimizer.param_groups[0]
        means, squares = (arrays([state[tensor][name] for tensor in tensors]) for name in ("exp_avg", "exp_avg_sq"))
        gradients = arrays([tensor.grad for tensor in tensors])
        constants = self._group["eps"], self._group["betas"]
        self._adam = Adam(arrays(tensors), gradients, means, squares, arrays(targets), *constants)
        self.move = self._adam.move

    def describe(self, raw: Any, most: float) -> None:
        """Has the core's `mc_descent` make these steps, on gradients up to the norm `most`."""
        self._adam.describe(raw, self._number)
        raw.most = most

    @property
    def rate(self) -> float:
        return self._group["lr"]  # type: ignore[no-any-return]

    def step(self, most: float) -> float:
        """Makes one step with the optimizer's present learning rate; returns the gradient's norm before clipping."""
        self._number += 1.0
        return self._adam.step(self.rate, float(self._number), most)


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
