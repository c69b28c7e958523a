"""Makes objects refuse assignments to constant or misspelt attributes, which would have no effect."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from .checks import did_you_mean

K = TypeVar("K", bound=type[Any])
_MADE = "_made"


def fixed(*changing: str) -> Callable[[K], K]:
    """Decorates a class: its objects refuse assignments after `__init__`, with an AttributeError that says why.

    Private names, properties with a setter and the names `changing` can still be assigned. Subclasses are unaffected.
    """

    def decorate(kind: Any) -> Any:
        make = kind.__init__

        @wraps(make)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            if type(self) is kind:
                self.__dict__[_MADE] = True

        def assign(self: Any, name: str, value: Any) -> None:
            is_fixed = not name.startswith("_") and _MADE in self.__dict__ and type(self) is kind
            if is_fixed and name not in changing and not hasattr(kind, name):
                raise refusal(self, name, dir(self))
            object.__setattr__(self, name, value)

        kind.__init__, kind.__setattr__ = init, assign
        return kind

    return decorate


def refusal(thing: Any, name: str, known: Iterable[str]) -> AttributeError:
    got = "a constant" if name in thing.__dict__ else f"an unknown name{did_you_mean(name, known)}"
    return AttributeError(f"{type(thing).__name__}.{name}: expected an attribute that can be assigned, got {got}")
