"""Edits of sources that lie elsewhere: our lines, and the places of theirs that they replace."""

import difflib
import re
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from textwrap import dedent, indent
from types import CodeType
from typing import Any


@dataclass(frozen=True)
class Edit:
    """Our lines for theirs: from the one place that `at` matches to just before the next that `until` matches.

    Both are regular expressions, which match from a line's first word on. Our lines get the indentation of the place.
    Without `until` they replace what `at` matches and the rest of its line; `until=at` inserts before it.
    """

    at: str
    lines: str
    until: str = ""


def embed(source: str, edits: list[Edit]) -> str:
    """The source with all edits. Raises ValueError: an `at` matches another number of places than one."""
    for edit in edits:
        places = [*re.finditer(rf"^([ \t]*){edit.at}.*\n", source, re.MULTILINE)]
        if len(places) != 1:
            raise ValueError(f"{edit.at!r}: expected one place in the source, got {len(places)}")
        begin, end, space = places[0].start(), places[0].end(), places[0][1]
        if edit.until:
            after = begin if edit.until == edit.at else end
            end = after + re.search(rf"^[ \t]*{edit.until}", source[after:], re.MULTILINE).start()
        source = source[:begin] + indent(dedent(edit.lines).lstrip("\n"), space) + source[end:]
    return source


class Edited(SourceFileLoader):
    """The loader and finder of one module, which is imported with these edits."""

    def __init__(self, name: str, path: Path, edits: list[Edit]) -> None:
        super().__init__(name, str(path))
        self.edits = edits

    def find_spec(self, name: str, *_: object) -> Any:
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        return compile(embed(Path(self.path).read_text(), self.edits), self.path, "exec")


def changed(before: str, after: str) -> tuple[int, int]:
    """Lines added and removed, blank ones not counted."""
    lines = [[line for line in text.splitlines() if line.strip()] for text in (before, after)]
    marks = [line[:1] for line in difflib.unified_diff(*lines, n=0)][2:]
    return marks.count("+"), marks.count("-")
