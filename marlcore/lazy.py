"""Imports a package's names on first use, and says which extra installs a library that one of them needs."""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # typing's constant without its import, so that the command line handles Ctrl-C early
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# By import name: the extra that installs each library that the core does not need.
EXTRA_OF = dict.fromkeys(("gymnasium", "matplotlib", "rich", "tensorboard", "torch", "tyro", "yaml"), "train")
EXTRA_OF |= dict.fromkeys(("lz4", "ray"), "cluster") | {"fsspec": "remote", "scipy": "games", "pyspiel": "openspiel"}
_NAMES_A_LINE = 6


def attach_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Makes a package's `__getattr__` and `__dir__` (PEP 562), for the names in the stub beside `file`.

    A line `from .room import Name as Name` of the stub says where a name comes from, and `from . import room as room`
    names a room. A comment is the heading of a group of names. If the heading names an extra, as `marlcore[train]`,
    then `dir` and `import *` show the group only where the extra is installed. The package's docstring lists all
    groups.

    `__getattr__` raises ImportError, in one line, if a library of an extra is missing.
    """
    module = sys.modules[package]
    groups = _groups_of(file.rpartition(".")[0] + ".pyi")
    homes = {name: home for group in groups.values() for name, home in group.items()}
    for heading, group in groups.items():
        names = [*group]
        rows = [f"    {', '.join(names[i : i + _NAMES_A_LINE])}" for i in range(0, len(names), _NAMES_A_LINE)]
        module.__doc__ = "\n".join([module.__doc__ or "", heading, *rows, ""])

    def shown() -> list[str]:
        extras = {heading: heading.partition("[")[2].partition("]")[0] for heading in groups}
        return [name for heading, group in groups.items() if is_installed(extras[heading]) for name in group]

    def get(name: str) -> Any:
        if name == "__all__":
            return shown()
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            home = import_module(f".{name}" if homes[name] == "." else homes[name], package)
            value = home if homes[name] == "." else getattr(home, name)
        except ModuleNotFoundError as error:
            raise missing(f"{package}.{name}", error) from None
        setattr(module, name, value)
        return value

    return get, shown


def _groups_of(stub: str) -> dict[str, dict[str, str]]:
    """Returns, by heading, a stub's names and the modules that they come from."""
    groups: dict[str, dict[str, str]] = {}
    heading = "Names"
    with open(stub, encoding="utf-8") as lines:
        for line in lines:
            words = line.split()
            if words[:1] == ["from"]:
                groups.setdefault(heading, {})[words[3]] = words[1]
            elif words[:1] == ["#"] and words[1] != "isort:":
                heading = line[2:].strip()
    return groups


def require(extra: str) -> None:
    """Raises ModuleNotFoundError if a library of the extra cannot be imported; imports nothing."""
    from importlib.util import find_spec

    for library in EXTRA_OF:
        if EXTRA_OF[library] == extra and find_spec(library) is None:
            raise ModuleNotFoundError(f"No module named {library!r}", name=library)


def is_installed(extra: str) -> bool:
    """Whether all libraries of the extra can be imported."""
    try:
        require(extra)
    except ModuleNotFoundError:
        return False
    return True


def missing(what: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Returns a one-line error that names the extra that `what` needs; `error` itself if no extra has the library."""
    library = (error.name or "").partition(".")[0]
    if library not in EXTRA_OF:
        return error
    return ModuleNotFoundError(f'{what} needs {library}: pip install "marlcore[{EXTRA_OF[library]}]"', name=library)
