"""A run that was ended, by itself, by Ctrl-C or by SIGKILL, goes on from its last checkpoints."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hunt import HUNT

import marlcore as mc
from marlcore.memory.survey import sweep
from marlcore.spaces import Spaces
from marlcore.training import read_metrics
from marlcore.training.config import (
    ActorConfig,
    ExplorationConfig,
    LearnerConfig,
    ReplayConfig,
    SupervisionConfig,
)
from marlcore.training.config.policies import assign
from marlcore.training.record.describe import describe, described_run
from marlcore.training.record.run_directory import RunDirectory, read_config

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

RUN = mc.Config(
    total_steps=3000,
    mode="serial",
    actor=ActorConfig(envs=2, sync_interval=10),
    learner=LearnerConfig(batch_size=16, warmup=50, log_interval=10, device="cpu"),
    exploration=ExplorationConfig(epsilon="exponential(1, 0.02, rate=0.95, every=20, of=updates)"),
)
AGENTS = ("agent_0", "agent_1")


def checkpoints(run: Path) -> list[dict[str, Any]]:
    return [torch.load(run / "checkpoints" / f"{agent}.pt") for agent in AGENTS]


def steps_of(run: Path) -> int:
    """How many steps a run has noted that its actor took."""
    path = run / "checkpoints" / "run.json"
    return json.loads(path.read_text())["steps"]["actor-0"] if path.exists() else 0


def train(config: mc.Config, **options: Any) -> Any:
    return mc.train(HUNT, "iqn", config, progress=False, **options)


def test_a_configuration_is_read_back_as_it_was(tmp_path: Path) -> None:
    config = replace(RUN, run_dir=str(tmp_path / "run"), supervision=SupervisionConfig(max_restarts=7))
    train(replace(config, total_steps=100))
    expected = replace(config, total_steps=100, replay=replace(config.replay, stack=1))  # decided by the environment
    assert mc.Config.from_dict(read_config(tmp_path / "run")) == expected
    assert mc.Config.from_dict({}) == mc.Config()


@pytest.mark.long
@pytest.mark.parametrize("mode", ["serial", "async"])
def test_a_run_goes_on_where_it_ended(tmp_path: Path, mode: Any) -> None:
    config = replace(RUN, mode=mode, run_dir=str(tmp_path / "run"))
    first = train(config)
    before, rows = checkpoints(first.run_dir), read_metrics(first.run_dir / "metrics.csv")
    more = train(replace(config, total_steps=9000), resume=first.run_dir)
    assert more.run_dir == first.run_dir and 9000 <= more.steps < 9002
    for agent, old, new in zip(AGENTS, before, checkpoints(more.run_dir), strict=True):
        assert old["updates"] == first.updates[agent] < more.updates[agent] == new["updates"]
        assert new["trainer"]["updates"] == new["updates"]
        # Adam counts its steps: they go on with the moments
        (count,) = {int(moments["step"]) for moments in new["trainer"]["optimizer"]["state"].values()}
        assert count == new["updates"]
    later = read_metrics(more.run_dir / "metrics.csv")
    assert later[: len(rows)] == rows
    assert min(m.time_s for m in later[len(rows) :]) > max(m.time_s for m in rows) - 1.0
    assert min(m.step for m in later[len(rows) :]) >= 3000
    for agent in AGENTS:
        epsilons = [m.value for m in later if (m.agent, m.name) == (agent, "epsilon")]
        assert epsilons == sorted(epsilons, reverse=True) and epsilons[-1] < epsilons[0] < 1.0


@pytest.mark.long
def test_the_weights_that_were_saved_are_those_that_act_first(tmp_path: Path) -> None:
    config = replace(RUN, run_dir=str(tmp_path / "run"))
    first = train(config)
    before = checkpoints(first.run_dir)
    more = train(replace(config, total_steps=first.steps + 1), resume=first.run_dir)  # fewer than the warm-up
    assert more.steps > first.steps and more.updates == first.updates
    for old, new in zip(before, checkpoints(more.run_dir), strict=True):
        assert all(torch.equal(old["network"][name], tensor) for name, tensor in new["network"].items())
        assert torch.equal(old["torch"], new["torch"])
        assert torch.equal(old["sampler"]["generator"], new["sampler"]["generator"])


@pytest.mark.long
@pytest.mark.parametrize("save", [True, False])
def test_a_replay_that_was_saved_is_what_the_run_goes_on_with(tmp_path: Path, save: bool) -> None:
    config = replace(RUN, run_dir=str(tmp_path / "run"), replay=ReplayConfig(save=save))
    config = replace(config, learner=replace(config.learner, warmup=1000))
    first = train(config)  # 1500 steps of each agent
    more = train(replace(config, total_steps=3400), resume=first.run_dir)
    assert all((more.updates[agent] > first.updates[agent]) == save for agent in AGENTS)


@pytest.mark.long
def test_a_run_goes_on_after_its_parent_was_killed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "marlcore", "train"]
    options = ["--total-steps", "10000000", "--learner.checkpoint-interval", "50", "--learner.warmup", "100"]
    parent = subprocess.Popen(
        [*command, *options, "--run-dir", str(run)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while len(list((run / "checkpoints").glob("*.pt"))) < 3 or not steps_of(run):
        assert parent.poll() is None
        time.sleep(0.5)
    with pytest.raises(ValueError, match=r"resume: expected a run that has ended, got .*, which is still running"):
        RunDirectory.resume(run)
    parent.kill()
    parent.wait()
    with (run / "metrics.csv").open("a") as metrics:
        metrics.write("12.5,100,agent_0,lo")  # half a line, as a kill may leave it
    before = steps_of(run)
    updates = min(torch.load(path)["updates"] for path in (run / "checkpoints").glob("*.pt"))
    again = subprocess.run(
        [*command, "--resume", str(run), "--total-steps", str(before + 20_000)], capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert steps_of(run) >= before + 20_000
    assert all(torch.load(path)["updates"] > updates >= 50 for path in (run / "checkpoints").glob("*.pt"))
    while any(path.name in sweep() for path in Path("/dev/shm").glob("marlcore-*")):
        time.sleep(0.1)  # the killed run's workers let go of it within seconds


@pytest.mark.long
def test_ctrl_c_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "marlcore", "train"]
    parent = subprocess.Popen([*command, "--run-dir", str(run)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not steps_of(run):
        assert parent.poll() is None
        time.sleep(0.5)
    parent.send_signal(signal.SIGINT)
    parent.communicate()
    before = steps_of(run)
    options = ["--resume", str(run), "--total-steps", str(before + 1000)]
    again = subprocess.run([*command, *options], capture_output=True, text=True)
    assert again.returncode == 0 and f"results in {run}" in again.stdout, again.stderr


@pytest.mark.long
def test_no_saved_row_is_of_a_future_version(tmp_path: Path) -> None:
    """Versions go on so that rows of a saved replay are never of the future."""
    config = replace(RUN, run_dir=str(tmp_path / "run"), total_steps=2000, replay=ReplayConfig(save=True))
    first = train(config)
    before = checkpoints(first.run_dir)
    more = train(replace(config, total_steps=3000), resume=first.run_dir)
    lags = [m.value for m in read_metrics(more.run_dir / "metrics.csv") if m.name.startswith("policy_lag")]
    assert max(lags) < max(state["version"] for state in checkpoints(more.run_dir))
    for old, new in zip(before, checkpoints(more.run_dir), strict=True):
        assert new["version"] > old["version"]


def test_a_resumed_run_says_that_its_replays_were_not_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = replace(RUN, run_dir=str(tmp_path / "run"), total_steps=300)
    train(config)
    train(replace(config, total_steps=400), resume=tmp_path / "run")
    assert caplog.messages == ["resume: replays were not saved (replay.save): empty at first for agent_0, agent_1"]


def test_a_damaged_checkpoint_is_refused_in_one_line(tmp_path: Path) -> None:
    config = replace(RUN, run_dir=str(tmp_path / "run"), total_steps=300)
    first = train(config)
    (first.run_dir / "checkpoints" / "agent_0.pt").write_bytes(b"half a file")
    with pytest.raises(ValueError, match=r"^resume: expected a checkpoint, got .*agent_0\.pt") as caught:
        train(replace(config, total_steps=400), resume=first.run_dir)
    assert "\n" not in str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize("total", [3000, 100])
def test_a_run_without_a_step_left_is_refused(tmp_path: Path, total: int) -> None:
    """A run without a step left is refused and stays as it was."""
    run = train(replace(RUN, run_dir=str(tmp_path / "run"))).run_dir
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ValueError) as caught:
        train(replace(RUN, total_steps=total), resume=run)
    assert str(caught.value) == f"total_steps: expected more than the 3,000 steps that the run has taken, got {total}"
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


MODULE = """
from dataclasses import dataclass
import marlcore as mc

@dataclass(frozen=True)
class Mine(mc.DQN):
    shape: tuple[int, ...] = (3, 4)

def hunt():
    return mc.TreasureHunt(agents=2, size=6, horizon=25, gems=3, food=1, bones=3)
"""
SMALL = ["--mode", "serial", "--run-dir", "run", "--learner.warmup", "50", "--learner.device", "cpu"]


def marlcore_train(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "marlcore", "train", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_own_algorithms_and_environments_are_resumed_by_name(tmp_path: Path) -> None:
    """An algorithm and an environment of one's own are trained and resumed by name."""
    (tmp_path / "mine.py").write_text(MODULE)
    named = ["--env", "mine:hunt", "--algo", "mine:Mine", "--algorithm.shape", "5", "6"]
    first = marlcore_train(tmp_path, *named, *SMALL, "--total-steps", "200")
    assert first.returncode == 0, first.stderr
    plain = read_config(tmp_path / "run")
    assert (plain["env"], plain["algorithm"], plain["hyperparameters"]["shape"]) == ("mine:hunt", "mine:Mine", [5, 6])
    more = marlcore_train(tmp_path, "--resume", "run", "--total-steps", "300")
    assert more.returncode == 0 and steps_of(tmp_path / "run") >= 300, more.stderr
    (tmp_path / "mine.py").unlink()
    gone = marlcore_train(tmp_path, "--resume", "run", "--total-steps", "400")
    assert gone.returncode == 2 and len(gone.stderr.splitlines()) == 1
    assert "got 'mine:Mine' (ModuleNotFoundError: No module named 'mine')" in gone.stderr


POLICIES = assign({"agent_0": Spaces(Box(-1, 1, (3,)), Discrete(2))}, None, mc.DQN(), stack=1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm": "__main__:Mine"}, "algorithm: expected one that can be imported, got __main__:Mine"),
        ({"env": "__main__:make"}, "environment: expected one that can be imported, got __main__:make"),
        ({"env": "mine:ways.<locals>.<lambda>"}, "environment: expected one that can be imported"),
        ({"hyperparameters": {"tau": {"repr": "<function decay>"}}}, "hyperparameter tau: <function decay> cannot be"),
        ({"hyperparameters": {"colour": 1}}, "colour"),
    ],
)
def test_what_cannot_be_made_again_is_refused_in_a_line(tmp_path: Path, changes: Any, reason: str) -> None:
    described = {**describe("treasure_hunt", POLICIES, mc.Config()), "env": "treasure_hunt", **changes}
    RunDirectory.create(tmp_path / "run", described).close()
    with pytest.raises(ValueError, match=r"^resume: expected a run that its config\.json describes") as caught:
        described_run(tmp_path / "run")
    assert reason in str(caught.value) and "marlcore.train(env_fn, algorithm, config, resume=" in str(caught.value)


BAD = [
    (["--resume", "nowhere"], "resume: expected the directory of a run, got '/"),
    (["--resume", "nowhere", "--seed", "3"], "--resume takes only --total-steps and --trust, got --seed; see"),
    (["--resume"], "resume"),
]


@pytest.mark.long
@pytest.mark.parametrize(("arguments", "message"), BAD, ids=str)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", "marlcore", "train", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("config", ["[1]", '{"actor": 5}', '{"env": "treasure_hunt", "total_steps": "many"}'])
def test_a_damaged_configuration_is_one_line_and_exit_code_2(tmp_path: Path, config: str) -> None:
    RunDirectory.create(tmp_path / "run", {}).close()
    (tmp_path / "run" / "config.json").write_text(config)
    done = subprocess.run(
        [sys.executable, "-m", "marlcore", "train", "--resume", "run"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert re.match(r"marlcore: resume: expected .*, got '.*run' \(", done.stderr)


@pytest.mark.long
def test_settings_that_do_not_fit_the_saved_replay_are_refused(tmp_path: Path) -> None:
    config = replace(RUN, run_dir=str(tmp_path / "run"), replay=ReplayConfig(save=True))
    first = train(config)
    metrics = (first.run_dir / "metrics.csv").read_text()
    with pytest.raises(ValueError, match=r"resume: expected actor\.envs 2, as the run had it, got 3"):
        train(replace(config, actor=ActorConfig(envs=3)), resume=first.run_dir)
    assert (first.run_dir / "metrics.csv").read_text() == metrics


@pytest.mark.long
@pytest.mark.parametrize("saves", [False, True])
def test_priorities_are_restored_with_their_rows_alone(tmp_path: Path, saves: bool) -> None:
    """Without its rows, a replay begins anew, and so do the priorities."""
    replay = ReplayConfig(capacity=2000, prioritized=True, save=saves)
    config = replace(RUN, mode="serial", run_dir=str(tmp_path / "run"), replay=replay)
    first = train(config)
    states = [state["sampler"]["masses"] for state in checkpoints(first.run_dir)]
    assert all(masses.sum() > 0 for masses in states)
    more = train(replace(config, total_steps=6000), resume=first.run_dir)
    assert all(more.updates[agent] > first.updates[agent] for agent in AGENTS)
