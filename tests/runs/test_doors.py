"""Every way to hand over an environment reaches the workers, and a start that fails leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete
from relay import Relay

import marlcore as mc

TINY = mc.Config(
    total_steps=300,
    actor=mc.ActorConfig(envs=1, sync_interval=5),
    learner=mc.LearnerConfig(batch_size=8, warmup=20, log_interval=10, device="cpu"),
    supervision=mc.SupervisionConfig(backoff=0.01),
)


class Corridor(gymnasium.Env[Any, Any]):
    """Five steps to the end, whatever is done."""

    observation_space = gymnasium.spaces.Box(0, 5, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fails_at: int = 0) -> None:
        self.steps, self.fails_at = 0, fails_at

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == self.fails_at:
            raise RuntimeError("the floor gave way")
        self.at += 1
        return np.full(1, self.at, np.float32), 1.0, self.at == 5, False, {}


def train(env_fn: Any, run_dir: Path, algorithm: Any = "dqn", **changes: Any) -> Any:
    return mc.train(env_fn, algorithm, replace(TINY, run_dir=str(run_dir), **changes), progress=False)


def ways() -> dict[str, Any]:
    length = 0
    return {
        "a name": "gymnasium:CartPole-v1",
        "a lambda": lambda: Corridor(),
        "a closure": lambda: Corridor(length),
        "a partial": partial(Corridor, fails_at=0),
    }


@pytest.mark.usefixtures("undrawn", "shared_fork_server")
@pytest.mark.long
@pytest.mark.parametrize("way", ways())
def test_what_makes_environments_may_be(tmp_path: Path, way: str) -> None:
    assert train(ways()[way], tmp_path / "run").steps == 300


PROGRAM = """
import gymnasium, numpy as np
import marlcore as mc

class Toy(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 5, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        self.at = 0
        return np.zeros(1, np.float32), {}
    def step(self, action):
        self.at += 1
        return np.full(1, self.at, np.float32), 1.0, self.at == 5, False, {}

def make():
    return Toy()

config = mc.Config(total_steps=300, run_dir="run", actor=mc.ActorConfig(envs=1),
                   learner=mc.LearnerConfig(batch_size=8, warmup=20, device="cpu"))
print(mc.train(make, "dqn", config, progress=False).steps)
"""


@pytest.mark.long
@pytest.mark.parametrize("how", ["-c", "stdin"])
def test_a_program_without_a_file_hands_over_its_own_function(tmp_path: Path, how: str) -> None:
    given = [PROGRAM] if how == "-c" else []
    command = [sys.executable, "-c" if given else "-", *given]
    done = subprocess.run(
        command, cwd=tmp_path, input=None if given else PROGRAM, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "300\n", "")


@pytest.mark.long
def test_a_notebook_hands_over_the_function_of_a_cell(tmp_path: Path) -> None:
    above, below = PROGRAM.split("config =")
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}
    for number, text in enumerate([above, "config =" + below]):
        cell = {"cell_type": "code", "id": f"cell-{number}", "metadata": {}, "source": text}
        notebook["cells"].append({**cell, "outputs": [], "execution_count": None})
    (tmp_path / "toy.ipynb").write_text(json.dumps(notebook))
    command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", "toy.ipynb"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outputs = json.loads((tmp_path / "toy.ipynb").read_text())["cells"][1]["outputs"]
    assert [output["text"] for output in outputs] == [["300\n"]]


@pytest.mark.parametrize(
    ("given", "got"),
    [
        (Corridor(), "an environment, Corridor"),
        (Relay(), "an environment, Relay"),
        (mc.TreasureHunt(), "an environment, TreasureHunt"),
        (None, "None"),
    ],
    ids=["gymnasium", "pettingzoo", "marlcore", "nothing"],
)
def test_an_environment_instead_of_its_maker_is_refused(tmp_path: Path, given: Any, got: str) -> None:
    """An environment itself is refused in a line that says what to pass."""
    with pytest.raises(TypeError, match=r"^env_fn: expected a function .* or a name, .*, got " + got) as caught:
        train(given, tmp_path / "run")
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [mc.DQN, Corridor(), None])
def test_what_is_no_algorithm_is_refused_in_one_line(tmp_path: Path, given: Any) -> None:
    with pytest.raises(TypeError, match=r"^algorithm: expected an Algorithm, such as marlcore\.DQN\(\), or its name"):
        train(Corridor, tmp_path / "run", given)


# Starts that fail


class FailsInWorkers:
    """Makes one environment, in the parent, and then no more: a pickled one has made it already."""

    made = False

    def __call__(self) -> Corridor:
        if self.made:
            raise RuntimeError("no licence is left")
        self.made = True
        return Corridor()


class NoModel(mc.DQN):
    def make_model(self, spaces: Any) -> Any:
        raise RuntimeError("no such layer")


class NoTrainer(mc.DQN):
    def make_trainer(self, model: Any) -> Any:
        raise RuntimeError("no such optimizer")


def no_server(*args: Any, **options: Any) -> Any:
    raise MemoryError("nothing can be forked")


STARTS = {
    "no environment": (FailsInWorkers(), "dqn"),
    "no first step": (partial(Corridor, fails_at=1), "dqn"),
    "no model": (Corridor, NoModel()),
    "no trainer": (Corridor, NoTrainer()),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("start", "mode"), [*product(STARTS, ["serial"]), ("no environment", "async"), ("no trainer", "async")]
)
def test_a_start_that_fails_leaves_no_directory(tmp_path: Path, start: str, mode: str) -> None:
    env_fn, algorithm = STARTS[start]
    with pytest.raises((mc.MarlcoreError, RuntimeError), match=r"no licence|gave way|no such"):
        train(env_fn, tmp_path / "a" / "run", algorithm, mode=mode)
    assert list(tmp_path.iterdir()) == []


def test_a_fork_server_that_cannot_start_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlcore.training.supervised.WorkerProcess", no_server)
    with pytest.raises(MemoryError):
        train(Corridor, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_fails_takes_nothing_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("mine")
    (tmp_path / "runs" / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for name in ("new", "empty"):
        with pytest.raises(RuntimeError, match="no such layer"):
            train(Corridor, tmp_path / "runs" / name, NoModel())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_made_a_step_keeps_its_directory(tmp_path: Path) -> None:
    with pytest.raises(mc.WorkerFailed, match="the floor gave way"):
        train(partial(Corridor, fails_at=70), tmp_path / "run", mode="serial")
    assert (tmp_path / "run" / "config.json").exists()


def test_runs_of_the_same_second_have_own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from marlcore.training.record.run_directory import RunDirectory

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("marlcore.training.record.run_directory.time.strftime", lambda form: "20261122-101500")
    made: list[Path] = []

    def start() -> None:
        with RunDirectory.create(None, {}) as run:
            made.append(run.path)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = {"20261122-101500", *(f"20261122-101500-{number}" for number in range(1, 8))}
    assert {path.name for path in made} == names and {path.parent for path in made} == {tmp_path / "runs"}


# A fault that will come again


@pytest.mark.long
def test_a_failure_in_the_first_episode_is_tried_again_once(tmp_path: Path) -> None:
    with pytest.raises(mc.WorkerFailed, match="the floor gave way") as caught:
        train(partial(Corridor, fails_at=3), tmp_path / "run")
    assert caught.value.reason == "environment"
    assert "start 2:" in caught.value.traceback and "start 3:" not in caught.value.traceback


class Broken(Corridor):
    """Its first step returns what its spaces do not promise."""

    def __init__(self, fault: str, steps: int) -> None:
        super().__init__()
        self.fault, self.good = fault, steps

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        if self.at <= self.good:
            return obs, reward, *rest
        return (np.zeros(3, np.float32), reward, *rest) if self.fault == "shape" else (obs, float("nan"), *rest)


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "message"),
    [("shape", r"obs: expected float32 \(1,\), got shape \(3,\)"), ("reward", "reward: expected a finite number")],
)
def test_a_refused_value_is_the_environments_fault(tmp_path: Path, fault: str, message: str) -> None:
    with pytest.raises(mc.WorkerFailed, match=f"environment copy 0, agent_0: {message}") as caught:
        train(partial(Broken, fault, 2), tmp_path / "run")
    assert caught.value.reason == "environment"
    assert "start 2:" in caught.value.traceback and "start 3:" not in caught.value.traceback


@pytest.mark.parametrize("given", [{"learner": {"gamma": 0.9}}, {"learner": 3}, {"actor": mc.LearnerConfig()}])
def test_a_part_of_another_kind_is_refused_in_one_line(given: Any) -> None:
    with pytest.raises(TypeError, match=r"^(learner: expected a Learner|actor: expected an Actor)Config, got "):
        mc.Config(**given)


def test_a_configuration_of_another_kind_is_refused_in_one_line() -> None:
    with pytest.raises(TypeError, match=r"^config: expected a Config or None, got \{'total_steps': 100\}$"):
        mc.train(Corridor, "dqn", {"total_steps": 100})  # type: ignore[arg-type]


# Environments that a package registers when it is imported


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that registers an environment when it is imported."""
    code = """
        import gymnasium
        gymnasium.register("door_games/Cart-v0", "gymnasium.envs.classic_control:CartPoleEnv")
    """
    (tmp_path / "door_games.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(tmp_path)
    yield "door_games/Cart-v0"
    gymnasium.registry.pop("door_games/Cart-v0", None)
    sys.modules.pop("door_games", None)


@pytest.mark.parametrize("form", ["gymnasium:{}", "gymnasium:door_games:{}"])
def test_the_package_that_registers_an_environment_is_imported(package: str, form: str) -> None:
    assert mc.NamedEnvironment(form.format(package))().action_space == Discrete(2)


def test_a_function_of_a_module_is_an_environments_name() -> None:
    assert mc.NamedEnvironment("test_doors:Corridor")().action_space == Discrete(2)
    with pytest.raises(ValueError, match=r"^environment: expected something that can be imported, got 'nowhere:make'"):
        mc.NamedEnvironment("nowhere:make")()
