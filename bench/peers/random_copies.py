"""The floor of a random draw, compiled from random_copies.c when it is first measured."""

from __future__ import annotations

import functools
import subprocess
import sysconfig
import tempfile
from contextlib import redirect_stdout
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from io import StringIO
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from cffi import FFI
from numpy.typing import NDArray

from ..work import Work, shared_bytes

__all__ = ["random_copies"]

SOURCE = Path(__file__).with_suffix(".c")
BATCHES = 4096  # of places: more than the caches nearest to a core hold
NAME = "_random_copies"


@functools.cache
def _compiled() -> Any:
    """The extension module, with `ffi` and `lib`."""
    ffi = FFI()
    ffi.cdef("void random_copies(uint8_t *, const uint8_t *, const int64_t *, uint64_t, uint64_t);")
    ffi.set_source(NAME, SOURCE.read_text())
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / f"{NAME}.c", Path(folder) / f"{NAME}.so"
        with redirect_stdout(StringIO()):  # it says which file it makes
            ffi.emit_c_code(str(source))
        include = "-I" + sysconfig.get_path("include")
        subprocess.run(["cc", "-std=c11", "-O3", "-fPIC", "-shared", include, source, "-o", library], check=True)
        spec = spec_from_file_location(NAME, library, loader=ExtensionFileLoader(NAME, str(library)))
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def random_copies(rows: int, row_nbytes: int, nbytes: int, batch: int) -> Work:
    """Each run copies `batch` times `nbytes` bytes, each from another row of a ring."""
    ffi, lib = _compiled().ffi, _compiled().lib
    ring = np.frombuffer(shared_bytes(rows * row_nbytes), np.uint8)
    copies: NDArray[Any] = np.zeros((batch, nbytes), np.uint8)
    last = (len(ring) - nbytes) // row_nbytes
    places = np.random.default_rng(0).integers(last + 1, size=(BATCHES, batch)) * row_nbytes
    turn = cycle([(one, ffi.from_buffer("int64_t[]", one)) for one in places])
    to, source, copy = ffi.from_buffer("uint8_t[]", copies), ffi.from_buffer("uint8_t[]", ring), lib.random_copies

    def run() -> NDArray[Any]:
        chosen, pointer = next(turn)
        copy(to, source, pointer, batch, nbytes)
        return chosen

    def check(chosen: NDArray[Any]) -> None:
        assert all((copies[i] == ring[at : at + nbytes]).all() for i, at in enumerate(chosen))

    return Work(run, check)
