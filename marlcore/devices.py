"""Chooses torch's devices by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def choose_device(name: str, index: int = 0, spread: bool = False) -> torch.device:
    """Returns the named device. "auto": CUDA (GPU 0, or `index` modulo the GPU count if `spread`), else MPS, else CPU.

    Raises ValueError if torch does not know the device or this machine does not have it.
    """
    import torch  # here, so that processes that need no torch can import this file

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", index % torch.cuda.device_count() if spread else 0)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type == "cuda":
            if (device.index or 0) >= torch.cuda.device_count():
                raise RuntimeError(f"there are {torch.cuda.device_count()} CUDA devices")
        else:
            torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(
            f"learner.device, actor.device: expected a device that is here, got {name!r} ({why})"
        ) from None
    return device
