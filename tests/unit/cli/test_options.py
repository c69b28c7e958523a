"""The words of a command become values of their options' types."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from refused import refusals

from marlcore.cli import CommandLine


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Options:
    place: str = ""
    count: Annotated[int, "a word"] = 0
    rate: float | str = 0.0
    name: str | None = "a"
    flag: bool = False
    maybe: bool | None = None
    stages: bool | tuple[str, ...] = False
    path: Path | None = Path("a")
    mode: Literal["on", 3] = "on"
    colour: Colour = Colour.RED
    sizes: tuple[int, ...] = ()
    pair: tuple[int, str] = (0, "")
    words: list[str] = field(default_factory=list)
    shares: Mapping[str, float] = field(default_factory=dict)
    bare: dict = field(default_factory=dict)


def parsed(line: str) -> Options:
    return CommandLine("try", line.split()).parse(Options, positional="place")


READ: dict[str, dict[str, Any]] = {
    "--count 3 --rate 1e-3 --name None --flag": {"count": 3, "rate": 1e-3, "name": None, "flag": True},
    "here --count=-3 --rate linear(1) --no-flag": {"place": "here", "count": -3, "rate": "linear(1)", "flag": False},
    "--flag here --maybe None --name x=y": {"place": "here", "flag": True, "maybe": None, "name": "x=y"},
    "--name=--x --maybe False here": {"place": "here", "name": "--x", "maybe": False},
    "--path None --count 1e5": {"path": None, "count": 100_000},
    "--mode 3 --colour BLUE --pair 1 x --sizes": {"mode": 3, "colour": Colour.BLUE, "pair": (1, "x"), "sizes": ()},
    "--sizes 1 2 --words a b": {"sizes": (1, 2), "words": ["a", "b"]},
    "--shares a 0.5 b 1": {"shares": {"a": 0.5, "b": 1.0}},
    "--flag=False --maybe=True here": {"flag": False, "maybe": True, "place": "here"},
    "--stages": {"stages": True},
    "--stages early late --no-flag": {"stages": ("early", "late")},
    "--no-stages here": {"stages": False, "place": "here"},
    "--count 1 --count 2 --bare a 1": {"count": 2, "bare": {"a": "1"}},
}
REFUSED = {
    "--count": "count: expected an integer, got none",
    "--count x": "count: expected an integer, got 'x'",
    "--count 1.5": "count: expected an integer, got '1.5'",
    "--count inf": "count: expected an integer, got 'inf'",
    "--mode off": "mode: expected on or 3, got 'off'",
    "--colour GREEN": "colour: expected RED or BLUE, got 'GREEN'",
    "--maybe x": "maybe: expected True or False or None, got 'x'",
    "--maybe": "maybe: expected True or False or None, got none",
    "--sizes 1 x": "sizes: expected words that are each an integer, got ['1', 'x']",
    "--pair 1": "pair: expected words that are each an integer, got '1'",
    "--shares a x": "shares: expected pairs of a name and a number, got ['a', 'x']",
    "--bare a": "bare: expected pairs of a name and a value, got 'a'",
    "--cuont 3": "unknown option --cuont; did you mean --count? see marlcore try --help",
    "--no-count": "unknown option --no-count; did you mean --count? see marlcore try --help",
    "--flag=maybe": "flag: expected True or False, got 'maybe'",
    "-x": "unknown option -x; see marlcore try --help",
    "a b": "expected an option, got 'b'; see marlcore try --help",
}


@pytest.mark.parametrize("line", READ)
def test_words_are_read_by_their_options_types(line):
    assert parsed(line) == Options(**READ[line])


test_words_that_are_none_of_the_type_are_refused = refusals(
    {line: (partial(parsed, line), says) for line, says in REFUSED.items()}
)
