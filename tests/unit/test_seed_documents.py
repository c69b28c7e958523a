"""docs/seeds.md names tests, files, settings and defaults that exist."""

import ast
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import marlcore as mc

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TEXT = (DOCS / "seeds.md").read_text()
FILES = dict(re.findall(r"^\[(\w+)\]: (\S+)$", TEXT, re.MULTILINE))  # by the label of a link


@cache
def long_or_not(path: Path) -> dict[str, bool]:
    """Whether each test of a file is long, by name."""
    body = ast.parse(path.read_text()).body
    marked = [ast.unparse(node) for node in body if isinstance(node, ast.Assign)]
    whole = any(line.startswith("pytestmark") and "mark.long" in line for line in marked)
    marks = {"pytest.mark.long", "LONG"}
    tests = [node for node in body if isinstance(node, ast.FunctionDef)]
    tables = re.findall(r"^(test_\w+) = refusals\(", path.read_text(), re.MULTILINE)
    named = {test.name: whole or not marks.isdisjoint(map(ast.unparse, test.decorator_list)) for test in tests}
    return {**named, **dict.fromkeys(tables, whole)}


def test_every_test_is_in_its_file_and_marked_where_it_is_long() -> None:
    named = re.findall(r"\[`(test_\w+)`\]\[(\w+)\]( \(long\))?", TEXT)
    assert len(named) > 250 and TEXT.count("`test_") == len(named)
    assert [name for name, label, long in named if long_or_not(DOCS / FILES[label])[name] != bool(long)] == []


def test_files_and_public_names_exist() -> None:
    named = re.findall(r"`((?:bench|examples|marlcore|tests)/[\w/.]+)`", TEXT)
    linked = re.findall(r"\]\((\w[\w-]*\.md)", TEXT)
    assert all(path.exists() for path in (*map(ROOT.joinpath, named), *map(DOCS.joinpath, linked)))
    assert all(hasattr(mc, name) for name in re.findall(r"`mc\.(\w+)", TEXT))


def test_settings_have_the_defaults_that_are_named() -> None:
    sections = {**vars(mc.Config()), "algorithm": SimpleNamespace(**{**vars(mc.PPO()), **vars(mc.DQN())})}
    named = re.findall(r"`(\w+)\.(\w+)\b[^`]*`(?: \(([\d.,]+)(?: s)?\))?", TEXT)
    for section, name, value in named:
        if section in sections:
            default = getattr(sections[section], name)
            assert not value or default == float(value.replace(",", "")), f"{section}.{name}"


def test_what_no_test_holds_says_why() -> None:
    rows = [row for row in TEXT.splitlines() if row.startswith("|") and row.endswith("| |")]
    assert [row for row in rows if "**Missing**" not in row and "absent" not in row] == []
