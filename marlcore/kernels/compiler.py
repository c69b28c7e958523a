"""Makes kernels, and the functions that only kernels can call, with Numba; jit.py imports this file on first use."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numba
from llvmlite import ir
from numba.core import caching, cgutils, event, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from . import cache, jit

if numba.config.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT: expected 0, since no kernel can run uncompiled, got 1")

_OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False, "_nrt": False, "no_cfunc_wrapper": True}


def kernel_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function to a kernel; see `jit.jit`."""
    kernel: Callable[..., Any] = numba.njit(**_OPTIONS)(function)
    if jit.cache_directory():
        kernel._cache = _Cache(function)  # type: ignore[attr-defined]
    return kernel


def part_of(function: Callable[..., Any]) -> Any:
    """Makes a function a part of kernels; see `jit.inlined`."""
    options = {**_OPTIONS, "forceinline": True, "no_cpython_wrapper": True}
    return numba.njit(**options, pipeline_class=_PartCompiler)(function)


def type_of(made: Any) -> Any:
    """Returns Numba's type of an object that this file made, for kernels that call the object."""
    context = cpu_target.typing_context
    context.refresh()
    return context.resolve_value_type(made)


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


def target() -> str:
    """Returns a name for this machine's processor and the compiler."""
    _, processor, features = cpu_target.target_context.codegen().magic_tuple()
    compiler = hashlib.sha256(f"{numba.__version__} {features}".encode()).hexdigest()[:8]
    return f"{processor}-{compiler}"


class _Place(caching.CompileResultCacheImpl):  # type: ignore[misc]
    """Makes Numba keep kernels in `cache_directory`, not next to their source file."""

    def __init__(self, function: Any) -> None:
        self._py_file, self._lineno = function.__code__.co_filename, function.__code__.co_firstlineno
        self._filename_base = f"{function.__module__}.{function.__qualname__}-{self._lineno}"
        self._locator = self

    def get_cache_path(self) -> str:
        return str(jit.cache_directory())

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


class _Listener(event.Listener):  # type: ignore[misc]
    """Reports, once in a process, that a kernel is compiled, not loaded from disk."""

    def on_start(self, event: Any) -> None:
        if event.data["dispatcher"].py_func.__module__.startswith("marlcore."):
            jit.say_compiling()

    def on_end(self, event: Any) -> None:
        """Does nothing: other compilations may follow."""


event.register("numba:compile", _Listener())


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.IntType(8).as_pointer())


@intrinsic
def copy_bytes(typingctx: Any, to: Any, source: Any, size: Any) -> Any:
    """copy_bytes(to, source, size) copies like memcpy; a loop would be ten times slower.

    For a constant size, the compiler replaces the call by a few move instructions.
    """

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


def items_at(dtype: str) -> Any:
    kind = getattr(types, dtype)

    @intrinsic
    def items_at(typingctx: Any, address: Any) -> Any:
        """items_at(address)[i] is item i of an array of `dtype` that begins at `address`; i may be negative."""
        pointer = types.CPointer(kind)  # type: ignore[attr-defined]

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(pointer))

        return pointer(types.intp), generate

    return items_at


def array_at(dtype: str) -> Any:
    item = getattr(types, dtype)

    @intrinsic
    def array_at(typingctx: Any, address: Any, length: Any) -> Any:
        """array_at(address, length) is the memory at `address` as an array, for kernels that take arrays."""
        kind = types.Array(item, 1, "C")

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(kind)(context, builder)
            itemsize = context.get_constant(types.intp, item.bitwidth // 8)
            populate_array(array, builder.inttoptr(args[0], array.data.type), [args[1]], [itemsize], itemsize, None)
            return array._getvalue()

        return kind(types.intp, types.intp), generate

    return array_at
