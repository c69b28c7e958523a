"""Copies between host memory and an accelerator.

CUDA copies registered (page-locked) memory directly, and other memory through a buffer of its own, which is slower.
The result is the same, so the driver may refuse to register memory.
"""

import contextlib
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

log = logging.getLogger(__name__)
_LEAST_BYTES = 1 << 16  # CUDA copies smaller arrays directly anyway, and they may share pages with other memory
_PORTABLE = 1  # cudaHostRegisterPortable: for all devices

# By address: the finalizer that unregisters the memory, and whether CUDA registered it
_known: dict[int, tuple["weakref.finalize[Any, Any]", bool]] = {}


def kind_of(tensor: torch.Tensor) -> str:
    return tensor.device.type


def register(array: NDArray[Any], device: torch.device) -> bool:
    """Registers an array's memory with CUDA at the first call, until freed; returns whether it is registered."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    address = array.ctypes.data
    if address in _known or array.nbytes < _LEAST_BYTES:
        return address in _known and _known[address][1]
    with torch.cuda.device(device):  # otherwise CUDA opens device 0, too
        code = int(torch.cuda.cudart().cudaHostRegister(address, array.nbytes, _PORTABLE))  # type: ignore[no-untyped-call]
        if code:
            log.info("CUDA refused to register %d bytes (error %d): it copies through a buffer", array.nbytes, code)
            # torch raises the refusal at its next kernel: run one here that may fail.
            with contextlib.suppress(RuntimeError):
                torch.ones(1, device=device)
    owner = array if array.base is None else array.base
    forget = weakref.finalize(owner, _forget, address, device, 0 if code else os.getpid())
    forget.atexit = False  # threads may still copy, and the kernel unpins the memory of a process that ends
    _known[address] = forget, not code
    return not code


def _forget(address: int, device: torch.device, registered_by: int) -> None:
    """Unregisters memory, in the process that registered it, before the memory is freed."""
    _known.pop(address, None)
    if registered_by == os.getpid():
        with torch.cuda.device(device):
            torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def part_of(host: torch.Tensor, copy: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor | None]:
    """Returns a function that maps a tensor in the bytes `host` to the same part of `copy`, other tensors to None."""

    def part(tensor: torch.Tensor) -> torch.Tensor | None:
        offset = tensor.data_ptr() - host.data_ptr()
        if not 0 <= offset < len(host):
            return None
        return copy.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), offset // tensor.itemsize)

    return part


class DeviceRow:
    """A model's row on an accelerator, uint8 [n], and a second row, to which pulls are copied.

    Copies are made in the order of the device's current stream, and are complete when a call returns.
    """

    def __init__(self, row: torch.Tensor, pulled: torch.Tensor) -> None:
        self._row, self._pulled = row, pulled

    def settle(self) -> None:
        """Waits until the device has computed the row."""
        if kind_of(self._row) == "cuda":
            torch.cuda.current_stream(self._row.device).synchronize()

    def put(self, slot: NDArray[np.uint8]) -> None:
        """Copies the row into the first n bytes of a slot in host memory."""
        self._host_tensor(slot).copy_(self._row)

    def get(self, slot: NDArray[np.uint8]) -> None:
        """Copies the first n bytes of a slot into the second row."""
        self._pulled.copy_(self._host_tensor(slot))

    def _host_tensor(self, slot: NDArray[np.uint8]) -> torch.Tensor:
        if kind_of(self._row) == "cuda":
            register(slot, self._row.device)
        return torch.from_numpy(slot[: len(self._row)])
