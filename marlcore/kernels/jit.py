"""Marks kernels; imports Numba, which takes a third of an actor's start, only when a kernel is used."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ..notices import say
from . import cache

FIRST_COMPILATION = "compiling kernels, once per machine: up to half a minute (`marlcore warmup` does it beforehand)"

_announced = False


class Made:
    """A proxy for an object that compiler.py makes at the object's first use, in Python or in a kernel."""

    def __init__(self, maker: str, source: Any = None) -> None:
        self._maker, self._source, self._made = maker, source, None

    def make(self) -> Any:
        """Returns the object. Two threads that call this first may each make an object, which is harmless."""
        if self._made is None:
            maker = getattr(_compiler(), self._maker)
            self._made = maker if self._source is None else maker(self._source)
        return self._made

    @property
    def _numba_type_(self) -> Any:
        return _compiler().type_of(self.make())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # such as `copy` asks for
            raise AttributeError(name)
        return getattr(self.make(), name)


class Kernel(Made):
    """A proxy for a kernel; its first call puts the kernel itself into the module, so that later calls go direct."""

    def __call__(self, *args: Any) -> Any:
        names = self._source.__globals__
        if names.get(self._source.__name__) is self:
            names[self._source.__name__] = self.make()
        return self.make()(*args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return _kernel_at, (self._source.__module__, self._source.__qualname__)


def _kernel_at(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def _compiler() -> Any:
    return import_module(".compiler", __package__)


if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
    _compiler()  # raises ImportError, at once instead of at the first sample


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function to a kernel, without Python objects or the GIL and with C's division, cached on disk.

    Kernels are not parallel, since Numba's threads do not survive a fork. They do not use Numba's runtime: no
    kernel allocates, and the runtime's atomic reference counts took half of a draw's time.
    """
    return Kernel("kernel_of", function)


def inlined(function: Callable[..., Any]) -> Any:
    """Makes a function a part of each kernel that calls it; Python cannot call it.

    Use this for code that runs for each row: a call would pass each array as seven words. A kernel is optimised only as
    a whole: optimising each part first, with all parts inside it, took two thirds of the compilation time.
    """
    return Made("part_of", function)


@lru_cache
def cache_directory() -> Path | None:
    """Returns the directory of cached kernels; None if there is no place to write one."""
    return cache.open_directory(_compiler().target())


def announced() -> None:
    """Keeps this process from reporting a compilation, since the caller or the parent process reports it."""
    global _announced
    _announced = True


def say_compiling() -> None:
    """Reports, once in a process, that a kernel is compiled, not loaded from disk."""
    if not _announced:
        announced()
        say(FIRST_COMPILATION)


def _items_at(dtype: str) -> Any:
    return Made("items_at", dtype)


# Functions that only kernels can call; compiler.py describes each.
copy_bytes: Any = Made("copy_bytes")
zero_bytes: Any = Made("zero_bytes")
prefetch: Any = Made("prefetch")
uint8_at, uint32_at, uint64_at = _items_at("uint8"), _items_at("uint32"), _items_at("uint64")
int64_at, float32_at, float64_at = _items_at("int64"), _items_at("float32"), _items_at("float64")
int64_array: Any = Made("array_at", "int64")
float64_array: Any = Made("array_at", "float64")


@inlined
def bits_of(number: Any) -> Any:
    return np.float64(number).view(np.int64)


@inlined
def float_of(bits: Any) -> Any:
    return np.int64(bits).view(np.float64)
