"""Writes the pages of the reference from the program itself: the API, settings, errors and commands."""

import dataclasses
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from marlcore.field_docs import field_docs
from marlcore.memory import Shared

ROOT = Path(__file__).parents[1]
ROOMS = {  # a page each: its title, and its modules
    "core": ("The core", ["marlcore"]),
    "training": ("Training", ["marlcore"]),
    "environments": ("Environments", ["marlcore.envs", "marlcore.testing"]),
    "parts": ("Parts of models", ["marlcore.algos.exploration_bonuses", "marlcore.algos.parts_trainer"]),
    "cluster": ("marlcore.cluster", ["marlcore.cluster"]),
    "planning": ("marlcore.planning", ["marlcore.planning"]),
    "compat": (
        "marlcore.compat",
        [f"marlcore.compat.{library}" for library in ("cpprb", "empo", "sorrel", "stable_baselines3", "torchrl")],
    ),
}
PAGES = (*ROOMS, "settings", "commands", "errors", "contributing")  # all that `write` writes
LEADS = {  # what a reader of a page should know first
    "cluster": "A run on many machines needs one setting, {py:class}`marlcore.ClusterConfig`: see "
    "[its fields](settings.md#cluster) and the [guide](../guides/many-machines.md). Below are the parts that such a "
    "run is made of, for programs with loops of their own.",
}
TITLES = {"core": "Core", "training": "Training"}  # of the sections of marlcore's stub
NAMES = {"marlcore.envs": ["make", "adapt", "vectorize", "TwoPlayer"]}  # of modules that export more


def version() -> str:
    return str(import_module("marlcore").__version__)


def is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


def sections(module: str) -> dict[str, list[str]]:
    """The names of a module: those of its stub, by the comment above them, or those that it defines by ""."""
    stub = ROOT.joinpath(*module.split("."), "__init__.pyi")
    if not stub.exists():
        return {"": NAMES.get(module) or defined(module)}
    found: dict[str, list[str]] = {"": []}
    title = ""
    for line in stub.read_text().splitlines():
        if line.startswith("# ") and not line.startswith("# isort"):
            title = line[2:].partition(",")[0]
        elif name := re.match(r"from \.\S* import \w+ as (\w+)$", line):
            found.setdefault(title, []).append(name[1])
    return {title: names for title, names in found.items() if names}


def defined(module: str) -> list[str]:
    things = vars(import_module(module)).items()
    own = {name: thing for name, thing in things if getattr(thing, "__module__", "").startswith(module)}
    return [name for name, thing in own.items() if not name.startswith("_") and not is_error(thing)]


def public_classes() -> dict[str, type]:
    """The classes of all pages, by their public paths."""
    modules = {module for _, modules in ROOMS.values() for module in modules}
    paths = {f"{m}.{name}": (m, name) for m in sorted(modules) for names in sections(m).values() for name in names}
    things = {path: getattr(import_module(module), name) for path, (module, name) in paths.items()}
    return {path: thing for path, thing in things.items() if isinstance(thing, type)}


def entry(module: str, name: str, thing: object) -> list[str]:
    """The directive of a name; an algorithm's leaves its parameters and methods to its page."""
    algorithm = name.lower() in import_module("marlcore.algos").ALGORITHMS
    kind = "autoclass" if inspect.isclass(thing) else "autofunction"
    lines = ["```{eval-rst}", f".. {kind}:: {module}.{name}"]
    if kind == "autoclass" and not algorithm:
        lines.append("   :members:")
        if isinstance(thing, type) and issubclass(thing, Shared):
            lines.append("   :inherited-members:")  # such as `attach` and `close`
    lines += ["```", ""]
    return [*lines, f"Parameters and an example: [{name}](../algorithms/{name.lower()}.md)", ""] if algorithm else lines


def api_page(name: str, title: str, modules: list[str]) -> str:
    lines = [f"# {title}", "", *([LEADS[name], ""] if name in LEADS else [])]
    for module in modules:
        home, chosen = import_module(module), sections(module)
        if name in TITLES:
            chosen = {"": chosen[TITLES[name]] + chosen.get(f"Further names of the {name}", [])}
        if len(modules) > 1:
            lines += [f"## {module}", "", *linked((inspect.getdoc(home) or "").partition("\n\n")[0]).splitlines(), ""]
        lines += [f"`import {module}{' as mc' if module == 'marlcore' else ''}`", ""]
        for heading, names in chosen.items():
            things = {label: getattr(home, label) for label in names}
            things = {label: t for label, t in things.items() if not inspect.ismodule(t) and not is_error(t)}
            lines += [f"## {heading}", ""] if len(chosen) > 1 and heading else []
            if len(things) > 2:
                lines += ["| name | what it is |", "|---|---|"]
                for label, thing in things.items():
                    said = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
                    lines.append(f"| {{py:obj}}`~{module}.{label}` | {cell(said)} |")
                lines.append("")
            for label, thing in things.items():
                lines += entry(module, label, thing)
    return "\n".join(lines)


def linked(text: str) -> str:
    """Docstrings name pages by their files; the site shows links with the pages' titles."""
    return re.sub(r"(?<![(`])docs/([\w/-]+\.md)", r"[](/\1)", text)


def cell(text: str) -> str:
    return linked(text).replace("|", "\\|").replace("<", "&lt;")


def settings_rows(kind: type, prefix: str = "") -> list[str]:
    rows, texts = [], field_docs(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if dataclasses.is_dataclass(field.default_factory):
            continue
        rows.append(f"| `{prefix}{field.name}` | {default_of(field)} | {cell(texts.get(field.name, ''))} |")
    return rows


def settings_page() -> str:
    config = import_module("marlcore").Config
    head = ["| setting | default | what it is |", "|---|---|---|"]
    lines = [
        "# Settings", "",
        "Each setting is a field of `mc.Config` or of one of its sections, an option of `marlcore train` with dashes",
        "instead of underscores, and a line of a settings file.", "",
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
    lines = ["# The command line", "", "`marlcore COMMAND --help` shows the same.", ""]
    for name, (usage, _) in import_module("marlcore.__main__").COMMANDS.items():
        module = import_module(f"marlcore.cli.{name}")
        lines += [f"## marlcore {name}", "", "```text", f"marlcore {name} {usage}".rstrip(), "```", ""]
        for label, kind in vars(module).items():
            if label.endswith("Options") and kind.__module__ == module.__name__:
                lines += ["### `marlcore train --resume RUN`", ""] if label == "ResumeOptions" else []
                lines += [markdown(inspect.getdoc(kind) or ""), "", *option_rows(kind), ""]
        if name == "train":
            lines += [
                "Every [setting](settings.md) is an option too, such as `--actor.envs 16`, and so is every parameter of"
            ]
            lines += ["the [algorithm](../algorithms/index.md), such as `--algorithm.learning-rate 1e-3`.", ""]
    return "\n".join(lines)


def markdown(text: str) -> str:
    """A help text for a page: options and files are code, and no < begins a tag."""
    text = re.sub(r"(?<![\w`-])(--[a-z][\w.-]*)(?![^`\n]*`)", r"`\1`", text)
    return linked(text).replace("<", "&lt;")


def option_rows(kind: type) -> list[str]:
    rows, texts = [], field_docs(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        words = "RUN" if field.name == "run_dir" else f"--{field.name.replace('_', '-')}"
        rows.append(f"| `{words}` | {default_of(field)} | {cell(markdown(texts[field.name]))} |")
    return ["| option | default | what it is |", "|---|---|---|", *rows] if rows else []


def default_of(field: dataclasses.Field[Any]) -> str:
    value: Any = field.default
    if value is dataclasses.MISSING:
        value = field.default_factory() if callable(field.default_factory) else value
    if value is dataclasses.MISSING:
        return "required"
    return "none" if value is None or value in ("", (), {}) else f"`{cell(str(value))}`"


def errors_page() -> str:
    marlcore, errors = import_module("marlcore"), import_module("marlcore.errors")
    lines = ["# Errors", "", *linked(inspect.getdoc(errors) or "").splitlines(), ""]
    for name, kind in vars(errors).items():
        if is_error(kind) and issubclass(kind, errors.MarlcoreError):
            home = "marlcore" if name in dir(marlcore) else "marlcore.errors"
            lines += ["```{eval-rst}", f".. autoexception:: {home}.{name}", "   :show-inheritance:", "```", ""]
    return "\n".join(lines)


def contributing_page() -> str:
    """CONTRIBUTING.md, whose links begin at the root, from where the site has its page."""
    text = (ROOT / "CONTRIBUTING.md").read_text().replace("[tests/README.md](tests/README.md)", "tests/README.md")
    text = linked(re.sub(r"\[docs/[\w/-]+\.md\]", "[]", text))
    return re.sub(r"\]\((?!https?:|#|\.\.|/)(docs/)?", lambda link: "](../" if link[1] else "](../../", text)


def parameters_table(algorithm: type) -> str:
    head = ["| parameter | default | what it is |", "|---|---|---|"]
    return "\n".join([*head, *settings_rows(algorithm), ""])


def write(folder: Path) -> None:
    """Writes every page whose text has changed, and removes those of an earlier program."""
    pages = {"settings": settings_page(), "commands": commands_page(), "errors": errors_page()}
    pages["contributing"] = contributing_page()
    pages |= {name: api_page(name, title, modules) for name, (title, modules) in ROOMS.items()}
    folder.mkdir(exist_ok=True)
    for earlier in set(folder.rglob("*.md")) - {folder / f"{name}.md" for name in pages}:
        earlier.unlink()
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
