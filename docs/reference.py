"""Writes the pages of the reference from the program itself: the API, settings, errors and commands."""

import ast
import dataclasses
import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ROOMS = {  # a page each: its title, its module, and the stub that lists its names
    "core": ("The core", "marlcore"),
    "training": ("Training", "marlcore"),
    "cluster": ("Many machines", "marlcore.cluster"),
    "planning": ("Planning", "marlcore.planning"),
    "testing": ("Tools for tests", "marlcore.testing"),
}


def version() -> str:
    return str(import_module("marlcore").__version__)


def sections(module: str) -> dict[str, list[str]]:
    """The names that a room's stub lists, by the comment above them; the first ones by ""."""
    folder = ROOT.joinpath(*module.split("."))
    stub = folder / "__init__.pyi"
    found: dict[str, list[str]] = {"": []}
    title = ""
    for line in stub.read_text().splitlines():
        if line.startswith("# ") and not line.startswith("# isort"):
            title = line[2:].partition(",")[0]
        elif name := re.match(r"from \.\S* import \w+ as (\w+)$", line):
            found.setdefault(title, []).append(name[1])
    return {title: names for title, names in found.items() if names}


def api_page(title: str, module: str, chosen: dict[str, list[str]]) -> str:
    lines = [f"# {title}", "", f"`import {module}{' as mc' if module == 'marlcore' else ''}`", ""]
    home = import_module(module)
    for heading, names in chosen.items():
        lines += [f"## {heading}", ""] if len(chosen) > 1 and heading else []
        for name in names:
            thing = getattr(home, name)
            kind = "autofunction" if inspect.isfunction(thing) else "autoclass"
            if inspect.ismodule(thing) or (inspect.isclass(thing) and issubclass(thing, Exception)):
                continue  # it has a page of its own
            lines += ["```{eval-rst}", f".. {kind}:: {module}.{name}"]
            lines += [] if kind == "autofunction" else ["   :members:"]
            lines += ["```", ""]
    return "\n".join(lines)


def documented_fields(kind: type) -> dict[str, str]:
    """Fields of a dataclass and the string below each, its bases' first."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (tree,) = ast.parse(inspect.cleandoc(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for above, below in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(above, ast.AnnAssign) and isinstance(below, ast.Expr):
                found[ast.unparse(above.target)] = " ".join(str(ast.literal_eval(below.value)).split())
    return found


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def settings_rows(kind: type, prefix: str = "") -> list[str]:
    rows, texts = [], documented_fields(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if dataclasses.is_dataclass(field.default_factory):
            continue
        default: Any = field.default
        if default is dataclasses.MISSING:
            default = field.default_factory() if callable(field.default_factory) else "required"
        rows.append(f"| `{prefix}{field.name}` | `{cell(str(default))}` | {cell(texts.get(field.name, ''))} |")
    return rows


def settings_page() -> str:
    config = import_module("marlcore").Config
    head = ["| setting | default | what it is |", "|---|---|---|"]
    lines = [
        "# Settings", "",
        "Each is a field of `mc.Config` or of one of its sections, an option of `marlcore train` with dashes instead",
        "of underscores, and a line of a settings file.", "",
        "## The run", "", *head, *settings_rows(config), "",
    ]  # fmt: skip
    for field in dataclasses.fields(config):
        section = field.default_factory
        if dataclasses.is_dataclass(section):
            said = (inspect.getdoc(section) or "").split("\n\n")[0]
            lines += [f"## {field.name}", "", f"`mc.{section.__name__}`. {' '.join(said.split())}", "", *head]
            lines += [*settings_rows(section, f"{field.name}."), ""]
    return "\n".join(lines)


def commands_page() -> str:
    commands = import_module("marlcore.__main__").COMMANDS
    lines = ["# The command line", ""]
    for name in commands:
        wide = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
        command = [sys.executable, "-m", "marlcore", name, "--help"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, env=wide, cwd=ROOT).stdout
        lines += [f"## marlcore {name}", "", "```text", shown.rstrip(), "```", ""]
    return "\n".join(lines)


def errors_page() -> str:
    marlcore, errors = import_module("marlcore"), import_module("marlcore.errors")
    lines = ["# Errors", "", *(inspect.getdoc(errors) or "").splitlines(), ""]
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.MarlcoreError):
            home = "marlcore" if name in dir(marlcore) else "marlcore.errors"
            lines += ["```{eval-rst}", f".. autoexception:: {home}.{name}", "   :show-inheritance:", "```", ""]
    return "\n".join(lines)


def contributing_page() -> str:
    """CONTRIBUTING.md, whose links begin at the root, from where the site has its page."""
    text = (ROOT / "CONTRIBUTING.md").read_text().replace("[tests/README.md](tests/README.md)", "tests/README.md")
    return re.sub(r"\]\((?!https?:|#|\.\.)(docs/)?", lambda link: "](../" if link[1] else "](../../", text)


def parameters_table(algorithm: type) -> str:
    head = ["| parameter | default | what it is |", "|---|---|---|"]
    return "\n".join([*head, *settings_rows(algorithm), ""])


def write(folder: Path) -> None:
    """Writes every page whose text has changed."""
    algorithms = import_module("marlcore.algos").ALGORITHMS
    pages = {f"parameters/{name}": parameters_table(kind) for name, kind in algorithms.items()}
    pages |= {"settings": settings_page(), "commands": commands_page(), "errors": errors_page()}
    pages["contributing"] = contributing_page()
    for name, (title, module) in ROOMS.items():
        chosen = sections(module)
        if module == "marlcore":
            wanted = ["Core"] if name == "core" else ["Training"]
            chosen = {heading: names for heading, names in chosen.items() if heading in wanted}
        pages[name] = api_page(title, module, chosen)
    (folder / "parameters").mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
