"""Settings as dataclasses: ranges and choices declared at the fields, checked by one function, changed by dotted names.

    @dataclass(frozen=True)
    class Settings(Declared):
        steps: Annotated[int, Whole(1)] = 10
        tau: Annotated[float, Number(above=0, high=1)] = 0.02
        hidden: Annotated[tuple[int, ...], layer_sizes] = (64, 64)
        cell: Literal["lstm", "gru"] = "lstm"
        clip: Annotated[float | None, Number(above=0)] = None
        names: Annotated[tuple[str, ...], function] = ()
        section: Section = field(default_factory=Section)

A rule is a function of the field's label and the value. It returns the value to store, or raises a ValueError whose
text begins with the label. A Literal needs no rule, and None is allowed where the type allows it. A field whose
default factory is a dataclass is a section: its value is an object of that class.
"""

import math
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass, replace
from functools import cache, partial
from inspect import signature
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from .checks import brief, check_type, check_whole, did_you_mean, is_number, short
from .field_docs import list_fields_in_doc

T = TypeVar("T")
Rule = Callable[[str, Any], Any]


@dataclass(frozen=True)
class Whole:
    """An integer of Python or NumPy from `low` to `high`, or a whole float, such as 1e5.

    The field holds a Python int, which JSON can store. Without `high`, the limit is `most`, which a message names only
    if the value exceeds it.
    """

    low: int
    high: int | None = None
    most: int = 2**63 - 1  # shared counters hold no more

    def __call__(self, label: str, value: Any) -> int:
        if isinstance(value, (float, np.floating)) and value.is_integer():
            value = int(value)
        check_whole(label, value, self.low, self.high)
        check_whole(label, value, self.low, self.most if self.high is None else self.high)
        return int(value)


UNITS = Whole(1, most=2**16)  # of a layer; a larger layer's weights would not fit into memory


@dataclass(frozen=True)
class Number:
    """A number from `low` to `high` inclusive, or between `above` and `below` exclusive.

    With finite=False, infinity is allowed too. The field holds a Python number, even if a NumPy number was given.
    """

    low: float | None = None
    high: float | None = None
    _: KW_ONLY
    above: float | None = None
    below: float | None = None
    finite: bool = True

    def __call__(self, label: str, value: Any) -> Any:
        if not is_number(value) or not self._holds(value):
            raise ValueError(f"{label}: expected {self._expected()}, got {brief(value)}")
        return value.item() if isinstance(value, np.generic) else value

    def _holds(self, value: float) -> bool:
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and (abs(value) <= sys.float_info.max or (not self.finite and abs(value) == math.inf))  # refuses huge ints
        )

    def _expected(self) -> str:
        low, left, least = (self.low, "[", "of at least") if self.above is None else (self.above, "(", "above")
        high, right, most = (self.high, "]", "of at most") if self.below is None else (self.below, ")", "below")
        if low is not None and high is not None:
            between = f"from {low:g} to {high:g}" if left + right == "[]" else f"in {left}{low:g}, {high:g}{right}"
            return f"a number {between}"
        number = "a finite number" if self.finite else "a number"
        if low is not None:
            return f"{number} {least} {low:g}"
        return number if high is None else f"{number} {most} {high:g}"


@dataclass(frozen=True)
class Scheduled(Number):
    """A number in the range, or a schedule as text, which is checked when a run begins."""

    def __call__(self, label: str, value: Any) -> Any:
        return value if isinstance(value, str) else super().__call__(label, value)


def layer_sizes(label: str, value: Any) -> tuple[int, ...]:
    """Returns the layers' numbers of units. Raises ValueError unless they are a tuple of one or more positive sizes."""
    if not isinstance(value, tuple) or not value:
        raise ValueError(f"{label}: expected a tuple of at least one size, got {brief(value)}")
    return tuple(UNITS(label, size) for size in value)


def _section(kind: type, label: str, value: Any) -> Any:
    check_type(label, value, kind)
    return value


def _text(label: str, value: Any) -> Any:
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError(f"{label}: expected text, got {brief(value)}")
    return value


def choice(options: Sequence[Any], label: str, value: Any) -> Any:
    """Returns the value if it is one of the options; otherwise raises ValueError."""
    if not np.isscalar(value) or value not in options:  # an array would be compared by its elements
        raise ValueError(f"{label}: expected {listed(options)}, got {brief(value)}")
    return value


def listed(options: Iterable[Any]) -> str:
    """Joins the options to a text such as "a, b or c"."""
    *others, last = map(str, options)
    return f"{', '.join(others)} or {last}" if others else last


def check_declared(settings: Any, owner: str = "") -> None:
    """Checks each field of a dataclass by the rules of its annotation, and stores the values that the rules return.

    Raises ValueError: the message names the `owner`, the first wrong field, the expected value and the actual one.
    """
    kind: Any = type(settings)
    for name, rules, optional in _declared(kind):
        value = getattr(settings, name)
        for rule in () if value is None and optional else rules:
            value = rule(f"{owner} {name}".lstrip(), value)
        object.__setattr__(settings, name, value)


class Declared:
    """The base of dataclasses that check their fields when they are made, and whose `__doc__` lists their fields."""

    def __init_subclass__(cls) -> None:
        list_fields_in_doc(cls)

    def __new__(cls: type[T], *_: Any, **values: Any) -> T:
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        if unknown := [name for name in values if name not in names]:
            try:
                signature(cls.__init__).bind_partial(None, **dict.fromkeys(unknown))
            except TypeError as error:
                known = [*names, *hints_of(cls)]
                raise TypeError(f"{cls.__name__}: {short(error)}{did_you_mean(unknown[0], known)}") from None
        return object.__new__(cls)

    def __post_init__(self) -> None:
        check_declared(self)


def hints_of(kind: Any, prefix: str = "") -> dict[str, Any]:
    """Returns, by dotted name, the type of each field of a dataclass and of its sections."""
    hints: dict[str, Any] = {}
    for name, hint in _hints(kind).items():
        section = _sections(kind).get(name)
        hints |= hints_of(section, f"{prefix}{name}.") if section else {prefix + name: hint}
    return hints


def flattened(plain: Any, kind: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields nested settings by dotted name. Raises ValueError if a section is not a mapping or a name has a dot."""
    if not isinstance(plain, Mapping):
        raise ValueError(f"{prefix[:-1] or 'settings'}: expected settings by name, got {brief(plain)}")
    sections = _sections(kind)
    for name, value in plain.items():
        if "." in str(name):
            raise ValueError(f"{prefix}{short(name)}: expected a name without a dot, in its section")
        if name in sections:
            yield from flattened(value, sections[name], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def changed(settings: T, values: Mapping[str, Any], prefix: str = "") -> T:
    """Returns the dataclass with other values, given by dotted name; errors begin with `prefix` and the field.

    Lists become tuples, since JSON and YAML have only lists.
    """
    changes: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    for dotted, value in values.items():
        name, dot, inside = dotted.partition(".")
        if dot:
            sections.setdefault(name, {})[inside] = value
        else:
            changes[name] = tuple(value) if isinstance(value, list) else value
    for name, section in sections.items():
        changes[name] = changed(getattr(settings, name), section, f"{prefix}{name}.")
    try:
        return replace(settings, **changes)  # type: ignore[type-var]
    except (ValueError, TypeError) as error:
        if not prefix:
            raise
        raise type(error)(f"{prefix}{error}") from None


def _sections(kind: Any) -> dict[str, Any]:
    return {field.name: field.default_factory for field in fields(kind) if is_dataclass(field.default_factory)}


@cache
def _declared(kind: Any) -> list[tuple[str, list[Rule], bool]]:
    """Returns, for each field that has rules, its name, the rules, and whether None is allowed."""
    sections: list[Any] = [(name, [partial(_section, part)], False) for name, part in _sections(kind).items()]
    declared = [(name, *_rules(hint)) for name, hint in _hints(kind).items()]
    return sections + [field for field in declared if field[1]]


@cache
def _hints(kind: Any) -> dict[str, Any]:
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError as error:
        expected = "expected annotations of names that its module defines"
        raise TypeError(f"{kind.__name__}: {expected}, got: {error}") from None
    return {field.name: hints[field.name] for field in fields(kind) if field.init}


def _rules(hint: Any) -> tuple[list[Rule], bool]:
    kind, inside = get_origin(hint), get_args(hint)
    if kind is Annotated:
        rules, optional = _rules(inside[0])
        return [*rules, *(mark for mark in inside[1:] if callable(mark))], optional
    if kind is Literal:
        return [partial(choice, inside)], False
    if hint is bool:
        return [partial(choice, (True, False))], False
    if hint is str:
        return [_text], False
    if kind in (Union, types.UnionType):
        members = [member for member in inside if member is not type(None)]
        alone = _rules(members[0])[0] if len(members) == 1 else []
        return alone, len(members) < len(inside)
    return [], False
