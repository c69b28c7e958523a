"""The programs on the documentation's pages: the blocks of a page continue one another."""

import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^```python\n(?P<code>.*?)^```", re.M | re.S)


class Program(NamedTuple):
    code: str
    reason: str  # why it can only be compiled here; empty for those that run


def programs_of(page: Path) -> list[Program]:
    return [Program(found["code"], found["reason"] or "") for found in BLOCK.finditer(page.read_text())]


def run_page(page: Path) -> dict[str, Any]:
    """The names that a page's programs leave behind."""
    names: dict[str, Any] = {"__name__": page.stem}
    for number, program in enumerate(programs_of(page)):
        code = compile(program.code, f"{page.name}:{number}", "exec")
        if not program.reason:
            exec(code, names)
    return names
