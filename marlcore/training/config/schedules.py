"""Schedules: numbers that follow the run's steps, or a learner's updates.

A learner evaluates them when it publishes, and the values travel with its weights, so that all its actors agree. In a
file or an option a schedule is a number, or text such as "linear(1, 0.05, 50000)" or "exponential(1, 0.02, rate=0.95,
every=100, of=updates)".
"""

from __future__ import annotations

import ast
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from ...checks import came
from ...references import reference_to, resolve

Count = Literal["steps", "updates"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A number that depends on a count.

    Attributes:
        of: the count: "steps" of the whole run, or "updates" of the policy's learner.
    """

    of: Count = "steps"
    kinds: ClassVar[dict[str, type[Schedule]]] = {}

    def __init_subclass__(cls) -> None:
        Schedule.kinds[cls.__name__.lower()] = cls

    def __post_init__(self) -> None:
        if self.of not in ("steps", "updates"):
            raise ValueError(f"{self._kind} of: expected steps or updates, got {self.of!r}")

    def at(self, count: int) -> float:
        """The number at a count of at least 0."""
        raise NotImplementedError

    @property
    def _kind(self) -> str:
        return type(self).__name__.lower()

    def _check(self, numbers: Mapping[str, Any], low: float = -math.inf, above: bool = False) -> None:
        """Raises ValueError: a number is not finite, below `low`, or with `above` equal to it."""
        for name, value in numbers.items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value < low or (above and value == low):
                bound = "" if low == -math.inf else f" {'above' if above else 'of at least'} {low:g}"
                raise ValueError(f"{self._kind} {name}: expected a number{bound}, got {value!r}")

    def __str__(self) -> str:
        shown = [_shown(getattr(self, one.name)) for one in fields(self) if one.name != "of"]
        return f"{self._kind}({', '.join([*shown, *([f'of={self.of}'] if self.of != 'steps' else [])])})"

    @staticmethod
    def from_value(label: str, value: Any) -> Schedule:
        """The schedule that a number, a text, a function of the step count, or a schedule stands for.

        Raises: ValueError, TypeError: it is none of these; the message begins with `label`.
        """
        if isinstance(value, Schedule):
            return value
        if isinstance(value, str):
            return _parsed(label, value)
        if callable(value):
            return Custom(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{label}: expected a number, a schedule or a function of the step count, got {value!r}")
        return Constant(float(value))


if TYPE_CHECKING:
    Scheduled: TypeAlias = Schedule | float | str | Callable[[int], float]  # what a setting turns into a Schedule
else:
    Scheduled = Schedule  # what the command line reads


@dataclass(frozen=True)
class Constant(Schedule):
    """The same number at any count."""

    value: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check({"value": self.value})

    def at(self, count: int) -> float:
        return self.value


@dataclass(frozen=True)
class Linear(Schedule):
    """From `start` at 0 to `end` at the count `over`, and `end` from then on."""

    start: float
    end: float
    over: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check({"start": self.start, "end": self.end})
        self._check({"over": self.over}, 1)

    def at(self, count: int) -> float:
        if count >= self.over:
            return self.end
        return self.start + (self.end - self.start) * count / self.over


@dataclass(frozen=True)
class Exponential(Schedule):
    """start * rate^(count / every), towards 0 and not beyond `end`."""

    start: float
    end: float
    rate: float
    every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check({"start": self.start, "end": self.end})
        self._check({"rate": self.rate}, 0, above=True)
        self._check({"every": self.every}, 1)

    def at(self, count: int) -> float:
        value: float = self.start * self.rate ** (count / self.every)
        return max(value, self.end) if self.start >= self.end else min(value, self.end)


@dataclass(frozen=True)
class Piecewise(Schedule):
    """Straight lines between points (count, value) of ascending counts; constant before and after them."""

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            points = tuple((int(count), float(value)) for count, value in self.points)
        except (TypeError, ValueError):
            raise ValueError(f"piecewise points: expected pairs of a count and a value, got {self.points!r}") from None
        counts = [count for count, _ in points]
        if not points or counts != sorted(set(counts)):
            raise ValueError(f"piecewise points: expected ascending counts, got {self.points!r}")
        self._check({f"points[{i}]": value for i, (_, value) in enumerate(points)})
        object.__setattr__(self, "points", points)

    def at(self, count: int) -> float:
        before = [point for point in self.points if point[0] <= count]
        after = [point for point in self.points if point[0] > count]
        if not before or not after:
            return (before[-1] if before else after[0])[1]
        (from_, low), (to, high) = before[-1], after[0]
        return low + (high - low) * (count - from_) / (to - from_)


@dataclass(frozen=True)
class Stages(Schedule):
    """The number of the stage, from 0: how many of the counts `begins` have been reached."""

    begins: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            begins = tuple(int(count) for count in self.begins)
        except (TypeError, ValueError):
            raise ValueError(f"stages: expected counts, got {self.begins!r}") from None
        if list(begins) != sorted(set(begins)) or any(count < 1 for count in begins):
            raise ValueError(f"stages: expected ascending counts of at least 1, got {self.begins!r}")
        object.__setattr__(self, "begins", begins)

    def at(self, count: int) -> float:
        return float(bisect_right(self.begins, count))


@dataclass(frozen=True)
class Custom(Schedule):
    """A function of the count, picklable by cloudpickle; in text custom(module:function)."""

    function: Callable[[int], float]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at(0)

    def at(self, count: int) -> float:
        value = self.function(count)
        self._check({f"{reference_to(self.function) or self.function!r} at {count}": value})
        return float(value)


def is_custom(value: Any) -> bool:
    """Whether a value for `Schedule.from_value` is text that names a function, which would be imported."""
    return isinstance(value, str) and value.partition("(")[0].strip().lower() == Custom.__name__.lower()


def _shown(value: Any) -> str:
    return (reference_to(value) or repr(value)) if callable(value) else repr(value)


def _parsed(label: str, text: str) -> Schedule:
    """The schedule of a text, a number or kind(arguments)."""
    expected = "a number or one of " + ", ".join(f"{name}(...)" for name in Schedule.kinds)
    try:
        return Constant(float(text))
    except ValueError:
        pass
    name, bracket, inside = text.strip().partition("(")
    kind = Schedule.kinds.get(name.strip().lower())
    if kind is None or not bracket or not inside.endswith(")"):
        raise ValueError(f"{label}: expected {expected}, got {came(text)}")
    if kind is Custom:
        return Custom(resolve(label, inside[:-1].strip()))
    try:
        call = ast.parse(f"f({inside}", mode="eval").body
        assert isinstance(call, ast.Call)
        given = [ast.literal_eval(one) for one in call.args]
        named = {one.arg: _word(one.value) for one in call.keywords if one.arg}
        return kind(*given, **named)
    except (SyntaxError, TypeError, AssertionError, RecursionError, MemoryError) as error:
        raise ValueError(f"{label}: expected {expected}, got {came(text)} ({error})") from None
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None


def _word(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
