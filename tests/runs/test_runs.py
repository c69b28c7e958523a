"""Whole runs of the treasure hunt: they learn, repeat themselves, stop by signals, and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Thread, get_ident
from typing import Any
from unittest.mock import Mock, patch

import gymnasium
import numpy as np
import pytest
from crowd import Corridor
from hunt import HUNT, bar
from processes import await_group
from whole_runs import LONG, MODES, Runs, checkpoint, config_of, finished, marlcore, metrics_of, values_of

import marlcore as mc
from marlcore.algos import dqn
from marlcore.memory import check_interruption, interrupt_waits_with
from marlcore.processes import Control, Telemetry
from marlcore.record import read_metrics

runs = Runs(mode="async", total_steps=6_000)
AGENTS = {"agent_0", "agent_1"}
train = runs.train


def check_run(result: mc.Result, total_steps: int) -> list[Any]:
    path = result.run_dir
    assert config_of(path)["total_steps"] == total_steps
    metrics = metrics_of(path)
    names = {metric.name for metric in metrics}
    assert names >= {"episode_return", "episode_length", "loss", "epsilon", "env_steps_per_s", "updates_per_s"}
    assert names >= {"policy_lag", "q_mean"}
    assert {metric.agent for metric in metrics} == {"", *AGENTS}
    assert {metric.value for metric in metrics if metric.name == "episode_length"} == {HUNT.keywords["horizon"]}
    for agent in AGENTS:
        state = checkpoint(path, agent)
        assert state["updates"] > 0 and state["version"] > 1 and state.keys() >= {"network", "trainer", "sampler"}
    assert (path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((path / "tensorboard").iterdir())
    assert result.returns.keys() == AGENTS and all(result.updates[agent] > 0 for agent in AGENTS)
    assert result.lost_metrics == 0
    return metrics


@pytest.mark.usefixtures("shared_fork_server")
@pytest.mark.parametrize("algorithm", ["dqn", pytest.param("iqn", marks=LONG)])
def test_a_run_with_processes_leaves_its_results(tmp_path: Path, algorithm: str) -> None:
    result = train(tmp_path, HUNT, algorithm, total_steps=1_500)
    assert 1_500 <= result.steps < 1_500 + runs.config.actor.envs
    check_run(result, 1_500)
    logs = sorted(path.name for path in (result.run_dir / "logs").iterdir())
    assert logs == ["actor-0.log", "learner-agent_0.log", "learner-agent_1.log"]


class Signing(HUNT.func):  # type: ignore[misc, name-defined]
    """Each copy that is played notes itself and its process in a folder."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(**options)
        self.note = folder / f"{os.getpid()}-{id(self)}"

    def step(self, action: Any) -> None:
        super().step(action)
        self.note.touch()


@LONG
@pytest.mark.usefixtures("shared_fork_server")
def test_several_actors_share_the_steps(tmp_path: Path) -> None:
    """Each in a process of its own, with two copies of its own."""
    (notes := tmp_path / "notes").mkdir()
    actor = mc.ActorConfig(processes=2, envs=2)
    result = train(tmp_path, partial(Signing, notes, **HUNT.keywords), total_steps=2000, actor=actor)
    taken = json.loads((result.run_dir / "checkpoints" / "run.json").read_text())["steps"]
    assert (result.steps, taken["actor-0"], taken["actor-1"]) == (2000, 1000, 1000)
    copies = Counter(int(path.name.partition("-")[0]) for path in notes.iterdir())
    assert [*copies.values()] == [2, 2] and os.getpid() not in copies


def test_a_serial_run_starts_no_process_and_others_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Mock(environ={}, **{"fork.side_effect": KeyError})
    monkeypatch.setattr("marlcore.processes.children.ForkServer", lambda *_: server)
    assert train(tmp_path / "serial", HUNT, mode="serial", total_steps=50).steps >= 50
    with pytest.raises(KeyError):
        train(tmp_path / "default", HUNT, mode=mc.Config().mode, total_steps=50)


def test_a_wait_between_actions_gives_learners_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In serial mode. The program's own check is called too, also in waits of other threads, and may end the run."""
    updates, during, callers, update = [], [], [], dqn.DQNTrainer.update

    class Waiting(HUNT.func):  # type: ignore[misc, name-defined]
        def step(self, action: Any) -> None:
            super().step(action)
            before = len(updates)
            check_interruption()
            during.append(len(updates) - before)
            (other := Thread(target=check_interruption)).start()
            other.join()

    monkeypatch.setattr(dqn.DQNTrainer, "update", lambda *args: updates.append(1) or update(*args))
    changes = {"mode": "serial", "total_steps": 60, "learner": {"warmup": 1}, "replay": {"prioritized": True}}
    changes |= {"updates_per_step": 1.0, "updates_tolerance": 1}
    with ExitStack() as stack:
        stack.callback(interrupt_waits_with, interrupt_waits_with(lambda: callers.append(get_ident())))
        train(tmp_path / "a", partial(Waiting, **HUNT.keywords), mc.DQN(actor_priorities=True), **changes)
        interrupt_waits_with(Mock(side_effect=mc.ClosedError))
        with pytest.raises(mc.ClosedError):
            train(tmp_path / "b", HUNT, **changes)
    assert len(during) == 60 and sum(during) > 30
    assert callers.count(get_ident()) >= 60 and len(callers) - callers.count(get_ident()) == 60


@MODES
@pytest.mark.usefixtures("shared_fork_server")
def test_a_thousand_episodes_are_counted(tmp_path: Path, mode: str) -> None:
    changes = {"total_steps": 10**6, "stop": {"episodes": 1_000}, "actor": {"envs": 20}}
    result = train(tmp_path, Corridor, mode=mode, **changes)
    assert result.stopped.startswith("stop.episodes: 1,000 episodes have ended") and result.steps >= 5_000
    returns = values_of(result.run_dir, "episode_return")
    assert len(returns) >= 1_000 and set(returns) == {5.0} and not any(result.restarts.values())


@LONG
def test_a_deep_q_network_learns_the_hunt_in_serial_mode(tmp_path: Path) -> None:
    result = train(
        tmp_path, HUNT, mode="serial", total_steps=12_000, updates_per_step=0.25,
        learner=mc.LearnerConfig(batch_size=32, warmup=200, device="cpu"),
        exploration=mc.ExplorationConfig("exponential(1, 0.02, rate=0.9, every=50, of=updates)"),
    )  # fmt: skip
    assert all(value > bar() for value in result.returns.values()), result.returns


@LONG
def test_the_fallback_to_one_process_never_waits_for_itself(tmp_path: Path, python_is: Any) -> None:
    """Where no process can be started, one thread adds the rows of every lane and makes the updates."""
    python_is("/nowhere/python")
    actor = mc.ActorConfig(processes=4, envs=4)
    result = train(tmp_path, HUNT, total_steps=1500, updates_per_step=1.0, updates_tolerance=1, actor=actor)
    assert all(count > 500 for count in result.updates.values())


def test_a_fork_server_that_cannot_start_leaves_no_directory(tmp_path: Path, python_is: Any) -> None:
    python_is("/nowhere/python")
    with pytest.raises(mc.MarlcoreError, match=r"mode: no processes can be started here .*/nowhere/python"):
        train(tmp_path, HUNT, supervision=mc.SupervisionConfig(serial_fallback=False))
    assert list(tmp_path.iterdir()) == []


# Before the import, a signal meets Python's own start, which prints a traceback that no program can prevent.
TRAINS = """
import sys
from marlcore.__main__ import main
print("imported", flush=True)
sys.exit(main(["train", "--env", "hunt:Calm", "--run-dir", "run"]))
"""


def stop_with(signum: int, after_s: float, folder: Path) -> tuple[int, str]:
    """A run that gets a signal, as a terminal sends it to all of a group: its exit code, and what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINS],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "imported\n"
    time.sleep(after_s)
    os.killpg(process.pid, signum)
    code, output = finished(process)
    await_group(process.pid)  # the kernel ends the workers when the parent has ended
    return code, output


@LONG
@pytest.mark.parametrize(
    ("signum", "after_s", "codes"),
    [*((signal.SIGINT, after_s, {130}) for after_s in (0.0, 0.3, 1.5, 3.0, 9.0)), (signal.SIGTERM, 9.0, {143, -15})],
)
def test_a_signal_stops_everything_without_a_traceback(
    tmp_path: Path, signum: int, after_s: float, codes: set[int]
) -> None:
    code, output = stop_with(signum, after_s, tmp_path)
    assert code in codes and "Traceback" not in output


def test_without_a_command_the_usage_is_shown(tmp_path: Path) -> None:
    code, output = finished(marlcore(cwd=tmp_path))
    assert code == 2 and "usage: marlcore train" in output


class HelpedHunt(mc.TreasureHunt):
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


@LONG
@pytest.mark.usefixtures("shared_fork_server")
def test_an_environment_with_helpers_ends_and_leaves_none(tmp_path: Path) -> None:
    helpers = tmp_path / "helpers"
    helpers.mkdir()
    once = mc.SupervisionConfig(max_restarts=0)
    result = train(tmp_path, partial(HelpedHunt, helpers), total_steps=500, supervision=once)
    assert not any(result.restarts.values())
    pids = [int(path.name) for path in helpers.iterdir()]
    assert len(pids) == 6  # the parent makes a copy too, to see its spaces
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


class Bandit:
    """Each step is an episode of all agents, with two numbers in each info."""

    def __init__(self, agents: int = 1) -> None:
        self.possible_agents = [f"agent_{number}" for number in range(agents)]

    def observation_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Box(0.0, 1.0, (1,))

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(2)

    def of_each(self, value: Any) -> Any:
        return dict.fromkeys(self.possible_agents, value)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = self.possible_agents
        return self.of_each(np.zeros(1, np.float32)), self.of_each({})

    def close(self) -> None: ...

    def step(self, actions: Any) -> Any:
        self.agents: list[str] = []
        ends = self.of_each(True), self.of_each(False)
        return self.of_each(np.zeros(1, np.float32)), self.of_each(1.0), *ends, self.of_each({"one": 1.0, "two": 2.0})


@pytest.mark.parametrize("agents, copies", [(1, 32), (32, 1)])
def test_a_serial_run_of_many_episodes_reads_all_metrics(agents: int, copies: int, tmp_path: Path) -> None:
    config = mc.Config(total_steps=6_400, mode="serial", run_dir=str(tmp_path), updates_per_step=0.01)
    config = replace(config, actor=mc.ActorConfig(envs=copies), learner=mc.LearnerConfig(warmup=6_400))
    config = replace(config, policies=lambda agent: "all")
    result = mc.train(partial(Bandit, agents), mc.DQN(hidden=(4,)), config, progress=False)
    assert result.lost_metrics == 0
    assert sum(metric.name == "episode_return" for metric in read_metrics(tmp_path / "metrics.csv")) == 6_400


def test_lost_metrics_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    tail = Telemetry.tail

    def losing(self: Any) -> Any:
        self.lost = 7
        return tail(self)

    monkeypatch.setattr(Telemetry, "tail", losing)
    config = mc.Config(total_steps=40, mode="serial", run_dir=str(tmp_path))
    assert mc.train(Bandit, mc.DQN(hidden=(4,)), config, progress=False).lost_metrics == 7
    assert "metrics: 7 were overwritten before they were written to metrics.csv" in caplog.text


@pytest.mark.parametrize("algorithm, drawn", [(mc.DQN(), 64), (mc.R2D2(), 64 * 40), (mc.PPO(), 0)])
def test_the_control_block_counts_transitions_of_a_batch(algorithm: Any, drawn: int, tmp_path: Path) -> None:
    config = mc.Config(total_steps=10, mode="serial", run_dir=str(tmp_path))
    seen: list[Any] = []
    create = Control.create
    with patch.object(Control, "create", lambda *given, **about: seen.append(about) or create(*given, **about)):
        mc.train(Bandit, algorithm, config, progress=False)
    assert seen[0]["policies"]["agent_0"]["batch_size"] == drawn
