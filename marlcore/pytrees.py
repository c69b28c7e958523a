"""Classes that become pytrees of JAX once a program has imported JAX, which marlcore itself never does."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

K = TypeVar("K", bound=type[Any])
Flatten = Callable[[Any], tuple[Any, Any]]  # to (children, the rest, which can be hashed)
Unflatten = Callable[[Any, Any], Any]  # from (the rest, children)

waiting: list[tuple[type, Flatten, Unflatten]] = []  # until JAX is imported


def pytree(flatten: Flatten, unflatten: Unflatten) -> Callable[[K], K]:
    """Registers a class, at once or by a later call of `register`."""

    def decorate(kind: K) -> K:
        waiting.append((kind, flatten, unflatten))
        register()
        return kind

    return decorate


def static(kind: K) -> K:
    """Registers a class whose objects are constants to JAX: they can be hashed, and hold no arrays."""
    decorate: Callable[[K], K] = pytree(lambda constant: ((), constant), lambda constant, _: constant)
    return decorate(kind)


def register() -> None:
    """Registers the classes that wait for it, if JAX was imported."""
    tree_util = getattr(sys.modules.get("jax"), "tree_util", None)  # lacks it while it is being imported
    while tree_util is not None and waiting:
        tree_util.register_pytree_node(*waiting.pop())
