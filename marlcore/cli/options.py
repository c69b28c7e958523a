"""A command's options: the fields of a dataclass; their docstrings are the help."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any, TypeVar

import tyro

from ..checks import did_you_mean
from ..training import Schedule, names_of

T = TypeVar("T")


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
    return refuse(option) + (did_you_mean(option, [f"--{name.replace('_', '-')}" for name in names_of(kind)]) or ";")


def _first_message(box: str) -> str:
    """The message in the box that the option parser draws around an error, as one line."""
    lines = [line.strip("│ ") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    message = []
    for line in lines:
        if line.startswith("─"):
            break
        message.append(line)
    return " ".join(message)
