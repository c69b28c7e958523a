"""How marlcore's kernels are compiled."""

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, event, types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from ..notices import say

FIRST_COMPILATION = (
    "compiling kernels, once for this machine: about half a minute (`marlcore warmup` does it beforehand)"
)
WARM = "warm"  # a file beside the compiled kernels, once all are cached

_HOME = Path(__file__).parent
_log = logging.getLogger("marlcore")
_directories: dict[Path, Path | None] = {}  # by folder of kernels, once it was looked for
_announced = False
_quiet: list[None] = []  # one for each block of `quietly` that some thread is in

_OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False, "_nrt": False}


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a kernel without Python objects or the GIL and with C's division, and caches it on disk.

    Not parallel: Numba's threads do not survive a fork. Without Numba's runtime: no kernel allocates, and its locked
    reference counts took half of a draw's time.
    """
    return _compiled(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """`jit` for a part of a kernel that runs for each row: a call would pass each array as seven words."""
    return _compiled(function, forceinline=True)


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    cached = cache_directory() is not None and _directory_for(function) is not None
    kernel: Callable[..., Any] = numba.njit(**_OPTIONS, cache=cached, **options)(function)
    return kernel


def cache_directory() -> Path | None:
    """The directory of this room's cached kernels, cleared of those of other sources; None if none is writable."""
    return _directory_for(jit)


def cache_directories() -> list[Path]:
    """`cache_directory`, and those of other rooms' kernels that this process has imported."""
    return [path for path in _directories.values() if path]


def _directory_for(function: Callable[..., Any]) -> Path | None:
    home = Path(function.__code__.co_filename).parent
    if home not in _directories:
        _directories[home] = _open_cache(function, home)
    return _directories[home]


def _open_cache(function: Callable[..., Any], home: Path) -> Path | None:
    try:
        # Numba chooses the directory by the function's file, when the function is declared.
        probe: Any = numba.njit(cache=True)(function)
        path = Path(probe.stats.cache_path)
        _drop_stale(path, home)
        return path
    except (RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is None:  # a signal handler's
            raise
        _log.warning(
            "kernels cannot be kept on disk, so that each process compiles them again, for about half a minute: "
            "set NUMBA_CACHE_DIR to a directory that can be written (%s)",
            " ".join(str(error).split()),
        )
        return None


@contextmanager
def quietly() -> Iterator[None]:
    """Reports no compilation inside, in any thread; the caller reports it."""
    _quiet.append(None)
    try:
        yield
    finally:
        _quiet.pop()


class _Listener(event.Listener):  # type: ignore[misc]
    """Reports, once in a process, that a kernel is compiled instead of loaded."""

    def on_start(self, event: Any) -> None:
        global _announced
        if not (_announced or _quiet) and event.data["dispatcher"].py_func.__module__.startswith("marlcore."):
            _announced = True
            say(FIRST_COMPILATION)

    def on_end(self, event: Any) -> None:
        """Other compilations may follow."""


event.register("numba:compile", _Listener())


def _drop_stale(cache: Path, home: Path) -> None:
    """Empties the cache in `home` if sources have changed: Numba checks only the kernel's own file."""
    folders = dict.fromkeys((_HOME, home))
    sources = b"".join(source.read_bytes() for folder in folders for source in sorted(folder.glob("*.py")))
    digest, marker = hashlib.sha256(sources).hexdigest(), cache / "sources.sha256"
    if marker.exists() and marker.read_text() == digest:
        return
    for stale in (*cache.glob("*.nbi"), cache / WARM):
        stale.unlink(missing_ok=True)
    fd, aside = tempfile.mkstemp(dir=cache, prefix=f"{marker.name}.")  # other users may write the directory
    with os.fdopen(fd, "w") as file:
        file.write(digest)
        os.fchmod(fd, 0o644)
    os.replace(aside, marker)


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.IntType(8).as_pointer())


@intrinsic
def copy_bytes(typingctx: Any, to: Any, source: Any, size: Any) -> Any:
    """copy_bytes(to, source, size): memcpy; a constant size becomes moves. A loop is ten times slower."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        cgutils.raw_memcpy(builder, _pointer(builder, args[0]), _pointer(builder, args[1]), args[2], 1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@intrinsic
def zero_bytes(typingctx: Any, to: Any, size: Any) -> Any:
    """zero_bytes(to, size): memset to zero at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        cgutils.memset(builder, _pointer(builder, args[0]), args[1], 0)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """prefetch(address): prefetches the address's cache line for a read."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, pointer = ir.IntType(32), _pointer(builder, args[0])
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, most_local, data = word(0), word(3), word(1)
        builder.call(function, [pointer, read, most_local, data])
        return context.get_dummy_value()

    return types.void(types.intp), generate


def _items_at(dtype: Any) -> Any:
    @intrinsic
    def items_at(typingctx: Any, address: Any) -> Any:
        """items_at(address)[i]: item i of the dtype from an address on; a negative index does not wrap around."""
        pointer = types.CPointer(dtype)  # type: ignore[attr-defined]

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(pointer))

        return pointer(types.intp), generate

    return items_at


uint8_at, uint32_at, uint64_at = _items_at(types.uint8), _items_at(types.uint32), _items_at(types.uint64)
int64_at, float32_at, float64_at = _items_at(types.int64), _items_at(types.float32), _items_at(types.float64)


def _array_at(dtype: Any) -> Any:
    @intrinsic
    def array_at(typingctx: Any, address: Any, length: Any) -> Any:
        """array_at(address, length): that memory as an array, for a kernel that takes one."""
        kind = types.Array(dtype, 1, "C")

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(kind)(context, builder)
            itemsize = context.get_constant(types.intp, dtype.bitwidth // 8)
            populate_array(array, builder.inttoptr(args[0], array.data.type), [args[1]], [itemsize], itemsize, None)
            return array._getvalue()

        return kind(types.intp, types.intp), generate

    return array_at


int64_array, float64_array = _array_at(types.int64), _array_at(types.float64)


@inlined
def bits_of(number: Any) -> Any:
    return np.float64(number).view(np.int64)


@inlined
def float_of(bits: Any) -> Any:
    return np.int64(bits).view(np.float64)
