"""The device on which a network acts or learns."""

from __future__ import annotations

import torch


def choose_device(name: str, index: int = 0, spread: bool = False) -> torch.device:
    """The device of that name; for "auto" CUDA, then MPS, then the CPU.

    Args:
        name: "auto", or a name that torch.device accepts.
        index: the agent's index.
        spread: assign the agents to all GPUs in turn, instead of to the first one.

    Raises: ValueError: torch does not know the device, or this machine does not have it.
    """
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
        raise ValueError(f"device: expected one of this machine, got {name!r} ({str(error).splitlines()[0]})") from None
    return device
