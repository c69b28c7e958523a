"""Batches on their way to a GPU: pinned memory, and copies on a stream of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..checks import came
from ..lazy import missing
from ..observations import each
from ..transitions import Batch, TorchBatch

if TYPE_CHECKING:
    import torch


class Mover:
    """Copies batches into pinned memory, and from there to a device on its own stream."""

    def __init__(self, device: torch.device | str) -> None:
        try:
            import torch
        except ModuleNotFoundError as error:
            raise missing("Prefetch to a device", error) from None

        self._torch = torch
        try:
            self._device = torch.device(device)
        except (RuntimeError, TypeError):
            raise ValueError(f"device: expected a cpu or a cuda device, got {device!r}") from None
        if self._device.type not in ("cpu", "cuda"):
            raise ValueError(f"device: expected a cpu or a cuda device, got {device!r}")
        try:
            torch.empty(1, pin_memory=True)  # without a device this fails here, not in the thread
        except RuntimeError as error:
            label = "pin_memory" if self._device.type == "cpu" else "device"
            raise RuntimeError(
                f"{label}: expected an accelerator, which pins memory, got none ({came(error)})"
            ) from None
        self._stream: Any = None
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def move(self, batch: Batch) -> TorchBatch:
        """In the thread: returns when the copies are complete, so that the pinned memory can be reused."""
        torch = self._torch
        moved = batch.torch()
        _replace(moved, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor))
        if self._stream is not None:
            with torch.cuda.stream(self._stream):
                pinned = dict(vars(moved))
                _replace(moved, lambda tensor: tensor.to(self._device, non_blocking=True))
                self._stream.record_event().synchronize()
                pinned.clear()  # only now: the device was still reading its memory
        return moved

    def arrive(self, batch: TorchBatch) -> None:
        """In the consumer: marks memory allocated on the thread's stream as used by the consumer's."""
        if self._stream is not None:
            stream = self._torch.cuda.current_stream(self._device)
            _replace(batch, lambda tensor: tensor.record_stream(stream) or tensor)


def _replace(batch: TorchBatch, new: Any) -> None:
    """Replaces each tensor by new(tensor); some fields are None, such as the mask of single transitions."""
    for name, value in vars(batch).items():
        if value is not None:
            setattr(batch, name, each(new, value))
