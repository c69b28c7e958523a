"""A command's options: the fields of a dataclass; their docstrings are the help."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher, get_close_matches
from typing import Any, TypeVar, get_type_hints

import tyro

from ..training import Schedule

__all__ = ["parse"]

T = TypeVar("T")

ALGORITHM = "--algorithm."


def parse(
    kind: type[T],
    arguments: list[str],
    command: str,
    refuse: Callable[[str], str] = "unknown option {}".format,
    default: T | None = None,
) -> T:
    """The options of `marlcore <command>`, as the dataclass `kind`.

    Args:
        refuse: makes the message for an unknown option; the nearest known option is appended.
        default: the options that are not given; by default those of the class.

    Raises: ValueError: an option is unknown or out of range, in one line. SystemExit: --help was shown.
    """
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), _schedules_as_text():
            found, unknown = tyro.cli(
                kind, args=arguments, prog=f"marlcore {command}", return_unknown_args=True, default=default
            )
    except SystemExit as end:
        if not end.code:
            raise
        raise ValueError(_first_message(errors.getvalue())) from None
    if unknown:
        raise ValueError(f"{_unknown(unknown, kind, refuse)} see marlcore {command} --help")
    return found  # type: ignore[return-value]


def _schedules_as_text() -> tyro.constructors.ConstructorRegistry:
    """Makes an option of a schedule one word, such as "linear(1, 0.05, 50000)", and "None" if there may be none."""
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def rule(about: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
        optional = about.type == (Schedule | None)
        if about.type is not Schedule and not optional:
            return None

        def read(words: list[str]) -> Schedule | None:
            return None if optional and words[0] == "None" else Schedule.from_value("schedule", words[0])

        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="{None}|SCHEDULE" if optional else "SCHEDULE",
            instance_from_str=read,
            is_instance=lambda value: isinstance(value, Schedule) or (optional and value is None),
            str_from_instance=lambda value: [str(value)],
        )

    return registry


def _unknown(arguments: list[str], kind: type, refuse: Callable[[str], str]) -> str:
    """A message about the first unknown option of these arguments."""
    option = next((one.partition("=")[0] for one in arguments if one.startswith("-")), None)
    if option is None:
        return f"expected an option, got {arguments[0]!r};"
    known = [f"--{name}" for name in _names(kind)]
    if option.startswith(ALGORITHM):  # another section's option would be no help
        known = [name for name in known if name.startswith(ALGORITHM)]
    nearest = _nearest(option, known)
    return refuse(option) + (f"; did you mean {nearest}?" if nearest else ";")


def _nearest(option: str, known: list[str]) -> str | None:
    """The known option whose last part is most similar to `option`'s; among several, the most similar as a whole."""

    def last(name: str) -> str:
        return name.lstrip("-").rpartition(".")[2].replace("_", "-")

    best = get_close_matches(last(option), [last(name) for name in known], n=1)
    alike = [name for name in known if last(name) in best]
    return max(alike, key=lambda name: SequenceMatcher(None, name, option).ratio(), default=None)


def _names(kind: Any, prefix: str = "") -> Iterator[str]:
    """The option names of a dataclass and its nested dataclasses."""
    hints = get_type_hints(kind, include_extras=True)
    for one in dataclasses.fields(kind):
        part = one.default_factory
        if dataclasses.is_dataclass(part):
            unnamed = any(getattr(mark, "name", None) == "" for mark in getattr(hints[one.name], "__metadata__", ()))
            yield from _names(part, prefix if unnamed else f"{prefix}{one.name.replace('_', '-')}.")
        else:
            yield prefix + one.name.replace("_", "-")


def _first_message(box: str) -> str:
    """The message in the box that the option parser draws around an error, as one line."""
    lines = [line.strip("│ ") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    message = []
    for line in lines:
        if line.startswith("─"):
            break
        message.append(line)
    return " ".join(message)
