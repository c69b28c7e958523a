"""Settings are checked by what their annotations declare."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from refused import Refused, check_refused, refusals

from marlcore.declared import Declared, Number, Whole, changed, check_declared, flattened, hints_of, layer_sizes


def doubled(label: str, value: Any) -> Any:
    return 2 * value


@dataclass(frozen=True)
class Settings:
    steps: Annotated[int, Whole(1)] = 10
    port: Annotated[int, Whole(0, 9)] = 0
    gamma: Annotated[float, Number(0, 1)] = 0.9
    tau: Annotated[float, Number(above=0, high=1)] = 0.5
    share: Annotated[float, Number(0, below=1)] = 0.5
    inner: Annotated[float, Number(above=0, below=1)] = 0.5
    rate: Annotated[float, Number(above=0)] = 1.0
    noise: Annotated[float, Number(0)] = 0.0
    debt: Annotated[float, Number(high=0)] = 0.0
    loss: Annotated[float, Number(below=0)] = -1.0
    seconds: Annotated[float, Number(1, finite=False)] = 60.0
    goal: Annotated[float | None, Number()] = None
    inside: Annotated[int, Whole(1)] | None = None
    sizes: Annotated[tuple[int, ...], layer_sizes] = (64, 64)
    mode: Literal["off", "frozen", "running"] = "off"
    pad: Literal["repeat", "zero"] | None = "zero"
    only: Literal["one"] = "one"
    custom: Annotated[int, "a word", doubled] = 1
    both: Literal["auto"] | int = 3
    free: object = field(default_factory=list)

    def __post_init__(self) -> None:
        check_declared(self)


@dataclass(frozen=True)
class Derived(Settings):
    rate: Annotated[float, Number(5)] = 7.0
    own: Annotated[int, Whole(3)] = 4

    def __post_init__(self) -> None:
        check_declared(self, "Derived")


REFUSED: dict[str, Refused] = {
    f"{name}={value!r}": (lambda name=name, value=value: Settings(**{name: value}), f"{name}: {says}")
    for name, value, says in [
        ("steps", 0, "expected an integer of at least 1, got 0"),
        ("steps", True, "expected an integer of at least 1, got True"),
        ("steps", 2.5, "expected an integer of at least 1, got 2.5"),
        ("steps", None, "expected an integer of at least 1, got None"),
        ("port", 10, "expected an integer from 0 to 9, got 10"),
        ("gamma", 2, "expected a number from 0 to 1, got 2"),
        ("gamma", math.nan, "expected a number from 0 to 1, got nan"),
        ("gamma", True, "expected a number from 0 to 1, got True"),
        ("tau", 0, "expected a number in (0, 1], got 0"),
        ("tau", 2, "expected a number in (0, 1], got 2"),
        ("share", 1, "expected a number in [0, 1), got 1"),
        ("inner", 0.0, "expected a number in (0, 1), got 0.0"),
        ("inner", 1.0, "expected a number in (0, 1), got 1.0"),
        ("rate", "fast", "expected a finite number above 0, got 'fast'"),
        ("rate", 0, "expected a finite number above 0, got 0"),
        ("rate", math.inf, "expected a finite number above 0, got inf"),
        ("noise", -1, "expected a finite number of at least 0, got -1"),
        ("debt", 1, "expected a finite number of at most 0, got 1"),
        ("loss", 0, "expected a finite number below 0, got 0"),
        ("seconds", 0.5, "expected a number of at least 1, got 0.5"),
        ("seconds", math.nan, "expected a number of at least 1, got nan"),
        ("goal", math.inf, "expected a finite number, got inf"),
        ("inside", 0, "expected an integer of at least 1, got 0"),
        ("sizes", (), "expected a tuple of at least one size, got ()"),
        ("sizes", 64, "expected a tuple of at least one size, got 64"),
        ("sizes", (64, 0), "expected an integer of at least 1, got 0"),
        ("mode", "on", "expected off, frozen or running, got 'on'"),
        ("pad", "x", "expected repeat or zero, got 'x'"),
        ("only", None, "expected one, got None"),
        ("pad", "a\nb", r"expected repeat or zero, got 'a\nb'"),
    ]
}
test_a_wrong_value_is_named_in_one_line = refusals(REFUSED)


def test_the_ends_and_an_optional_none_are_allowed():
    ends = {"steps": 1, "port": 9, "gamma": 1, "tau": 1, "share": 0, "noise": 0, "seconds": math.inf}
    made = Settings(**ends, goal=None, inside=None, pad=None, both=7)
    assert {name: getattr(made, name) for name in ends} == ends


@pytest.mark.parametrize("three", [np.int64(3), 3.0, np.float32(3), 0.3e1])
def test_whole_numbers_of_other_kinds_become_integers(three):
    made = Settings(steps=three, sizes=(three, 6))
    assert (made.steps, made.sizes) == (3, (3, 6)) and {type(made.steps), *map(type, made.sizes)} == {int}


def test_a_derived_class_adds_and_replaces_rules():
    """The field holds the value that its rule returns."""
    assert Settings(custom=4).custom == 8 and Derived().own == 4
    for name in ("rate", "own", "port"):
        with pytest.raises(ValueError, match=f"^Derived {name}: "):
            Derived(**{name: -1})


@pytest.mark.parametrize("hint", ["Annotated[int, Whole(1)]", "Annotated[Unknown, Whole(1)]"])
def test_annotations_may_be_text_whose_names_are_known(hint):
    text = type("Text", (), {"__module__": __name__, "__annotations__": {"steps": hint}, "steps": 0})
    says = "steps: expected an integer of at least 1, got 0"
    if "Unknown" in hint:
        says = "Text: expected annotations of names that its module defines, got: name 'Unknown' is not defined"
    check_refused(lambda: check_declared(dataclass(text)()), (ValueError, TypeError), says)


@dataclass(frozen=True)
class Inner(Declared):
    rate: Annotated[float, Number(0)] = 1.0
    words: Annotated[tuple[str, ...], lambda label, words: tuple(word.upper() for word in words)] = ()


@dataclass(frozen=True)
class Outer(Declared):
    steps: Annotated[int, Whole(1)] = 1
    inner: Inner = field(default_factory=Inner)
    free: dict[str, int] = field(default_factory=dict)
    made: int = field(default=0, init=False)


def test_settings_are_changed_by_dotted_names():
    assert list(hints_of(Outer)) == ["steps", "inner.rate", "inner.words", "free"]
    plain = {"steps": 3, "inner": {"words": ["a", "b"]}, "free": {"x": 1}}
    values = dict(flattened(plain, Outer))
    assert values == {"steps": 3, "inner.words": ["a", "b"], "free": {"x": 1}}
    assert changed(Outer(inner=Inner(rate=5.0)), values) == Outer(3, Inner(5.0, ("A", "B")), {"x": 1})


SECTIONS: dict[str, Refused] = {
    "range": (lambda: changed(Outer(), {"inner.rate": -1}), "inner.rate: expected a finite number of at"),
    "mapping": (lambda: dict(flattened({"inner": 3}, Outer)), "inner: expected settings by name, got 3"),
    "whole": (lambda: dict(flattened(3, Outer)), "settings: expected settings by name, got 3"),
    "class": (lambda: Outer(inner=3), TypeError, "inner: expected an Inner, got 3"),
}
test_a_section_is_named_with_its_field = refusals(SECTIONS)
