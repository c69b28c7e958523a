"""Mapped files, each owned by one object, which the arrays of its bytes keep alive."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SharedMemoryFull
from .native import ffi, lib


class Mapping:
    """The first bytes of a file, mapped until this object and every array of its bytes are gone.

    As with `File`, the object exists before the mapping, and the C core maps and unmaps.
    """

    def __init__(self, fd: int, path: Path, nbytes: int, writable: bool) -> None:
        """Raises SharedMemoryFull: no address space is left."""
        self._raw = ffi.gc(ffi.new("struct mc_mapping *"), lib.mc_mapping_close)
        code = lib.mc_mapping_open(self._raw, fd, nbytes, writable)
        if code == -errno.ENOMEM:
            raise SharedMemoryFull(
                f"{path}: {nbytes} bytes of address space asked for, fewer are free; raise `ulimit -v`"
            )
        if code:
            raise OSError(-code, os.strerror(-code), str(path))
        self._writable = writable

    @property
    def __array_interface__(self) -> dict[str, Any]:
        address = int(ffi.cast("uintptr_t", self._raw.address))
        return {"version": 3, "typestr": "|u1", "shape": (self._raw.nbytes,), "data": (address, not self._writable)}

    def bytes(self) -> NDArray[np.uint8]:
        """The mapped bytes, uint8 [nbytes]; read-only where the mapping is."""
        return np.asarray(self)

    def detach(self, fd: int) -> None:
        """In a forked child, with the file's descriptor: keeps the bytes, but neither locks nor changes the file.

        Arrays stay valid. Where this fails, the child keeps the shared mapping and holds the file's locks: /proc is not
        mounted, no descriptor is free, or the kernel grants no private memory (`vm.overcommit_memory` is 2).
        """
        lib.mc_mapping_detach(self._raw, fd)
