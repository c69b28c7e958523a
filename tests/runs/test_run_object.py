"""A run as an object: started, watched, asked for its policies, stopped; and what a finished run's policies do."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crowd import Crowd
from hunt import HUNT
from odd_spaces import Counting

import marlcore as mc
from marlcore.envs import NamedEnvironment
from marlcore.testing.victim import living

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

CONFIG = mc.Config(
    total_steps=2_000,
    actor=mc.ActorConfig(envs=2, sync_interval=10),
    learner=mc.LearnerConfig(batch_size=16, warmup=50, log_interval=10, device="cpu"),
    updates_per_step=0.1,
)
ENDLESS = replace(CONFIG, total_steps=10**9)
MODES = ["serial", pytest.param("async", marks=pytest.mark.long)]


def start(run_dir: Path, env_fn: Any = HUNT, algorithm: str = "dqn", **changes: Any) -> mc.Run:
    return mc.start(env_fn, algorithm, replace(ENDLESS, run_dir=str(run_dir), **changes))


def train(run_dir: Path, env_fn: Any, **changes: Any) -> Path:
    config = replace(CONFIG, mode="serial", run_dir=str(run_dir), **changes)
    return mc.train(env_fn, "dqn", config, progress=False).run_dir


def steps_past(run: mc.Run, steps: int) -> None:
    while run.status().steps < steps:
        time.sleep(0.01)
        assert run.status().running


@pytest.mark.parametrize("mode", MODES)
def test_a_run_is_watched_asked_and_stopped(tmp_path: Path, mode: str) -> None:
    run = start(tmp_path / "run", mode=mode)
    with pytest.raises(TimeoutError, match="the run goes on"):
        run.wait(0.01)
    steps_past(run, 500)
    status = run.status()
    assert status.running and status.total_steps == 10**9 and status.seconds > 0
    assert status.returns.keys() == status.updates.keys() == {"agent_0", "agent_1"}
    env = HUNT()
    env.reset(0)
    assert run.policy("agent_1").act(env.last()[0]) in range(4)
    with pytest.raises(ValueError, match=r"policy: expected one of \['agent_0', 'agent_1'\], got 'agent_7'"):
        run.policy("agent_7")
    assert "running" in repr(run)
    run.stop()
    run.stop()
    result = run.wait()
    assert run.wait() is result and not run.status().running and "ended" in repr(run)
    assert result.steps == run.status().steps > 500 and result.updates == run.status().updates
    assert result.returns == run.status().returns
    assert run.policy("agent_1").act(env.last()[0]) in range(4)


@pytest.mark.parametrize("mode", MODES)
def test_leaving_the_block_stops_the_run(tmp_path: Path, mode: str) -> None:
    with start(tmp_path / "run", mode=mode) as run:
        steps_past(run, 100)
    assert not run.status().running
    with pytest.raises(KeyError, match="mine"), start(tmp_path / "other", mode=mode) as other:
        raise KeyError("mine")
    assert not other.status().running
    assert other.wait().run_dir == tmp_path / "other"


def test_a_policy_can_be_asked_for_while_its_run_ends(tmp_path: Path) -> None:
    run = start(tmp_path / "run", mode="serial")
    steps_past(run, 300)
    run.stop()
    while run.status().running:
        assert run.policy("agent_0") is not None
    run.wait()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"algorithm": "sarsa"}, "sarsa"), ({"replay": mc.ReplayConfig(capacity=2**32 - 1)}, "bytes asked for")],
)
def test_what_is_wrong_before_processes_start_start_raises(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises((ValueError, mc.SharedMemoryFull), match=message):
        start(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


class Breaking(Crowd):
    def step(self, actions: Any) -> Any:
        raise RuntimeError("the crowd is gone")


@pytest.mark.parametrize("mode", MODES)
def test_what_goes_wrong_later_wait_raises(tmp_path: Path, mode: str) -> None:
    run = start(tmp_path / "run", partial(Breaking, 2), mode=mode, supervision=mc.SupervisionConfig(max_restarts=0))
    with pytest.raises(mc.WorkerFailed, match="the crowd is gone"):
        run.wait()
    assert not run.status().running


@pytest.mark.long
@pytest.mark.parametrize("modes", [("async", "async"), ("serial", "async"), ("serial", "serial")])
def test_two_runs_go_on_at_once(tmp_path: Path, modes: tuple[str, str]) -> None:
    runs = [start(tmp_path / str(i), total_steps=2_000, mode=mode, seed=i) for i, mode in enumerate(modes)]
    results = [run.wait() for run in runs]
    assert all(2_000 <= result.steps < 2_002 for result in results)
    assert results[0].run_dir != results[1].run_dir
    assert all(min(result.updates.values()) > 50 for result in results)


PROGRAM = """
import sys, time
import marlcore as mc
from dataclasses import replace
from test_run_object import ENDLESS, HUNT
run = mc.start(HUNT, "dqn", replace(ENDLESS, run_dir=sys.argv[1], mode=sys.argv[2]))
while run.status().steps < 200:
    time.sleep(0.01)
print("going", flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "raise RuntimeError('mine')"])
@pytest.mark.parametrize("mode", ["serial", "async"])
def test_the_interpreters_exit_ends_a_run(tmp_path: Path, mode: str, end: str) -> None:
    """It writes its checkpoints; no process and no segment is left."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    before = set(os.listdir("/dev/shm"))
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM) + end, tmp_path / "run", mode], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    output, errors = process.communicate(timeout=1800)
    assert output == "going\n", errors
    assert process.returncode == (3 if "Exit" in end else 1 if end else 0), errors
    assert ("mine" in errors) == ("mine" in end) and (end != "" or errors == ""), errors
    deadline = time.monotonic() + 1800
    while living(process.pid):  # the kernel ends them when it has ended their parent
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert set(os.listdir("/dev/shm")) == before
    assert torch.load(tmp_path / "run" / "checkpoints" / "agent_0.pt")["updates"] > 0


def test_a_loaded_policy_acts_on_stacks_as_in_training(tmp_path: Path) -> None:
    """Its actions are those of the saved network for the last three observations, the first one repeated."""
    run_dir = train(tmp_path / "run", HUNT, replay=mc.ReplayConfig(stack=3))
    policy = mc.load_policy(run_dir, "agent_0")
    player, space = policy.player(2), policy.spaces.observation
    network = mc.DQN().make_model(policy.spaces)
    network.load_state_dict(torch.load(run_dir / "checkpoints" / "agent_0.pt")["network"])
    rng = np.random.default_rng(0)
    different = set()
    for step in range(60):
        obs = rng.integers(0, 6, space.shape).astype(space.dtype)
        if begins := step % 10 == 0:
            policy.reset()
            stack = [obs] * 3
        stack = [*stack[1:], obs]
        expected = int(network(torch.from_numpy(np.stack(stack)[None])).argmax())
        chosen = player.choose(np.stack([obs, obs]), slice(None), np.full(2, begins)).action
        assert policy.act(obs) == expected == chosen[0] == chosen[1]
        different.add(expected)
    assert len(different) > 1


@pytest.mark.parametrize("mask_in", ["observation", pytest.param("info", marks=pytest.mark.long)])
def test_a_loaded_policy_respects_masks(tmp_path: Path, mask_in: str) -> None:
    policy = mc.load_policy(train(tmp_path / "run", partial(Counting, mask_in=mask_in)), "agent_0")
    env = Counting(mask_in=mask_in)  # refuses masked actions
    obs, info = env.reset(seed=0)
    for _ in range(200):
        action = policy.act(obs) if mask_in == "observation" else policy.act(obs, info["action_mask"])
        obs, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            obs, info = env.reset()
            policy.reset()
    env.reset()
    with pytest.raises(ValueError, match="action_mask: expected 5 booleans, got None"):
        policy.act(env.seen)


@pytest.mark.parametrize("name", ["nobody", "agent_9"])
def test_unknown_policies_and_checkpoints_are_named(tmp_path: Path, name: str) -> None:
    run_dir = train(tmp_path / "run", HUNT, total_steps=300)
    for wrong, message in (
        (partial(mc.load_policy, run_dir, name), f"policy: expected one of ['agent_0', 'agent_1'], got '{name}'"),
        (partial(mc.load_policy, run_dir, "agent_0", which="worst"), "which: expected"),
        (partial(mc.load_policy, run_dir, "agent_0", which="best"), "which: expected"),
        (partial(mc.load_policy, tmp_path / "nothing", "agent_0"), "run_dir: expected a run's directory"),
    ):
        with pytest.raises(ValueError) as caught:
            wrong()
        assert message in str(caught.value) and "\n" not in str(caught.value)


def test_connect_fours_own_observation_is_taken(tmp_path: Path) -> None:
    pytest.importorskip("pygame", reason="Connect Four needs it")
    name = NamedEnvironment("pettingzoo:classic.connect_four_v3")
    run_dir = train(tmp_path / "run", name, total_steps=600)
    policies = {agent: mc.load_policy(run_dir, agent) for agent in ("player_0", "player_1")}
    env = name()
    for seed in range(5):
        env.reset(seed=seed)
        for policy in policies.values():
            policy.reset()
        for agent in env.agent_iter():
            obs, _, terminated, truncated, _ = env.last()
            action = None if terminated or truncated else policies[agent].act(obs)
            assert action is None or obs["action_mask"][action]
            env.step(action)
    env.close()
