"""Whole runs: they learn, end, fail and stop as they should, and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from hunt import HUNT, bar

import marlcore as mc
from marlcore.algos import DQN
from marlcore.envs import TreasureHunt
from marlcore.processes.telemetry import Metric
from marlcore.testing.victim import living
from marlcore.training import read_metrics
from marlcore.training.config import ActorConfig, ExplorationConfig, LearnerConfig, ReplayConfig, SupervisionConfig

SMALL = mc.Config(
    total_steps=6_000,
    actor=ActorConfig(envs=2, sync_interval=10),
    learner=LearnerConfig(batch_size=16, warmup=50, log_interval=10, device="cpu"),
)
ONCE = SupervisionConfig(max_restarts=0)


def small(run_dir: Path, **changes: Any) -> mc.Config:
    return replace(SMALL, run_dir=str(run_dir), **changes)


class FailingHunt(TreasureHunt):
    """Fails in the middle of a run, where `step` was meant to."""

    def step(self, action: int | None) -> None:
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 300:
            raise RuntimeError("the treasure is cursed")
        super().step(action)


class DyingHunt(TreasureHunt):
    """Takes its whole process with it."""

    def step(self, action: int | None) -> None:
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 300:
            os.kill(os.getpid(), signal.SIGKILL)
        super().step(action)


def check_run(result: Any, config: mc.Config) -> list[Metric]:
    """What every finished run leaves behind."""
    path = result.run_dir
    assert json.loads((path / "config.json").read_text())["total_steps"] == config.total_steps
    metrics = read_metrics(path / "metrics.csv")
    names = {metric.name for metric in metrics}
    assert names >= {"episode_return", "episode_length", "loss", "epsilon", "env_steps_per_s", "updates_per_s"}
    assert names >= {"policy_lag", "q_mean"}
    assert {metric.agent for metric in metrics} == {"", "agent_0", "agent_1"}
    for agent in ("agent_0", "agent_1"):
        state = torch.load(path / "checkpoints" / f"{agent}.pt")
        assert state["updates"] > 0 and state["version"] > 1 and state.keys() >= {"network", "trainer", "sampler"}
    assert (path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((path / "tensorboard").iterdir())
    assert result.returns.keys() == {"agent_0", "agent_1"}
    assert all(result.updates[agent] > 0 for agent in ("agent_0", "agent_1"))
    assert result.lost_metrics == 0
    return metrics


@pytest.mark.parametrize("algorithm", ["dqn", pytest.param("iqn", marks=pytest.mark.long)])
def test_a_run_with_processes_leaves_its_results(tmp_path: Path, algorithm: str) -> None:
    """A run with processes ends by itself and leaves its results."""
    config = small(tmp_path / "run")
    result = mc.train(HUNT, algorithm, config, progress=False)
    assert config.total_steps <= result.steps < config.total_steps + config.actor.envs
    check_run(result, config)
    logs = sorted(path.name for path in (result.run_dir / "logs").iterdir())
    assert logs == ["actor-0.log", "learner-agent_0.log", "learner-agent_1.log"]


@pytest.mark.long
def test_several_actors_share_the_steps(tmp_path: Path) -> None:
    config = small(tmp_path / "run", total_steps=2001, actor=ActorConfig(processes=2, envs=1))
    assert mc.train(HUNT, "dqn", config, progress=False).steps == 2001


@pytest.mark.long
def test_a_serial_run_repeats_itself_exactly_under_a_seed(tmp_path: Path) -> None:
    runs = []
    for i, seed in enumerate([3, 3, 4]):
        config = small(tmp_path / str(i), mode="serial", seed=seed, total_steps=3000)
        metrics = check_run(mc.train(HUNT, "iqn", config, progress=False), config)
        # Rates and waits are measured by the clock, and so is the time of each row; nothing else is.
        runs.append([(m.step, m.agent, m.name, m.value) for m in metrics if not m.name.endswith("_s")])
    assert len(runs[0]) > 100
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.long
def test_a_workers_exception_ends_the_run(tmp_path: Path) -> None:
    """An exception in a worker ends the run with its traceback."""
    with pytest.raises(mc.WorkerFailed, match="actor-0's environment failed") as caught:
        mc.train(FailingHunt, "dqn", small(tmp_path / "run", supervision=ONCE), progress=False)
    assert (caught.value.worker, caught.value.reason) == ("actor-0", "environment")
    assert 'raise RuntimeError("the treasure is cursed")' in caught.value.traceback
    assert "the treasure is cursed" in (tmp_path / "run" / "logs" / "actor-0.log").read_text()


class WordyHunt(TreasureHunt):
    """Fails with more to say than fits a pipe."""

    def step(self, action: int | None) -> None:
        raise RuntimeError("x" * 1_000_000)


@pytest.mark.long
def test_a_traceback_that_fits_no_pipe_ends_the_run_too(tmp_path: Path) -> None:
    with pytest.raises(mc.WorkerFailed, match="actor-0's environment failed"):
        mc.train(WordyHunt, "dqn", small(tmp_path / "run", supervision=ONCE), progress=False)


def test_serial_failures_are_told_from_bad_input(tmp_path: Path) -> None:
    with pytest.raises(mc.WorkerFailed, match="the treasure is cursed") as caught:
        mc.train(FailingHunt, "dqn", small(tmp_path / "run", mode="serial"), progress=False)
    assert caught.value.reason == "environment"
    assert isinstance(caught.value.__cause__, mc.EnvironmentFailed)
    assert isinstance(caught.value.__cause__.__cause__, RuntimeError)


def test_a_run_that_memory_has_no_room_for_leaves_no_directory(tmp_path: Path) -> None:
    config = small(tmp_path / "run", replay=ReplayConfig(capacity=2**32 - 1))
    with pytest.raises(mc.SharedMemoryFull, match="bytes asked for"):
        mc.train(HUNT, "dqn", config, progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_workers_death_ends_the_run_by_its_signal(tmp_path: Path) -> None:
    """The death of a worker ends the run and names the signal."""
    with pytest.raises(mc.WorkerFailed, match="SIGKILL"):
        mc.train(DyingHunt, "dqn", small(tmp_path / "run", supervision=ONCE), progress=False)


def test_an_unpicklable_environment_is_refused(tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"env_fn: expected something that can be pickled, .*lock"):
        mc.train(lambda: lock and TreasureHunt(), "dqn", small(tmp_path / "run"), progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_an_environment_made_by_a_closure_reaches_the_workers(tmp_path: Path) -> None:
    class Hunt(TreasureHunt):
        """No module has it."""

    result = mc.train(lambda: Hunt(), "dqn", small(tmp_path / "run", total_steps=500), progress=False)
    assert result.steps >= 500


SCRIPT = """
import sys
import marlcore as mc
from hunt import HUNT
from marlcore.training.config import SupervisionConfig

class Hunt(type(HUNT())):
    pass

def run():
    config = mc.Config(total_steps=2000, run_dir=sys.argv[1], supervision=SupervisionConfig(max_restarts=0))
    mc.train(Hunt, "dqn", config, progress=False)

"""


def run_script(tmp_path: Path, how: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + how)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script), str(tmp_path / "run")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_what_a_script_defines_is_known_to_its_workers(tmp_path: Path) -> None:
    done = run_script(tmp_path, 'if __name__ == "__main__":\n    run()\n')
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "run" / "checkpoints").glob("*.pt"))) == 3


@pytest.mark.long
def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    done = run_script(tmp_path, 'print("once")\nrun()\n')
    assert (done.returncode, done.stdout, done.stderr) == (0, "once\n", "")
    assert len(list((tmp_path / "run" / "checkpoints").glob("*.pt"))) == 3


@pytest.mark.long
def test_gymnasium_and_pettingzoo_environments_need_no_wrapping(tmp_path: Path) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    config = small(tmp_path / "run", total_steps=500)
    result = mc.train(partial(gymnasium.make, "CartPole-v1"), "dqn", config, progress=False)
    assert result.returns.keys() == {"agent_0"}


@pytest.mark.long
def test_a_deep_q_network_learns_the_hunt_in_serial_mode(tmp_path: Path) -> None:
    learner = LearnerConfig(batch_size=32, warmup=200, device="cpu")
    config = small(tmp_path / "run", mode="serial", total_steps=24_000, learner=learner, updates_per_step=0.25)
    config = replace(config, exploration=ExplorationConfig("exponential(1, 0.02, rate=0.9, every=50, of=updates)"))
    result = mc.train(HUNT, DQN(), config, progress=False)
    assert all(value > bar() for value in result.returns.values()), result.returns


def marlcore(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "marlcore", *arguments]
    return subprocess.Popen(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


# Before the import, a signal meets Python's own start, which prints a traceback that no program can prevent.
TRAINS = """
import sys
from marlcore.__main__ import main
print("imported", flush=True)
sys.exit(main(["train", "--run-dir", sys.argv[1]]))
"""


def stop_with(signum: int, after_s: float, cwd: Path) -> tuple[int, str, float]:
    """A run that gets a signal: its exit code, what it printed, and how long it took to end."""
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINS, str(cwd / "run")],
        cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "imported\n"
    time.sleep(after_s)
    os.killpg(process.pid, signum)  # as the terminal does it: everybody gets it
    began = time.monotonic()
    output, _ = process.communicate(timeout=1800)
    while living(process.pid):  # the kernel ends the workers when the parent has ended
        assert time.monotonic() - began < 1800
        time.sleep(0.01)
    return process.returncode, output, time.monotonic() - began


@pytest.mark.long
@pytest.mark.parametrize("after_s", [0.0, 0.3, 1.5, 3.0, 9.0])
def test_ctrl_c_stops_everything_without_a_traceback(tmp_path: Path, after_s: float) -> None:
    code, output, _ = stop_with(signal.SIGINT, after_s, tmp_path)
    assert code == 130
    assert "Traceback" not in output


@pytest.mark.long
def test_sigterm_stops_everything_too(tmp_path: Path) -> None:
    code, output, _ = stop_with(signal.SIGTERM, 9.0, tmp_path)
    assert code in (143, -signal.SIGTERM)
    assert "Traceback" not in output


@pytest.mark.long  # quick: a killed parent takes its fork server and their children along, tests/unit/processes
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "marlcore", "train", "--run-dir", str(tmp_path / "run")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    logs = tmp_path / "run" / "logs"
    while not any(logs.glob("*.log")):  # each worker opens its own
        assert process.poll() is None, "the run ended"
        time.sleep(0.05)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 1800
    while living(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    from marlcore.memory.survey import sweep

    sweep()  # as every start of a run does


class HelpedHunt(TreasureHunt):
    """Has helpers of two kinds, which note their process in a folder and end when they are told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(agents=2)
        program = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        process = get_context("fork").Process(target=signal.pause)
        process.start()
        self._helpers = program, process
        for helper in self._helpers:
            (folder / str(helper.pid)).touch()

    def close(self) -> None:
        program, process = self._helpers
        program.terminate()
        program.wait()
        process.terminate()
        process.join()
        super().close()


@pytest.mark.long
def test_an_environment_with_helpers_ends_and_leaves_none(tmp_path: Path) -> None:
    helpers = tmp_path / "helpers"
    helpers.mkdir()
    config = small(tmp_path / "run", total_steps=500, supervision=ONCE)
    result = mc.train(partial(HelpedHunt, helpers), "dqn", config, progress=False)
    assert not any(result.restarts.values())
    pids = [int(path.name) for path in helpers.iterdir()]
    assert len(pids) == 6  # the parent makes a copy too, to see its spaces
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


BAD_INPUT = [
    (["--env", "nowhere"], "environment: expected treasure_hunt"),
    (["--env", "gymnasium:NoSuchGame-v0"], "NoSuchGame"),
    (["--algo", "sarsa"], "sarsa"),
    (["--no-such-option", "1"], "unknown option --no-such-option; see marlcore train --help"),
    (["--totl-steps", "1"], "unknown option --totl-steps; did you mean --total-steps? see marlcore train --help"),
    (["--batch-size", "3"], "unknown option --batch-size; did you mean --learner.batch-size? see"),
    (["--learner.batchsize=3"], "unknown option --learner.batchsize; did you mean --learner.batch-size? see"),
    (["--self-play.pol", "3"], "unknown option --self-play.pol; did you mean --self-play.pool? see"),
    (["--algo", "dqn", "--algorithm.kappa", "1"], "--algorithm.kappa is no option of dqn; see"),
    (["--learner.warmup", "200000"], "learner.warmup: expected at most the 100000 rows that replay.capacity gives"),
    (["--env", "CartPole-v1"], "got 'CartPole-v1'; did you mean gymnasium:CartPole-v1?"),
    (["--env", "json:dumps"], "environment: 'json:dumps': dumps() missing 1 required"),
    (
        ["--env", "gymnasium:Pendulum-v1"],
        "IQN: expected a Discrete, MultiDiscrete or MultiBinary action space, got Box(",
    ),
    (["--total-steps", "-5"], "total_steps: expected an integer of at least 1, got -5"),
    (["--total-steps", "many"], "many"),
    (["--learner.batch-size", "0"], "batch_size: expected an integer of at least 1, got 0"),
    (["--replay.capacity", "2"], "replay.capacity: expected at least 16, so that a lane holds stack + n_step = 1 + 3"),
    (["--replay.stack", "50000"], "replay.capacity: expected at least 200012, so that a lane holds stack + n_step"),
    (["--algorithm.learning-rate", "-1"], "learning_rate: expected a finite number above 0, got -1.0"),
    (["--learner.device", "cuda:99"], "device: expected one of this machine, got 'cuda:99'"),
    (["--run-dir", "/proc/nothing/run"], "run_dir: expected a place that can be written"),
]


@pytest.mark.long
@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT, ids=[" ".join(case[0]) for case in BAD_INPUT])
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    process = marlcore("train", *arguments, cwd=tmp_path)
    output, errors = process.communicate(timeout=1800)
    assert process.returncode == 2
    assert message in errors and "Traceback" not in errors
    assert len(errors.strip().splitlines()) == 1
    assert output == "" and list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_run_directory_that_holds_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    process = marlcore("train", "--run-dir", str(tmp_path), cwd=tmp_path)
    _, errors = process.communicate(timeout=1800)
    assert process.returncode == 2
    assert "which holds a run" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_without_a_command_the_usage_is_shown(tmp_path: Path) -> None:
    process = marlcore(cwd=tmp_path)
    assert "usage: marlcore train" in process.communicate(timeout=1800)[1]
    assert process.returncode == 2
