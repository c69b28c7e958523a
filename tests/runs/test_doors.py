"""Every way to hand over an environment reaches the workers, from every kind of program."""

import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import gymnasium
import pytest
from crowd import Corridor
from gymnasium.spaces import Discrete
from whole_runs import LONG, Runs

import marlcore as mc
from marlcore.record import RunDirectory

runs = Runs(mode="async", total_steps=300, actor={"envs": 1}, learner={"warmup": 20})
train = runs.train


@pytest.mark.usefixtures("undrawn", "shared_fork_server")
@LONG
def test_an_environment_is_made_by_a_closure_over_a_class(tmp_path: Path) -> None:
    """Other runs in processes are given names, lambdas, closures over values, and partials."""
    nested = type("Nested", (Corridor,), {"__doc__": "No module has it."})
    result = train(tmp_path, lambda: nested())
    assert result.steps == 300 and result.returns.keys() == {"agent_0"}


def test_an_environment_that_nothing_pickles_is_refused(tmp_path: Path) -> None:
    lock, (receive, send) = threading.Lock(), multiprocessing.Pipe()
    with receive, send:
        for held, reason in ((lock, "lock"), (send, "Connection: its open file has another number in a worker")):
            with pytest.raises(TypeError, match=rf"env_fn: expected something that can be pickled, .*{reason}"):
                train(tmp_path, partial(lambda held: held and Corridor(), held))
    assert list(tmp_path.iterdir()) == []


DEFINITIONS = """
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
"""
CALL = 'print(mc.train(make, "dqn", config, progress=False).steps)\n'


@LONG
@pytest.mark.parametrize("how", ["standard input", "a script"])
def test_a_program_hands_over_its_own_function(tmp_path: Path, how: str) -> None:
    """What it defines is known to its workers, and it runs once. One in an argument: test_sorrel_runs.py."""
    program = DEFINITIONS + CALL
    (tmp_path / "script.py").write_text(program)
    argument, typed = ("-", program) if how == "standard input" else ("script.py", None)
    done = subprocess.run([sys.executable, argument], cwd=tmp_path, input=typed, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "300\n", "")


def test_runs_of_the_same_second_have_own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "20261122-101500")

    def start(_: int) -> Path:
        with RunDirectory.create(None, {}) as run:
            return run.path

    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(start, range(8)))
    names = ["20261122-101500", *(f"20261122-101500-{number}" for number in range(1, 8))]
    assert made == {tmp_path / "runs" / name for name in names}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package that registers an environment when it is imported."""
    entry = "gymnasium.envs.classic_control:CartPoleEnv"
    code = f'import gymnasium\ngymnasium.register("door_games/Cart-v0", "{entry}")\n'
    (tmp_path / "door_games.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield "door_games/Cart-v0"
    gymnasium.registry.pop("door_games/Cart-v0", None)
    sys.modules.pop("door_games", None)


@pytest.mark.parametrize("form", ["gymnasium:{}", "gymnasium:door_games:{}"])
def test_the_package_that_registers_an_environment_is_imported(package: str, form: str) -> None:
    assert mc.NamedEnvironment(form.format(package))().action_space == Discrete(2)


def test_a_function_of_a_module_is_an_environments_name() -> None:
    assert mc.NamedEnvironment("crowd:Corridor")().action_space == Discrete(2)
    with pytest.raises(ValueError, match=r"^environment: expected something that can be imported, got 'nowhere:make'"):
        mc.NamedEnvironment("nowhere:make")()
