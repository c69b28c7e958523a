"""A command's options: the fields of a dataclass, whose docstrings are the help.

tyro draws the help, but does not parse the options, since it reports a wrong option in a box instead of one line.
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
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from ..checks import brief, did_you_mean, printable, short
from ..declared import hints_of, listed

T = TypeVar("T")
Refuse = Callable[[str], str]

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}
TEXT = "a value"  # the expected value of types that take any word


class CommandLine:
    """A command's words by option. An option is --name WORD ..., --name=WORD, --flag or --no-flag."""

    def __init__(self, command: str, arguments: list[str]) -> None:
        self.words: dict[str, list[str]] = {}  # by name of an option, with underscores
        self.asks_for_help = any(argument.partition("=")[0] in ("-h", "--help") for argument in arguments)
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
        """Returns the first word of an option; None if the option is missing or has no word."""
        return next(iter(self.words.get(name, ())), None)

    def parse(self, kind: type[T], positional: str = "") -> T:
        """Returns the options as a dataclass. Raises as `read` does; SystemExit after showing the help, if asked."""
        if self.asks_for_help:
            self.show_help(kind, single_flags=True)
        values = self.read(hints_of(kind), positional)
        for field in fields(kind):  # type: ignore[arg-type]
            if field.name not in values and field.default is field.default_factory:  # it has neither
                raise ValueError(f"{field.name}: expected a value, got none{self._see}")
        return kind(**values)

    def read(
        self, hints: Mapping[str, Any], positional: str = "", refuse: Refuse = "unknown option {}".format
    ) -> dict[str, Any]:
        """Returns the options' values by name. Raises ValueError for an unknown option (in `refuse`'s words) or value.

        The option `positional` gets the first word that belongs to no option.
        """
        values: dict[str, Any] = {}
        free = [*self._free]
        for name, words in self.words.items():
            section, dot, last = name.rpartition(".")
            positive = f"{section}{dot}{last.removeprefix('no_')}"
            if name in hints:
                members = _members(hints[name])
                alone = members == (bool,) or not words  # a word after a plain flag is not its value
                is_flag = _may_be_flag(hints[name]) and alone and name not in self._joined
                used = len(words) if any(_form(member).many for member in members) else int(not is_flag)
                values[name] = True if is_flag else _read(name, hints[name], words[:used])
            elif positive in hints and _may_be_flag(hints[positive]):
                values[positive], used = False, 0
            else:
                hint = did_you_mean(option_of(name), map(option_of, hints)) or ";"
                raise ValueError(f"{refuse(short(option_of(name)))}{hint}{self._see[1:]}")
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
        """Prints the options of a dataclass and exits; without tyro, prints only the options' names."""
        try:
            import tyro
        except ModuleNotFoundError:
            options = "".join(f"  {option_of(name)}\n" for name in hints_of(kind))
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
    kind, inside = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return _members(inside[0])
    if kind in (Union, types.UnionType):
        return tuple(member for choice in inside for member in _members(choice))
    return (hint,)


def _may_be_flag(hint: Any) -> bool:
    members = _members(hint)
    return bool in members and types.NoneType not in members


class _Form(NamedTuple):
    """How to read words as a type: what errors call the type, a function, and whether it takes several words."""

    expected: str
    read: Callable[..., Any]
    many: bool = False


def _form(kind: Any) -> _Form:
    origin, inside = get_origin(kind) or kind, get_args(kind)
    if origin in (dict, Mapping):
        value = [str, *inside][-1]

        def pairs(*words: str) -> dict[str, Any]:
            return {name: _read("", value, [word]) for name, word in zip(words[::2], words[1::2], strict=True)}

        return _Form(f"pairs of a name and {_form(_members(value)[0]).expected}", pairs, many=True)
    if origin in (tuple, list, set, frozenset):
        is_fixed = origin is tuple and inside and Ellipsis not in inside

        def collection(*words: str) -> Any:
            hints = inside if is_fixed else [[*inside, str][0]] * len(words)
            return origin(_read("", hint, [word]) for hint, word in zip(hints, words, strict=True))

        expected = f"words that are each {_form(_members(inside[0])[0]).expected}" if inside else "words"
        return _Form(expected, collection, many=True)
    choices: Mapping[str, Any] = {str(choice): choice for choice in inside} if origin is Literal else {}
    if kind in (bool, types.NoneType):
        choices = {"True": True, "False": False} if kind is bool else {"None": None}
    if isinstance(kind, type) and issubclass(kind, Enum):
        choices = kind.__members__
    if choices:
        return _Form(listed(choices), choices.__getitem__)
    if kind in (int, float):
        return _Form("an integer", _whole) if kind is int else _Form("a number", lambda word: float(word))
    return _Form(TEXT, lambda word: word)


def _read(label: str, hint: Any, words: Sequence[str]) -> Any:
    """Reads words as the first allowed type that fits, and as text last. Raises ValueError if no type fits."""
    forms = [*map(_form, _members(hint))]
    for form in sorted(forms, key=lambda form: form.expected == TEXT):
        with suppress(ValueError, KeyError, TypeError):  # TypeError: the type takes another number of words
            return form.read(*words)
    got = "none" if not words else brief(words[0] if len(words) == 1 else words)
    raise ValueError(f"{label}: expected {' or '.join(form.expected for form in forms)}, got {got}")


def _whole(word: str) -> int:
    number = float(word)
    return int(number) if "e" in word.lower() and number.is_integer() else int(word)


def option_of(name: str) -> str:
    """Returns the option, such as --learner.n-step, for a field's dotted name."""
    return f"--{name.replace('_', '-')}"


def print_table(
    columns: Mapping[str, Any], rows: Sequence[Sequence[str]], total: Sequence[str] = (), caption: str | None = None
) -> None:
    """Prints a table of rows with a caption; `columns` maps each column's title to its justification.

    Without a terminal or rich, or on a very narrow terminal, prints only the rows and the total, separated by tabs.
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
