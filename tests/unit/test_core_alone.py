"""The core without the libraries of the extra `train`, which are hidden from a program as if they were missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from pages import programs_of

import marlcore
from marlcore.lazy import EXTRA_OF

ROOT = Path(__file__).parents[2]
PACKAGE = Path(marlcore.__file__).parent
ROOMS = ["cluster", "kernels", "memory", "planning", "processes", "queue", "replay", "transitions", "weights"]
HIDE = f"import sys\nfor library in {[*EXTRA_OF]}: sys.modules[library] = None\n"
NAMES_OF_PACKAGES = {"open_spiel": "pyspiel", "pyyaml": "yaml"}


def alone(code: str, folder: Path) -> str:
    """The output of the program, which must succeed without warnings."""
    command = [sys.executable, "-W", "error", "-c", HIDE + code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


NAMES = """
import inspect, pydoc, marlcore
from marlcore import *
inspect.getmembers(marlcore)
text = pydoc.render_doc(marlcore)
assert text.index("ReplayBuffer") < text.index("LearnerConfig")
assert not hasattr(marlcore, "nothing")
print("ReplayBuffer" in globals(), "train" in globals(), "train" in dir(marlcore), "train" in marlcore.__all__)
"""


def test_every_core_module_and_only_the_cores_names_are_there(tmp_path: Path) -> None:
    files = [path.relative_to(PACKAGE.parent) for room in ROOMS for path in (PACKAGE / room).rglob("*.py")]
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files}
    modules -= {module for module in modules if "cluster.nodes" in module}  # the floor that needs training
    modules |= {"marlcore.testing.rows", "marlcore.compat.cpprb", "marlcore.compat.empo"}
    imports = "".join(f"import {module}\n" for module in sorted(modules - {"marlcore.weights.modules"}))
    outer = "print({name.partition('.')[0] for name in sys.modules} & {'marlcore.interfaces', 'marlcore.spaces'})"
    assert alone(f"{imports}{outer}\n{NAMES}", tmp_path).splitlines() == ["set()", "True False False False"]


def test_the_extra_is_what_lazy_py_says() -> None:
    lines = (ROOT / "pyproject.toml").read_text()
    extras = {extra: re.search(rf"^{extra} = \[(.*?)^]", lines, re.M | re.S)[1] for extra in set(EXTRA_OF.values())}
    pairs = [(Requirement(text).name, extra) for extra in extras for text in re.findall('"(.*)"', extras[extra])]
    assert {NAMES_OF_PACKAGES.get(name, name): extra for name, extra in pairs if name != "marlcore"} == EXTRA_OF


REPLAY = """
import numpy as np, marlcore as mc
replay = mc.ReplayBuffer.create(mc.TransitionSpec(mc.Field((2,)), mc.Field()), 100)
with replay.writer() as writer:
    for _ in range(9): writer.add(np.zeros(2), 0.0, 0.0)
sampler = replay.sampler(4)
"""
GRAPH = """
from marlcore.planning import build_graph
class Model:
    agents = ["agent"]
    class action_space: n = 1
    def reset(self): pass
    def get_state(self): return 0
    def set_state(self, state): pass
    def transition_probabilities(self, state, profile): return None
graph = build_graph(Model(), workers=1, progress=False)
"""
MISSING = [
    ("mc.train", "marlcore.train needs gymnasium"),
    ("from marlcore import start", "marlcore.start needs gymnasium"),
    ("mc.DQN", "marlcore.DQN needs torch"),
    ("mc.TreasureHunt", "marlcore.TreasureHunt needs gymnasium"),
    ("from marlcore.meta import train_seeds", "marlcore.meta.train_seeds needs gymnasium"),
    ("from marlcore.testing import check_env", "marlcore.testing.check_env needs gymnasium"),
    ("sampler.sample().torch()", "batch.torch() needs torch"),
    ("mc.Prefetch(sampler, device='cuda')", "Prefetch to a device needs torch"),
    ("graph.plot()", "graph.plot needs matplotlib"),
]


@pytest.mark.long
def test_a_missing_library_is_one_line(tmp_path: Path) -> None:
    attempts = [f"try:\n    {code}\nexcept ImportError as error:\n    print(error)\n" for code, _ in MISSING]
    printed = alone("".join([REPLAY, GRAPH, *attempts]), tmp_path)
    assert printed.splitlines() == [f'{says}: pip install "marlcore[train]"' for _, says in MISSING]


THREADS = """
import marlcore as mc

def count(context):
    import torch
    context.report("threads", torch.get_num_threads())

if __name__ == "__main__":
    with mc.Workers() as workers:
        workers.start(count)
        workers.wait()
    print(workers.reports()[0].value)
"""


@pytest.mark.long
def test_workers_have_one_thread_with_torch_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['tyro'] = None\n")
    (tmp_path / "program.py").write_text(THREADS)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "2"}
    command = [sys.executable, tmp_path / "program.py"]
    assert subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout == "1.0\n"


COMMANDS = {  # what each prints, its exit code last
    "gc --dry-run": r"total\t.*= 0",
    "gc --help": r"options:\n  --dry-run.*= 0",
    "doctor": r"core\tok\tmarlcore .*= 0",
    "warmup": r"kernels compiled in .*= 0",
    "train": r'^marlcore: marlcore train needs gymnasium: pip install "marlcore\[train]"\n= 2',
}


@pytest.mark.long
def test_only_commands_of_training_need_the_extra(tmp_path: Path) -> None:
    code = f"""
from marlcore.__main__ import main
sys.stderr = sys.stdout
for command in {[*COMMANDS]}:
    print("$", end="")
    try:
        code = main(command.split())
    except SystemExit as end:
        code = end.code
    print("=", code or 0)
"""
    _, *printed = alone(code, tmp_path).split("$")
    for pattern, text in zip(COMMANDS.values(), printed, strict=True):
        assert re.search(pattern, text, re.S), text


@pytest.mark.long
def test_the_readmes_first_examples_run(tmp_path: Path) -> None:
    """The README's replay, and the guide to loops of one's own, need only the core's libraries."""
    first, *_ = programs_of(ROOT / "README.md")
    assert len(first.code.splitlines()) <= 15
    guide = "".join(program.code for program in programs_of(ROOT / "docs" / "guides" / "own-loop.md"))
    # Else the fork server, from which nothing is hidden, would import all that training needs.
    bare = "import functools, marlcore as mc\nmc.Workers = functools.partial(mc.Workers, preload=())\n"
    printed = alone(bare + first.code + guide, tmp_path)
    assert printed.startswith("(32, 2, 4)") and printed.endswith("(16, 32, 4) (16, 32)")
