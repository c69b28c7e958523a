"""Schedules: numbers that follow the run's steps, or a learner's updates.

A learner evaluates its schedules when it publishes weights, and publishes the values with them, so that all actors of
the policy use the same values. In a file or an option a schedule is a number, or text such as "linear(1, 0.05, 50000)"
or "exponential(1, 0.02, rate=0.95, every=100, of=updates)".
"""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from inspect import BoundArguments, signature
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np

from ..checks import brief, is_number
from ..declared import Number, Whole, check_declared
from ..references import reference_to, resolve

PUBLISHED = ("updates", "step", "opponents", "odds")  # names of further published numbers
FINITE, WHOLE = Number(), Whole(0)
Finite = Annotated[float, FINITE]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A number that depends on a count: the "steps" of the whole run, or the "updates" of the policy's learner."""

    of: Literal["steps", "updates"] = "steps"
    kinds: ClassVar[dict[str, type[Schedule]]] = {}
    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.lower()
        Schedule.kinds[cls.kind] = cls

    def __post_init__(self) -> None:
        check_declared(self, self.kind)

    def at(self, count: int) -> float:
        """Returns the schedule's value at `count` >= 0."""
        raise NotImplementedError

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest value; a `Custom` schedule may exceed them."""
        ends = self.at(0), self.at(10**9)
        return min(ends), max(ends)

    def __str__(self) -> str:
        values = [getattr(self, field.name) for field in fields(self) if field.name != "of"]
        shown = [(callable(value) and reference_to(value)) or repr(value) for value in values]
        return f"{self.kind}({', '.join([*shown, *([f'of={self.of}'] if self.of != 'steps' else [])])})"

    @staticmethod
    def from_value(label: str, value: Any) -> Schedule:
        """Makes a schedule from a number, text, a function of the count or a schedule. Raises ValueError, TypeError."""
        if isinstance(value, Schedule):
            return value
        if isinstance(value, str):
            return _parsed(label, value)
        if callable(value):
            return Custom(value)
        if not is_number(value):
            raise TypeError(f"{label}: expected a number, a schedule or a function of the steps, got {brief(value)}")
        return Constant(float(FINITE(label, value)))


if TYPE_CHECKING:
    Scheduled: TypeAlias = Schedule | float | str | Callable[[int], float]  # values that become a Schedule
else:
    Scheduled = Schedule  # the type that the help shows


def check_free(label: str, names: Collection[str], *others: str) -> None:
    """Raises ValueError if a name is one of `others`, or the name of a number that learners always publish."""
    if clash := {"stage", *PUBLISHED, *others}.intersection(names):
        raise ValueError(f"{label}: {min(clash)!r} is the name of a number that marlcore publishes itself")


def _points(label: str, points: Any) -> tuple[tuple[int, float], ...]:
    try:
        pairs = tuple((WHOLE(label, count), float(value)) for count, value in points)
    except (TypeError, ValueError):
        raise ValueError(f"{label}: expected pairs of a count and a value, got {brief(points)}") from None
    counts = [count for count, _ in pairs]
    if not pairs or counts != sorted(set(counts)):
        raise ValueError(f"{label}: expected ascending counts, got {brief(points)}")
    for i, (_, value) in enumerate(pairs):
        FINITE(f"{label}[{i}]", value)
    return pairs


def ascending(label: str, begins: Any) -> tuple[int, ...]:
    """Returns counts as a tuple. Raises ValueError unless they are ascending integers of at least 1."""
    try:
        counts = tuple(WHOLE(label, count) for count in ([None] if isinstance(begins, bytes) else begins))
    except (TypeError, ValueError):
        raise ValueError(f"{label}: expected counts, got {brief(begins)}") from None
    if list(counts) != sorted(set(counts)) or any(count < 1 for count in counts):
        raise ValueError(f"{label}: expected ascending counts of at least 1, got {brief(begins)}")
    return counts


@dataclass(frozen=True)
class Constant(Schedule):
    """The same value at any count."""

    value: Finite

    def at(self, count: int) -> float:
        return self.value


@dataclass(frozen=True)
class Linear(Schedule):
    """Changes linearly from `start` at count 0 to `end` at count `over`, then stays constant."""

    start: Finite
    end: Finite
    over: Annotated[float, Number(1)]

    def at(self, count: int) -> float:
        if count >= self.over:
            return self.end
        return self.start + (self.end - self.start) * count / self.over


@dataclass(frozen=True)
class Exponential(Schedule):
    """start * rate^(count / every), until it has reached `end`; then stays constant."""

    start: Finite
    end: Finite
    rate: Annotated[float, Number(above=0)]
    every: Annotated[float, Number(1)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.rate - 1) * self.start * (self.end - self.start) < 0:
            raise ValueError(f"exponential rate: expected one that does not lead away from end, got {self.rate}")

    def at(self, count: int) -> float:
        try:
            value: float = self.start * self.rate ** (count / self.every)
        except OverflowError:
            return self.end
        return max(value, self.end) if self.start >= self.end else min(value, self.end)


@dataclass(frozen=True)
class Piecewise(Schedule):
    """Interpolates linearly between points (count, value) with ascending counts; constant before and after them."""

    points: Annotated[tuple[tuple[int, float], ...], _points]

    def at(self, count: int) -> float:
        counts, values = zip(*self.points, strict=True)
        return float(np.interp(count, counts, values))

    @property
    def bounds(self) -> tuple[float, float]:
        values = [value for _, value in self.points]
        return min(values), max(values)


@dataclass(frozen=True)
class Stages(Schedule):
    """The number of the present stage, which is the number of reached counts in `begins`."""

    begins: Annotated[tuple[int, ...], ascending]

    def at(self, count: int) -> float:
        return float(bisect_right(self.begins, count))


@dataclass(frozen=True)
class Custom(Schedule):
    """A function of the count that cloudpickle can pickle; in text: custom(module:function)."""

    function: Callable[[int], float]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at(0)

    def at(self, count: int) -> float:
        value = self.function(count)
        label = f"custom {reference_to(self.function) or self.function!r} at {count}"
        return float(FINITE(label, value))


def is_custom(value: Any) -> bool:
    """Whether a value for `Schedule.from_value` is text that names a function to import."""
    return isinstance(value, str) and value.partition("(")[0].strip().lower() == Custom.kind


def _parsed(label: str, text: str) -> Schedule:
    try:
        return Constant(float(text))
    except ValueError:
        pass
    name, _, inside = text.strip().partition("(")
    kind = Schedule.kinds.get(name.strip().lower())
    if kind is None or (kind is Custom and not inside.endswith(")")):
        kinds = ", ".join(f"{name}(...)" for name in Schedule.kinds)
        raise ValueError(f"{label}: expected a number or one of {kinds}, got {brief(text)}")
    if kind is Custom:
        bound = signature(kind).bind(resolve(label, inside[:-1].strip()))
    else:
        bound = _arguments(label, kind, text, inside)
    try:
        return kind(*bound.args, **bound.kwargs)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{label}: {error}") from None


def _arguments(label: str, kind: type[Schedule], text: str, inside: str) -> BoundArguments:
    form = signature(kind)
    try:
        call = ast.parse(f"f({inside}", mode="eval").body
        assert isinstance(call, ast.Call)
        named = {keyword.arg: _word(keyword.value) for keyword in call.keywords if keyword.arg}
        return form.bind(*map(ast.literal_eval, call.args), **named)
    except (SyntaxError, ValueError, TypeError, AssertionError, RecursionError, MemoryError):
        shown = ", ".join(str(one.replace(annotation=one.empty)) for one in form.parameters.values())
        raise ValueError(f"{label}: expected {kind.kind}({shown}), got {brief(text)}") from None


def _word(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
