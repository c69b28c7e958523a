"""Ranges and choices of settings: declared at the fields of a dataclass, and checked by one function.

    @dataclass(frozen=True)
    class Settings:
        steps: Annotated[int, Whole(1)] = 10
        tau: Annotated[float, Number(above=0, high=1)] = 0.02
        hidden: Annotated[tuple[int, ...], Sizes()] = (64, 64)
        cell: Literal["lstm", "gru"] = "lstm"
        clip: Annotated[float | None, Number(above=0)] = None

        def __post_init__(self) -> None:
            check_declared(self)

A Literal is a choice without further words, and None is allowed where the type allows it. Another rule is a class with
the method `checked` of `Rule`.
"""

from __future__ import annotations

import math
import sys
import types
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np

from .checks import came, check_whole, is_number


class Rule(ABC):
    """What a field's value must be."""

    @abstractmethod
    def checked(self, label: str, value: Any) -> Any:
        """The value as the field holds it. Raises ValueError, which begins with the label: the value is wrong."""


@dataclass(frozen=True)
class Whole(Rule):
    """An integer of Python or NumPy from `low` to `high`; the field holds Python's, since JSON knows no other."""

    low: int
    high: int | None = None

    def checked(self, label: str, value: Any) -> int:
        check_whole(label, value, self.low, self.high)
        return int(value)


@dataclass(frozen=True)
class Number(Rule):
    """A number from `low` to `high`, which are allowed, or between `above` and `below`, which are not.

    It is finite; with finite=False infinity is allowed too. The field holds Python's number for one of NumPy.
    """

    low: float | None = None
    high: float | None = None
    _: KW_ONLY
    above: float | None = None
    below: float | None = None
    finite: bool = True

    def checked(self, label: str, value: Any) -> Any:
        if not is_number(value) or not self._holds(value):
            raise ValueError(f"{label}: expected {self._expected()}, got {came(value)}")
        return value.item() if isinstance(value, np.generic) else value

    def _holds(self, value: float) -> bool:
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and (math.isfinite(value) if self.finite else not math.isnan(value))
        )

    def _expected(self) -> str:
        low = self.low if self.above is None else self.above
        high = self.high if self.below is None else self.below
        if low is not None and high is not None:
            if self.above is None and self.below is None:
                return f"a number from {low:g} to {high:g}"
            left, right = "[" if self.above is None else "(", "]" if self.below is None else ")"
            return f"a number in {left}{low:g}, {high:g}{right}"
        number = "a finite number" if self.finite else "a number"
        if low is not None:
            return f"{number} {'of at least' if self.above is None else 'above'} {low:g}"
        if high is not None:
            return f"{number} {'of at most' if self.below is None else 'below'} {high:g}"
        return number


@dataclass(frozen=True)
class Sizes(Rule):
    """A tuple of at least one integer of at least 1."""

    def checked(self, label: str, value: Any) -> tuple[int, ...]:
        if not isinstance(value, tuple) or not value:
            raise ValueError(f"{label}: expected a tuple of at least one size, got {came(value)}")
        return tuple(Whole(1).checked(label, size) for size in value)


@dataclass(frozen=True)
class _Choice(Rule):
    options: tuple[Any, ...]

    def checked(self, label: str, value: Any) -> Any:
        if value not in self.options:
            *others, last = map(str, self.options)
            expected = f"{', '.join(others)} or {last}" if others else last
            raise ValueError(f"{label}: expected {expected}, got {came(value)}")
        return value


def check_declared(settings: Any, owner: str = "") -> None:
    """Checks each field of a dataclass by the rules of its annotation; integers of NumPy become Python's.

    Args:
        owner: a word before each field's name in messages.

    Raises: ValueError: the message names the first wrong field, what was expected and what came.
    """
    label = f"{owner} {{}}" if owner else "{}"
    kind: Any = type(settings)
    for name, rules, optional in _declared(kind):
        value = getattr(settings, name)
        if value is None and optional:
            continue
        for rule in rules:
            value = rule.checked(label.format(name), value)
        object.__setattr__(settings, name, value)


@cache
def _declared(kind: Any) -> list[tuple[str, list[Rule], bool]]:
    """The fields that have rules, each with these and whether it may be None."""
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        namespace = vars(sys.modules[base.__module__])
        for name, hint in vars(base).get("__annotations__", {}).items():
            hints[name] = _evaluated(hint, namespace)
    declared = [(field.name, *_rules(hints[field.name])) for field in fields(kind)]
    return [(name, rules, optional) for name, rules, optional in declared if rules]


def _evaluated(hint: Any, namespace: dict[str, Any]) -> Any:
    """The annotation that a module with deferred annotations has as text."""
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, namespace)
    except NameError:  # of a name that only type checkers import, or of a function's local: these declare nothing
        return Any


def _rules(hint: Any) -> tuple[list[Rule], bool]:
    """The rules that an annotation declares, and whether it allows None."""
    kind, inside = get_origin(hint), get_args(hint)
    if kind is Annotated:
        rules, optional = _rules(inside[0])
        return [*rules, *(one for one in inside[1:] if isinstance(one, Rule))], optional
    if kind is Literal:
        return [_Choice(inside)], False
    if kind in (Union, types.UnionType):
        members = [one for one in inside if one is not type(None)]
        alone = _rules(members[0])[0] if len(members) == 1 else []
        return alone, len(members) < len(inside)
    return [], False
