"""Runs whose learners read a queue: they learn, share a run with others, outlive kills, and refuse what has no use."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from odd_spaces import Counting

import marlcore as mc
from marlcore.algos import PPO, find
from marlcore.envs import TreasureHunt
from marlcore.processes import PID
from marlcore.spaces import Spaces
from marlcore.training import read_metrics
from marlcore.training.config import check_applied
from marlcore.training.config.policies import assign

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

CARTPOLE = "gymnasium:CartPole-v1"
HUNT = partial(TreasureHunt, agents=3, size=6, horizon=25, gems=3, food=1, bones=3)
SMALL = mc.PPO(hidden=(16,), batch_size=64, minibatch_size=32, epochs=2)
CONFIG = mc.Config(
    total_steps=1_500,
    actor=mc.ActorConfig(envs=2),
    learner=mc.LearnerConfig(log_interval=4, device="cpu"),
    supervision=mc.SupervisionConfig(backoff=0.0),
)


def train(env_fn: Any, algorithm: Any, run_dir: Path, **changes: Any) -> mc.Result:
    return mc.train(env_fn, algorithm, replace(CONFIG, run_dir=str(run_dir), **changes), progress=False)


def values(result: mc.Result, name: str) -> list[float]:
    return [one.value for one in read_metrics(result.run_dir / "metrics.csv") if one.name == name]


def network(result: mc.Result, policy: str = "agent_0") -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(result.run_dir / "checkpoints" / f"{policy}.pt")["network"]
    return found


@pytest.mark.parametrize("mode", ["serial", pytest.param("async", marks=pytest.mark.long)])
def test_a_run_reads_each_transition_once(tmp_path: Path, mode: str) -> None:
    """Every whole batch of its steps makes the updates of its epochs; what is left at the end is less than a batch."""
    result = train(CARTPOLE, SMALL, tmp_path / "run", mode=mode)
    batches = result.steps // 64
    assert result.updates["agent_0"] in (4 * batches, 4 * (batches - 1))
    assert set(values(result, "learning_rate")) == {3e-4} and values(result, "approx_kl")
    policy = mc.load_policy(result.run_dir, "agent_0")
    assert policy.act(policy.spaces.observation.sample()) in (0, 1)


def test_in_serial_mode_a_batch_is_of_the_newest_weights(tmp_path: Path) -> None:
    """But for what the copies' last round left over: each one's newest transition, and any beyond the batch."""
    result = train(CARTPOLE, SMALL, tmp_path / "run", mode="serial")
    lags = values(result, "policy_lag")
    assert len(lags) > 10
    assert all(1 <= lag <= 1 + 3 / 64 + 1e-6 for lag in lags), "after the update, what it trained on is one behind"


def test_serial_runs_repeat_under_a_seed(tmp_path: Path) -> None:
    first, second, other = (
        train(CARTPOLE, SMALL, tmp_path / str(i), mode="serial", total_steps=600, seed=seed)
        for i, seed in enumerate((1, 1, 2))
    )
    assert all(torch.equal(one, network(second)[name]) for name, one in network(first).items())
    assert not torch.equal(network(first)["acting.head.weight"], network(other)["acting.head.weight"])


def test_schedules_follow_the_runs_steps(tmp_path: Path) -> None:
    scheduled = replace(SMALL, learning_rate="linear(1e-3, 0, 1500)", entropy_coefficient="linear(0.1, 0, 750)")
    result = train(CARTPOLE, scheduled, tmp_path / "run", mode="serial")
    rates, bonuses = values(result, "learning_rate"), values(result, "entropy_coefficient")
    assert rates == sorted(rates, reverse=True) and rates[0] > 8e-4 and rates[-1] < 1e-4
    assert bonuses[-1] == 0.0 < bonuses[0]
    with pytest.raises(ValueError, match=r"^learning_rate: expected a number or one of [^\n]+ got 'slowly'$"):
        train(CARTPOLE, replace(SMALL, learning_rate="slowly"), tmp_path / "other", mode="serial")


def test_agents_share_a_queue_and_others_have_a_replay(tmp_path: Path) -> None:
    policies = {"agent_0": "both", "agent_1": "both", "agent_2": "apart"}
    learners = {"both": mc.LearnerConfig(log_interval=4, device="cpu")}
    result = train(
        HUNT, {"both": SMALL, "apart": mc.DQN(hidden=(16, 8))}, tmp_path / "run", mode="serial", policies=policies,
        learners=learners, learner=replace(CONFIG.learner, batch_size=16, warmup=50),
    )  # fmt: skip
    assert result.updates["both"] >= 4 * (result.steps * 2 // 3 // 64 - 1)
    assert result.updates["apart"] == pytest.approx(0.1 * (result.steps / 3 - 50), abs=3)
    resumed = mc.train(
        HUNT, {"both": SMALL, "apart": mc.DQN(hidden=(16, 8))}, progress=False, resume=result.run_dir,
        config=replace(
            CONFIG, mode="serial", policies=policies, learners=learners, total_steps=2_500,
            learner=replace(CONFIG.learner, batch_size=16, warmup=50),
        ),
    )  # fmt: skip
    assert all(resumed.updates[name] > count for name, count in result.updates.items())


@pytest.mark.parametrize("mask", [pytest.param(None, marks=pytest.mark.long), "info"])
@pytest.mark.parametrize("space", [MultiDiscrete([3, 2]), MultiBinary(3), Box(-2, 2, (2,), np.float32)], ids=str)
def test_every_kind_of_space_is_learned(tmp_path: Path, space: Any, mask: str | None) -> None:
    """Counting checks each action, and that masks are kept."""
    if mask and not isinstance(space, MultiDiscrete):
        mask, space = "observation", None
    result = train(partial(Counting, space, mask), SMALL, tmp_path / "run", mode="serial", total_steps=300)
    assert result.updates["agent_0"] > 0


@pytest.mark.long
def test_actors_stay_a_batch_ahead_of_a_slow_learner(tmp_path: Path) -> None:
    """Transitions wait for one update at most: they are of the weights before the newest ones."""
    slow = replace(SMALL, batch_size=256, minibatch_size=16, epochs=20)
    result = train(CARTPOLE, slow, tmp_path / "run", total_steps=12_000, actor=mc.ActorConfig(processes=2, envs=2))
    lags = values(result, "policy_lag_p99")
    assert len(lags) > 5 and max(lags[2:]) <= 3


@pytest.mark.long
@pytest.mark.parametrize("role", ["learner-agent_0", "actor-0", "actor-1"])
def test_a_killed_worker_is_replaced_and_the_run_ends_well(tmp_path: Path, role: str) -> None:
    config = replace(
        CONFIG, run_dir=str(tmp_path / "run"), total_steps=20_000, actor=mc.ActorConfig(processes=2, envs=2),
        supervision=mc.SupervisionConfig(backoff=0.0, max_restarts=10),
    )  # fmt: skip
    kills = 0
    with mc.start(CARTPOLE, SMALL, config) as run:
        while run.status().running and kills < 2:
            before = run.status().updates["agent_0"]
            deadline = time.monotonic() + 600
            while run.status().running and run.status().updates["agent_0"] < before + 40:
                assert time.monotonic() < deadline, "the run stalls"
                time.sleep(0.05)
            pid = run._session.control.notes[role].load(PID)
            if pid:
                os.kill(pid, signal.SIGKILL)
                kills += 1
        result = run.wait(timeout=1800)
    assert kills and result.restarts[role] >= 1
    assert result.steps >= 20_000 and result.updates["agent_0"] > 4 * 0.8 * 20_000 / 64


@pytest.mark.long
def test_a_run_ends_while_its_actors_wait(tmp_path: Path) -> None:
    """Its learner is stopped dead, so that the queue stays full."""
    config = replace(CONFIG, run_dir=str(tmp_path / "run"), total_steps=10**9)
    with mc.start(CARTPOLE, SMALL, config) as run:
        while run.status().updates["agent_0"] < 40:
            time.sleep(0.05)
        learner = run._session.control.notes["learner-agent_0"].load(PID)
        os.kill(learner, signal.SIGSTOP)
        while Path(f"/proc/{learner}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        control = run._session.control
        steps = control.steps
        with mc.TrajectoryQueue.attach(run._session.blueprint.policies[0].transitions) as queue:
            room = queue.capacity  # all of it, if the learner was stopped while it waited for more
        time.sleep(1.5)  # in which actors that do not wait take thousands
        assert control.steps - steps <= room + 8, f"{room} rows hold what actors add without a learner"
        os.kill(learner, signal.SIGCONT)
        run.stop()
        run.wait(timeout=1800)


@pytest.mark.long
def test_a_resumed_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    first = train(CARTPOLE, SMALL, tmp_path / "run")
    before = torch.load(first.run_dir / "checkpoints" / "agent_0.pt")
    resumed = mc.train(CARTPOLE, SMALL, replace(CONFIG, total_steps=4_000), progress=False, resume=first.run_dir)
    after = torch.load(first.run_dir / "checkpoints" / "agent_0.pt")
    assert resumed.steps >= 4_000 and after["updates"] > before["updates"] == first.updates["agent_0"]
    (count,) = {int(moments["step"]) for moments in after["trainer"]["optimizer"]["state"].values()}
    assert count == after["updates"]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["serial", "async"])
def test_ppo_learns_cartpole(tmp_path: Path, mode: str) -> None:
    result = train(
        CARTPOLE, mc.PPO(batch_size=512, learning_rate=1e-3), tmp_path / "run", mode=mode, total_steps=20_000,
        actor=mc.ActorConfig(envs=4),
    )  # fmt: skip
    assert result.returns["agent_0"] > 120, "random play returns 23"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"updates_per_step": 0.5}, "updates_per_step: expected the default 0.1, since PPO, the algorithm of 'a', "),
        ({"replay": mc.ReplayConfig(capacity=5000)}, "replay.capacity: expected the default 100000, since PPO, "),
        ({"replay": mc.ReplayConfig(prioritized=True)}, "replay.prioritized: expected the default False, since PPO, "),
        ({"learner": mc.LearnerConfig(warmup=10)}, "learner.warmup: expected the default 500, since PPO, "),
        ({"learner": mc.LearnerConfig(prefetch=1)}, "learner.prefetch: expected the default 0, since PPO, "),
        ({"learners": {"a": mc.LearnerConfig(batch_size=9)}}, "learner.batch_size: expected the default 64, since PPO"),
        ({"exploration": mc.ExplorationConfig(0.5)}, "exploration.epsilon: expected the default None, since PPO, "),
        ({"exploration": mc.ExplorationConfig(ladder=7)}, "exploration.ladder: expected the default 0.0, since PPO, "),
    ],
)
def test_a_setting_without_use_is_refused_in_one_line(changes: Any, message: str) -> None:
    spaces = Spaces(Box(-1, 1, (3,)), Discrete(2))
    config = replace(mc.Config(), **changes)
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}[^\n]*$"):
        check_applied(assign({"a": spaces}, None, "ppo", 1), config)
    if changes.keys() & {"replay", "updates_per_step", "exploration"}:  # another policy has a replay
        check_applied(assign({"a": spaces, "b": spaces}, None, {"a": "ppo", "b": "dqn"}, 1), config)


def test_settings_that_apply_are_accepted() -> None:
    spaces = Spaces(Box(-1, 1, (3,)), Discrete(2))
    config = mc.Config(
        learner=mc.LearnerConfig(gamma=0.9, obs_norm="running", log_interval=3), replay=mc.ReplayConfig(stack=2)
    )
    check_applied(assign({"a": spaces}, None, "ppo", 1), config)
    assert find("ppo") is PPO


def test_an_on_policy_algorithm_may_name_an_epsilon_of_its_own() -> None:
    class Greedy(mc.PPO):
        def schedules(self) -> Any:
            return {**super().schedules(), "epsilon": 0.1}

    config = mc.Config(exploration=mc.ExplorationConfig(epsilon=0.5, ladder=7))
    check_applied(assign({"a": Spaces(Box(-1, 1, (3,)), Discrete(2))}, None, Greedy(), 1), config)


def test_an_epsilon_and_its_ladder_are_of_policies_that_have_one(tmp_path: Path) -> None:
    policies = {"agent_0": "drawn", "agent_1": "greedy", "agent_2": "greedy"}
    ladder = mc.ExplorationConfig(ladder=7.0)
    algorithms = {"drawn": SMALL, "greedy": "dqn"}
    result = train(HUNT, algorithms, tmp_path / "run", mode="serial", policies=policies, exploration=ladder)
    metrics = read_metrics(result.run_dir / "metrics.csv")
    assert {one.agent for one in metrics if one.name == "epsilon"} == {"greedy"}
    assert min(result.updates.values()) > 0


def test_a_source_of_another_kind_is_refused(tmp_path: Path) -> None:
    class Odd(mc.PPO):
        def source(self, chosen: Any) -> Any:
            return "queue"

    with pytest.raises(TypeError, match=r"^source of agent_0: expected a ReplaySource or a QueueSource, got 'queue'$"):
        train(CARTPOLE, Odd(), tmp_path / "run")


def test_a_run_shorter_than_a_batch_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(CARTPOLE, mc.PPO(), tmp_path / "run", mode="serial", total_steps=50)
    assert "the algorithm's batch_size: agent_0 takes 50 of the 50 steps, and learns only after 2048" in caplog.text


SPREAD = "pettingzoo-parallel:mpe2.simple_spread_v3"
SPREAD_AGENTS = ("agent_0", "agent_1", "agent_2")


def test_mappo_trains_and_its_policies_act_on_their_own(tmp_path: Path) -> None:
    """One policy has a centralized critic, the other none: only the first one's rows hold joint observations."""
    policies = dict(zip(SPREAD_AGENTS, ("both", "both", "apart"), strict=True))
    central = mc.MAPPO(hidden=(16,), batch_size=64, minibatch_size=32, epochs=2)
    result = train(
        SPREAD, {"both": central, "apart": SMALL}, tmp_path / "run", mode="serial", total_steps=900, policies=policies
    )
    assert result.updates["both"] >= 4 * 7 and result.updates["apart"] >= 4 * 3
    weights = network(result, "both")
    assert weights["critic.torso.dense.layers.0.weight"].shape == (16, 18 + 54)
    assert weights["acting.torso.dense.layers.0.weight"].shape == (16, 18)
    assert network(result, "apart")["critic.torso.dense.layers.0.weight"].shape == (16, 18)
    policy = mc.load_policy(result.run_dir, "agent_0")
    assert policy.act(np.zeros(18, np.float32)) in range(5), "without a joint observation"
    assert mc.evaluate(result.run_dir, 2).mean.keys() == set(SPREAD_AGENTS)
    resumed = mc.train(
        SPREAD, {"both": central, "apart": SMALL}, replace(CONFIG, mode="serial", policies=policies, total_steps=1_800),
        progress=False, resume=result.run_dir,
    )  # fmt: skip
    assert resumed.updates["both"] > result.updates["both"]


def test_mappo_refuses_other_environments_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^joint observations: expected a PettingZoo Parallel environment[^\n]+$"):
        train(CARTPOLE, "mappo", tmp_path / "run")
