"""Classes whose objects refuse assignments that would do nothing: to a name that they lack, or to a constant."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from .checks import brief, did_you_mean

K = TypeVar("K", bound=type[Any])
_MADE = "_made"


def fixed(*changing: str) -> Callable[[K], K]:
    """Makes objects of a class, though not of its subclasses, refuse assignments once `__init__` has returned.

    Still assignable are properties with a setter, private names, and the names `changing`.
    """

    def decorate(kind: Any) -> Any:
        make = kind.__init__

        @wraps(make)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            self.__dict__[_MADE] = True

        def assign(self: Any, name: str, value: Any) -> None:
            if name[0] != "_" and _MADE in self.__dict__ and type(self) is kind:
                _check(self, name, value, changing)
            object.__setattr__(self, name, value)

        kind.__init__, kind.__setattr__ = init, assign
        return kind

    return decorate


def _check(thing: Any, name: str, value: Any, changing: tuple[str, ...]) -> None:
    label = f"{type(thing).__name__}.{name}"
    if name in changing or hasattr(type(thing), name):
        return
    if name in thing.__dict__:
        raise AttributeError(f"{label}: expected no assignment, since it is a constant, got {brief(value)}")
    raise unknown(thing, name, [known for known in dir(thing) if not known.startswith("_")])


def unknown(thing: Any, name: str, known: Iterable[str]) -> AttributeError:
    label = f"{type(thing).__name__}.{name}"
    return AttributeError(f"{label}: expected the name of an attribute, got another{did_you_mean(name, known)}")
