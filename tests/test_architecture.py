"""Imports go downward only: the layers of the package, held by reading its import statements."""

import ast
from pathlib import Path

import pytest

import marlcore

PACKAGE = Path(marlcore.__file__).parent

LAYERS = [
    {"errors", "limiter", "spec", "options", "cgroup", "notices", "signals", "tables"},
    {"config", "guard", "protocols", "references", "values"},
    {"_native", "files", "header"},
    {"shm"},
    {"lane", "shared", "waiting"},
    {"control", "gates", "kernels", "record", "save"},
    {"batch", "telemetry", "writer", "flat", "cursor"},
    {"drawing", "transitions"},
    {"priorities", "uniform"},
    {"sampler", "rundir", "reader"},
    {"prefetch", "replay", "trajectories", "params", "curves", "progress"},
    {"actor", "learner", "mixture", "monitor"},
    {"envs", "algos", "compat"},
    {"describe", "warmup", "workers"},
    {"forkserver"},
    {"processes"},
    {"supervisor", "workergroup"},
    {"system"},
    {"gc", "features", "top"},
    {"benchmark", "cli", "doctor", "testing"},
    {"__main__", "__init__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
THIRD_PARTY = {
    "gymnasium": {"envs/gymnasium.py", "envs/pettingzoo.py", "compat/stable_baselines3.py"},
    "pettingzoo": {"envs/pettingzoo.py"},
    "stable_baselines3": {"compat/stable_baselines3.py"},
    "tensordict": {"compat/torchrl.py"},
    "torch": {
        "params",
        "flat",
        "algos",
        "actor",
        "learner",
        "workers",
        "system",
        "batch",
        "benchmark",
        "compat",
        "prefetch",
        "forkserver",
        "testing",
        "workergroup",
    },
    "torchrl": {"compat/torchrl.py"},
    "_core": {"_native", "files"},
}


def imports_of(path: Path) -> list[tuple[int, str]]:
    """(dots, dotted name) of every import statement that runs, type checking apart."""
    found = []
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            skipped |= {id(inner) for inner in ast.walk(node)}
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found += [(node.level, name) for name in names]
    return found


def home(path: Path) -> str:
    """The layer entry that a file belongs to: its subpackage, or its own name."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_from_lower_layers(path: Path) -> None:
    own = home(path)
    depth = len(path.relative_to(PACKAGE).parts)
    for dots, name in imports_of(path):
        if dots == 0 or dots < depth:
            continue  # another package, or a sibling inside the same subpackage
        target = name.split(".")[0]
        if target in ("_core", "__version__") or own == "__init__":
            continue
        assert LEVEL[target] < LEVEL[own], f"{own} imports {target}, which is not below it"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_foreign_package_is_imported_where_it_belongs(path: Path) -> None:
    relative = str(path.relative_to(PACKAGE))
    for dots, name in imports_of(path):
        homes = THIRD_PARTY.get(name.split(".")[0]) if dots == 0 or name == "_core" else None
        assert homes is None or relative in homes or home(path) in homes, f"{relative} imports {name}"


def test_every_module_has_a_layer() -> None:
    assert {home(path) for path in PACKAGE.rglob("*.py")} <= LEVEL.keys()
