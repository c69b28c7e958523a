"""Compiles marlcore's kernels."""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import numba
import numpy as np
from llvmlite import ir
from numba.core import caching, cgutils, event, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from ..notices import say
from . import cache

if numba.config.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT: expected 0, since no kernel can run uncompiled, got 1")

FIRST_COMPILATION = "compiling kernels, once for this machine: some seconds (`marlcore warmup` does it beforehand)"

_announced = False

_OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False, "_nrt": False, "no_cfunc_wrapper": True}


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a kernel without Python objects or the GIL and with C's division, and caches it on disk.

    Kernels are not parallel, since Numba's threads do not survive a fork. They do without Numba's runtime, since no
    kernel allocates, and its locked reference counts took half of a draw's time.
    """
    kernel: Callable[..., Any] = numba.njit(**_OPTIONS)(function)
    if cache_directory():
        kernel._cache = _Cache(function)  # type: ignore[attr-defined]
    return kernel


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function a part of each kernel that calls it; Python cannot call it.

    It is for code that runs once a row: a call would pass each array as seven words. A kernel is optimised as a whole.
    To optimise its parts before, each with all of its own, took two thirds of the compilation.
    """
    options = {**_OPTIONS, "forceinline": True, "no_cpython_wrapper": True}
    dispatcher = numba.njit(**options, pipeline_class=_PartCompiler)(function)
    part = SimpleNamespace(dispatcher=dispatcher, _numba_type_=dispatcher._numba_type_)
    return cast(Callable[..., Any], part)  # inside kernels


class _PartCompiler(Compiler):  # type: ignore[misc]
    def define_pipelines(self) -> Any:
        self.state.library = _Part(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        return super().define_pipelines()


class _Part(JITCodeLibrary):  # type: ignore[misc]
    """The code of an inlined function, neither optimised nor translated to machine code: it has no address."""

    codegen = SimpleNamespace(set_env=lambda name, environment: None)

    def finalize(self) -> None:
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


@lru_cache
def cache_directory() -> Path | None:
    """Returns the directory of cached kernels; None if there is no place to write one."""
    _, processor, features = cpu_target.target_context.codegen().magic_tuple()
    compiler = hashlib.sha256(f"{numba.__version__} {features}".encode()).hexdigest()[:8]
    return cache.open_directory(f"{processor}-{compiler}")


class _Place(caching.CompileResultCacheImpl):  # type: ignore[misc]
    """Makes Numba keep kernels in `cache_directory`, not beside their source file."""

    def __init__(self, function: Any) -> None:
        self._py_file, self._lineno = function.__code__.co_filename, function.__code__.co_firstlineno
        self._filename_base = f"{function.__module__}.{function.__qualname__}-{self._lineno}"
        self._locator = self

    def get_cache_path(self) -> str:
        return str(cache_directory())

    def get_source_stamp(self) -> bytes:
        return hashlib.sha256(Path(self._py_file).read_bytes()).digest()

    def ensure_cache_path(self) -> None:
        cache.prepare(Path(self.get_cache_path()))


class _Cache(caching.FunctionCache):  # type: ignore[misc]
    _impl_class = _Place

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        # Numba numbers files: two processes at once would give two signatures one file.
        self._cache_file._data_name = lambda number: f"{self._impl.filename_base}.{uuid4().hex}.nbc"


def announced() -> None:
    """Keeps this process from reporting a compilation, since the caller or its parent reports it."""
    global _announced
    _announced = True


class _Listener(event.Listener):  # type: ignore[misc]
    """Reports, once in a process, that a kernel is compiled instead of loaded."""

    def on_start(self, event: Any) -> None:
        if not _announced and event.data["dispatcher"].py_func.__module__.startswith("marlcore."):
            announced()
            say(FIRST_COMPILATION)

    def on_end(self, event: Any) -> None:
        """Does nothing: other compilations may follow."""


event.register("numba:compile", _Listener())


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.IntType(8).as_pointer())


@intrinsic
def copy_bytes(typingctx: Any, to: Any, source: Any, size: Any) -> Any:
    """copy_bytes(to, source, size) copies like memcpy; a constant size becomes moves. A loop is ten times slower."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        cgutils.raw_memcpy(builder, _pointer(builder, args[0]), _pointer(builder, args[1]), args[2], 1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@intrinsic
def zero_bytes(typingctx: Any, to: Any, size: Any) -> Any:
    """zero_bytes(to, size) sets bytes at an address to zero, like memset."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        cgutils.memset(builder, _pointer(builder, args[0]), args[1], 0)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """prefetch(address) prefetches the address's cache line for a read."""

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
        """items_at(address)[i] is item i of the dtype from an address on; a negative index does not wrap around."""
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
        """array_at(address, length) is the memory there as an array, for a kernel that takes an array."""
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
