"""Registers classes as pytrees of JAX once the program has imported JAX; marlcore itself never imports it."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

K = TypeVar("K", bound=type[Any])
Flatten = Callable[[Any], tuple[Any, Any]]  # an object to (children, hashable rest)
Unflatten = Callable[[Any, Any], Any]  # (rest, children) to an object

waiting: list[tuple[type, Flatten, Unflatten]] = []  # until JAX is imported


def pytree(flatten: Flatten, unflatten: Unflatten) -> Callable[[K], K]:
    """Decorates a class: registers it at once or, if JAX was not imported yet, in a later call of `register`."""

    def decorate(kind: K) -> K:
        waiting.append((kind, flatten, unflatten))
        register()
        return kind

    return decorate


def static(kind: K) -> K:
    """Decorates a class whose objects are constants to JAX: they are hashable, and hold no arrays."""
    decorate: Callable[[K], K] = pytree(lambda constant: ((), constant), lambda constant, _: constant)
    return decorate(kind)


def register() -> None:
    """Registers the waiting classes if JAX was imported."""
    tree_util = getattr(sys.modules.get("jax"), "tree_util", None)  # None while JAX is still being imported
    while tree_util is not None and waiting:
        tree_util.register_pytree_node(*waiting.pop())
