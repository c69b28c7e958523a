"""Detects that a module's parameters, buffers or submodules were replaced, without importing torch."""

from collections.abc import Callable
from itertools import chain
from operator import is_
from typing import Any

_END = object()  # follows the last member, so that an added or removed member changes the comparison


def members_kept(module: Any) -> Callable[[], bool]:
    """Returns a function that tells whether a torch module still has the same parameters, buffers and submodules.

    Their memory may have moved.
    """
    containers = [c for m in module.modules() for c in (m._parameters, m._buffers, m._modules)]
    empty = [c for c in containers if not c]
    contents = [*(c.values() for c in containers if c), (_END,)]
    objects = list(chain.from_iterable(contents))
    return lambda: not any(empty) and all(map(is_, chain.from_iterable(contents), objects))
