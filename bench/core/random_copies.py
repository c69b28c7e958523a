"""The floor of a random draw, compiled from random_copies.c when it is first measured."""

import functools
import tempfile
from contextlib import redirect_stdout
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from io import StringIO
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from cffi import FFI
from numpy.typing import NDArray

from .work import Work, shared_bytes

SOURCE = Path(__file__).with_suffix(".c")
BATCHES = 4096  # of places: more than the caches nearest to a core hold
NAME = "_random_copies"

Pieces = tuple[tuple[int, int], ...]


@functools.cache
def _compiled(pieces: Pieces) -> Any:
    ffi = FFI()
    ffi.cdef("void random_copies(uint8_t *, const uint8_t *, const int64_t *, uint64_t);")
    listed = ", ".join(f"{{{offset}, {size}}}" for offset, size in pieces)
    ffi.set_source(NAME, f"#define PIECES {listed}\n" + SOURCE.read_text(), extra_compile_args=["-std=c11", "-O3"])
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):  # the compiler's driver prints
        spec = spec_from_file_location(NAME, ffi.compile(tmpdir=folder))
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def random_copies(rows: int, row_nbytes: int, pieces: Pieces, batch: int) -> Work:
    """Each run copies pieces (offset from a row's begin, size) of `batch` random rows of a ring."""
    module = _compiled(pieces)
    pointer = module.ffi.from_buffer
    reach, nbytes = max(map(sum, pieces)), sum(size for _, size in pieces)
    ring = np.frombuffer(shared_bytes(rows * row_nbytes), np.uint8)
    copies: NDArray[Any] = np.zeros((batch, nbytes), np.uint8)
    possible = 1 + (len(ring) - reach) // row_nbytes
    places = np.random.default_rng(0).integers(possible, size=(BATCHES, batch)) * row_nbytes
    turn = cycle([(batch_places, pointer("int64_t[]", batch_places)) for batch_places in places])
    copy = partial(module.lib.random_copies, pointer("uint8_t[]", copies), pointer("uint8_t[]", ring))

    def run() -> NDArray[Any]:
        chosen, at = next(turn)
        copy(at, batch)
        return chosen

    def check(chosen: NDArray[Any]) -> None:
        for i, place in enumerate(chosen):
            expected = [ring[place + offset : place + offset + size] for offset, size in pieces]
            assert (copies[i] == np.concatenate(expected)).all()

    return Work(run, check)
