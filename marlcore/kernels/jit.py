"""How marlcore's kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["copy_bytes", "jit"]

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compiled without Python objects, without the GIL, cached on disk, and with C's division.

    Not parallel: Numba's threads do not survive a fork.
    """
    compiled: F = numba.njit(cache=True, nogil=True, error_model="numpy", boundscheck=False)(function)
    return compiled


@intrinsic
def copy_bytes(typingctx: Any, to: Any, source: Any, size: Any) -> Any:
    """copy_bytes(to, source, size): memcpy between two addresses; a constant size becomes plain moves.

    A loop over a slice is ten times slower for a frame.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        to_pointer = builder.inttoptr(args[0], pointer)
        source_pointer = builder.inttoptr(args[1], pointer)
        cgutils.raw_memcpy(builder, to_pointer, source_pointer, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate
