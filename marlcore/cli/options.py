"""A command's options: the fields of a dataclass, whose docstrings are the help.

tyro only draws the help: it reports a wrong option as a box, and not in one line.
"""

import inspect
import shutil
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from enum import Enum
from importlib.util import find_spec
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from ..checks import brief, did_you_mean, printable, short
from ..declared import hints_of, listed

T = TypeVar("T")
Refuse = Callable[[str], str]

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}
_EXPECTED = {int: "an integer", float: "a number"}


class CommandLine:
    """The words of a command, by option: --name WORD ..., --name=WORD, --flag or --no-flag."""

    def __init__(self, command: str, arguments: list[str]) -> None:
        self.words: dict[str, list[str]] = {}  # by name of an option, with underscores
        self.asks_for_help = not {"-h", "--help"}.isdisjoint(arguments)
        self._command = command
        self._see = f"; see marlcore {command} --help"
        self._free: list[str] = []
        self._joined: set[str] = set()  # options of the form --name=WORD
        words = self._free
        for argument in arguments:
            if argument.startswith("--"):
                option, equals, word = argument[2:].partition("=")
                name = option.replace("-", "_")
                self.words[name] = words = [word] if equals else []
                if equals:
                    self._joined.add(name)
                    words = self._free
            else:
                words.append(argument)

    def word(self, name: str) -> str | None:
        """The first word of an option; None without it."""
        return next(iter(self.words.get(name, ())), None)

    def parse(self, kind: type[T], positional: str = "") -> T:
        """The options as a dataclass. Raises: see `read`. SystemExit: --help was shown."""
        if self.asks_for_help:
            self.show_help(kind, single_flags=True)
        values = self.read(hints_of(kind), positional)
        for field in fields(kind):  # type: ignore[arg-type]
            if field.name not in values and field.default is field.default_factory:  # both are missing
                raise ValueError(f"{field.name}: expected a value, got none{self._see}")
        return kind(**values)

    def read(
        self, hints: Mapping[str, Any], positional: str = "", refuse: Refuse = "unknown option {}".format
    ) -> dict[str, Any]:
        """The options' values by name; the first word without an option is `positional`. Raises ValueError."""
        values: dict[str, Any] = {}
        free = [*self._free]
        for name, words in self.words.items():
            section, dot, last = name.rpartition(".")
            positive = f"{section}{dot}{last.removeprefix('no_')}"
            if name in hints:
                members = _members(hints[name])
                alone = members == (bool,) or not words  # a word after a plain flag is no value of it
                is_flag = _may_be_flag(hints[name]) and alone and name not in self._joined
                used = len(words) if any(map(_is_collection, members)) else int(not is_flag)
                values[name] = True if is_flag else _read(name, hints[name], words[:used])
            elif positive in hints and _may_be_flag(hints[positive]):
                values[positive], used = False, 0
            else:
                hint = did_you_mean(_option(name), map(_option, hints)) or ";"
                raise ValueError(f"{refuse(short(_option(name)))}{hint}{self._see[1:]}")
            free += words[used:]
        for word in free:
            if word.startswith("-"):
                raise ValueError(f"{refuse(short(word))}{self._see}")
        if positional and free:
            values[positional] = free.pop(0)
        if free:
            raise ValueError(f"expected an option, got {brief(free[0])}{self._see}")
        return values

    def show_help(self, kind: type, default: Any = None, single_flags: bool = False) -> None:
        """Prints the options of a dataclass and exits; without tyro only their names."""
        try:
            import tyro
        except ModuleNotFoundError:
            options = "".join(f"  {_option(name)}\n" for name in hints_of(kind))
            about = f"usage: marlcore {self._command} [OPTIONS]\n\n{inspect.getdoc(kind)}\n"
            sys.stdout.write(about + (f"\noptions:\n{options}" if options else ""))
            sys.exit(0)
        from ..config import Schedule

        registry = tyro.constructors.ConstructorRegistry()

        @registry.primitive_rule
        def drawn_as_text(about: Any) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
            if get_origin(about.type) is Callable:
                metavar = "MODULE:FUNCTION"
            elif Schedule in _members(about.type):
                metavar = "SCHEDULE" if about.type is Schedule else "{None}|SCHEDULE"
            else:
                return None
            return tyro.constructors.PrimitiveConstructorSpec(
                1, metavar, lambda words: words[0], lambda value: True, lambda value: [str(value)]
            )

        config = (tyro.conf.FlagCreatePairsOff,) if single_flags else ()
        prog = f"marlcore {self._command}"
        tyro.cli(kind, args=["--help"], prog=prog, default=default, registry=registry, config=config)


def _members(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation allows."""
    kind, inside = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return _members(inside[0])
    if kind in (Union, types.UnionType):
        return tuple(member for choice in inside for member in _members(choice))
    return (hint,)


def _may_be_flag(hint: Any) -> bool:
    members = _members(hint)
    return bool in members and types.NoneType not in members


def _is_collection(kind: Any) -> bool:
    return (get_origin(kind) or kind) in (tuple, list, set, frozenset, dict, Mapping)


def _read(label: str, hint: Any, words: list[str]) -> Any:
    """The value that words stand for; as text only if no other type takes them. Raises ValueError: no type does."""
    members = _members(hint)
    for kind in sorted(members, key=_takes_any_text):
        with suppress(ValueError, KeyError):
            return _of_kind(kind, words)
    expected = " or ".join(map(_expected, members))
    got = "none" if not words else brief(words[0] if len(words) == 1 else words)
    raise ValueError(f"{label}: expected {expected}, got {got}")


def _takes_any_text(kind: Any) -> bool:
    return kind not in (int, float) and not _is_collection(kind) and not _choices(kind)


def _of_kind(kind: Any, words: list[str]) -> Any:
    origin, inside = get_origin(kind) or kind, get_args(kind)
    if origin in (dict, Mapping):
        pairs = zip(words[::2], words[1::2], strict=True)
        return {name: _read("", inside[-1] if inside else str, [word]) for name, word in pairs}
    if _is_collection(kind):
        fixed = origin is tuple and Ellipsis not in (inside or [...])
        kinds = inside if fixed else [*inside[:1], str][:1] * len(words)
        return origin(_read("", member, [word]) for member, word in zip(kinds, words, strict=True))
    (word,) = words
    if choices := _choices(kind):
        return choices[word]
    return _whole(word) if kind is int else float(word) if kind is float else word


def _whole(word: str) -> int:
    number = float(word)
    return int(number) if "e" in word.lower() and number.is_integer() else int(word)


def _expected(kind: Any) -> str:
    inside = get_args(kind)
    if choices := _choices(kind):
        return listed(choices)
    if (get_origin(kind) or kind) in (dict, Mapping):
        return f"pairs of a name and {_expected(_members(inside[-1])[0]) if inside else 'a value'}"
    if _is_collection(kind):
        return f"words that are each {_expected(_members(inside[0])[0])}" if inside else "words"
    return _EXPECTED.get(kind, "a value")


def _choices(kind: Any) -> Mapping[str, Any]:
    """By word: the values of a type that has few; empty for other types."""
    if get_origin(kind) is Literal:
        return {str(choice): choice for choice in get_args(kind)}
    if kind in (bool, types.NoneType):
        return {"True": True, "False": False} if kind is bool else {"None": None}
    return kind.__members__ if isinstance(kind, type) and issubclass(kind, Enum) else {}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def print_table(
    columns: Mapping[str, Any], rows: Sequence[Sequence[str]], total: Sequence[str] = (), caption: str | None = None
) -> None:
    """Prints rows below these titles, each with its justification, and the caption.

    Off a terminal, on a very narrow one, or without rich, it writes the rows and the total, if there is one, with tabs.
    """
    rows = [[*map(printable, row)] for row in rows]
    narrow = shutil.get_terminal_size().columns < 10 * len(columns)
    if narrow or not sys.stdout.isatty() or find_spec("rich") is None:
        sys.stdout.writelines("\t".join(row) + "\n" for row in (*rows, total) if row)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(caption=caption)
    for title, justify in columns.items():
        table.add_column(title, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    Console().print(table)
