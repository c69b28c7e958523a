"""The rooms of the package, and who may import whom: held by reading every import statement."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import marlcore

PACKAGE = Path(marlcore.__file__).parent

# A room may import from the rooms named here, from those below them, and from the files at the top; a room's names
# come from its `__init__`, not from the files in it. Algorithms and environments are leaves.
BELOW = {
    "kernels": [],
    "memory": ["kernels"],
    "transitions": ["memory"],
    "weights": ["memory"],
    "processes": ["memory"],
    "replay": ["transitions"],
    "queue": ["transitions"],
    "planning": ["memory", "processes"],
    "algos": ["kernels"],
    "envs": [],
    "training": ["replay", "queue", "weights", "processes", "algos", "envs"],
    "cli": ["training", "planning"],
    "testing": ["cli"],
    "compat": ["training", "planning"],
}
CORE = {"kernels", "memory", "transitions", "weights", "processes", "replay", "queue", "planning"}
OF_TRAINING = {"interfaces", "spaces"}  # which no core room may import
TOP = {"errors", "spec", "checks", "references", "notices", "cgroup", "lazy", *OF_TRAINING}
ABOVE_ALL = {"__init__", "__main__", "preload"}
OPEN_ROOMS = {"kernels", "algos", "envs"}  # whose modules are what they offer


def rooms_below(room: str) -> set[str]:
    return {lower for one in BELOW[room] for lower in {one, *rooms_below(one)}}


def imports_of(path: Path) -> Iterator[tuple[str, ...]]:
    """The parts of each name of this package that a file imports, beside those under `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text())
    unseen = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and id(node) not in unseen:
            home = path.relative_to(PACKAGE).parts[:-1]
            base = home[: len(home) - node.level + 1]
            module = (*base, *(node.module.split(".") if node.module else ()))
            yield from ([module] if module else [(alias.name,) for alias in node.names])


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_room_may(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room in ABOVE_ALL:
        return
    for target, *inside in imports_of(path):
        if target == "_core":
            assert (room, path.stem) == ("memory", "native"), f"{path}: only memory/native.py imports the compiled core"
        elif room in {*CORE, *TOP} - OF_TRAINING and target in OF_TRAINING:
            pytest.fail(f"{path}: {room} is of the core, {target} of training")
        elif target not in TOP | {room, "__version__"}:
            assert room in BELOW and target in rooms_below(room), f"{path}: {room} may not import {target}"
            assert not inside or target in OPEN_ROOMS, f"{path}: expected names of {target}, got its {inside[0]}"


def test_every_room_has_its_rule() -> None:
    found = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    assert found == {*BELOW, *TOP, *ABOVE_ALL}
