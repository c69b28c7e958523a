"""The rooms of the package may import only as the tables here say; every import statement is read, for types too."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import marlcore

PACKAGE = Path(marlcore.__file__).parent

# A room may import from the rooms named here, from those below them, and from the files at the top; a room's names
# come from its `__init__`, not from the files in it. Algorithms and environments are leaves.
BELOW = {
    "kernels": [], "memory": [], "spaces": [], "tables": [],
    "transitions": ["memory", "kernels"], "weights": ["memory"], "processes": ["memory"],
    "replay": ["transitions"], "queue": ["transitions"], "interfaces": ["replay", "spaces"],
    "compiled": ["interfaces", "kernels"],
    "cluster": ["replay", "queue", "weights", "processes"], "planning": ["processes", "kernels"],
    "algos": ["compiled"], "envs": ["interfaces"], "config": ["algos", "tables", "processes"],
    "loops": ["config", "envs", "weights"], "record": ["config", "envs", "weights"],
    "self_play": ["loops", "record"], "evaluation": ["loops", "record"],
    "run": ["self_play", "evaluation", "queue", "cluster"], "meta": ["run"], "compat": ["meta", "planning"],
    "cli": ["meta", "planning"], "testing": ["cli"],
}  # fmt: skip
TOP = {"cgroup", "checks", "closing", "declared", "errors", "lazy", "notices", "observations", "references", "spec"}
TOP |= {"accelerator", "arrays", "devices", "field_docs", "fixed", "npz", "pytrees", "regular_files"}
TOP |= {"shm", "unpickling"}
ABOVE_ALL = {"__init__", "__main__", "preload", "preload_torch"}
OPEN_ROOMS = {"kernels", "algos", "envs"}  # whose modules are what they offer

# The parts of a run, in the same way; `nodes` is the upper floor of `cluster`.
RUN = {
    "spec": [], "memory": [], "presets": [], "warmup": [], "launch": ["spec", "warmup"],
    "roles": ["spec", "memory"], "serial": ["roles"], "async_run": ["roles"],
    "nodes": ["async_run"], "machines": ["nodes"],
    "resumption": ["launch", "machines"], "session": ["serial", "resumption"], "run": ["session"], "doors": ["run"],
}  # fmt: skip


def below(room: str, rooms: Mapping[str, list[str]]) -> set[str]:
    return {lower for direct in rooms[room] for lower in {direct, *below(direct, rooms)}}


def imports_of(path: Path) -> Iterator[tuple[str, ...]]:
    """The parts of each name of this package that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            home = path.relative_to(PACKAGE).parts[:-1]
            base = home[: len(home) - node.level + 1]
            module = (*base, *(node.module.split(".") if node.module else ()))
            yield from ([module] if node.module else [(*base, alias.name) for alias in node.names])


def ruled(parts: tuple[str, ...]) -> tuple[str, ...]:
    """The parts of a name as the rules know it: the upper floor of `cluster`, a run's nodes, is a part of `run`."""
    return ("run", *parts[1:]) if parts[:2] == ("cluster", "nodes") else parts


def parts_of(path: Path) -> tuple[str, ...]:
    return ruled(path.relative_to(PACKAGE).with_suffix("").parts)


def room_of(path: Path, depth: int = 0) -> str:
    return parts_of(path)[depth]


@functools.cache
def imports() -> list[tuple[Path, tuple[str, ...]]]:
    """Each file of the package, with each name that it imports."""
    return [(path, ruled(target)) for path in sorted(PACKAGE.rglob("*.py")) for target in imports_of(path)]


def test_a_file_imports_only_what_its_room_may() -> None:
    for path, (target, *inside) in imports():
        room = room_of(path)
        if target == "_core":
            assert (room, path.stem) == ("memory", "native"), f"{path}: only memory/native.py imports the compiled core"
        elif room not in ABOVE_ALL and target not in TOP | {room, "__version__"}:
            assert room in BELOW and target in below(room, BELOW), f"{path}: {room} may not import {target}"
            assert not inside or target in OPEN_ROOMS, f"{path}: expected names of {target}, got its {inside[0]}"


def test_a_file_of_a_run_imports_only_what_its_part_may() -> None:
    for path, target in imports():
        room = room_of(path, 1) if room_of(path) == "run" else "__init__"
        if target[0] == "run" and len(target) > 1 and target[1] != room and room != "__init__":
            assert target[1] in below(room, RUN), f"{path}: {room} may not import {target[1]}"
            assert len(target) == 2, f"{path}: expected names of {target[1]}, got its {target[2]}"


def test_no_algorithm_imports_the_file_of_another() -> None:
    """Shared code stands in bases/ and networks/, which import no algorithm either."""
    of_algos = [(path, target) for path, target in imports() if room_of(path) == target[0] == "algos"]
    algorithms = {target[1] for path, target in of_algos if path.parts[-2:] == ("algos", "by_name.py")}
    for path, target in of_algos:
        if path.parts[-2:] != ("algos", "by_name.py") and "compiled" not in path.parts:
            assert target[1] not in algorithms, f"{path}: imports the file of {target[1]}"


def test_programs_of_several_runs_make_them_by_the_doors() -> None:
    """They use the same functions as a user's program, and know no parts of a run."""
    nodes = [node for path in (PACKAGE / "meta").glob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    of_run = [node for node in nodes if isinstance(node, ast.ImportFrom) and (node.level, node.module) == (2, "run")]
    doors = {"train", "start", "children_of", "policies_of", "assigned"} | {"Algorithms", "Shared", "Run", "Result"}
    assert {alias.name for node in of_run for alias in node.names} == doors


def test_every_room_has_its_rule() -> None:
    assert {room_of(path) for path in PACKAGE.rglob("*.py")} == {*BELOW, *TOP, *ABOVE_ALL}
    of_run = {room_of(path, 1) for path in PACKAGE.rglob("*.py") if room_of(path) == "run"}
    assert of_run == {*RUN, "__init__"}


def test_no_files_import_each_other_in_a_circle() -> None:
    graph: dict[tuple[str, ...], set[tuple[str, ...]]] = {parts_of(path): set() for path in PACKAGE.rglob("*.py")}
    for path, target in imports():
        graph[parts_of(path)] |= {target} & graph.keys()
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(".".join(parts) for parts in error.args[1]))
