"""Runs whose learners read a queue: they learn, share a run with others, outlive kills, and refuse what has no use."""

import logging
import os
import re
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from crowd import Battle, Crowd
from gymnasium.spaces import Box, MultiBinary, MultiDiscrete
from hunt import HUNT
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from metric_names import unexplained
from odd_spaces import Counting
from processes import state, until
from whole_runs import LONG, MODES, ON_POLICY, Runs, checkpoint, config_of, metrics_of, past, pid_of, values_of

import marlcore as mc
from marlcore.declared import flattened
from marlcore.envs import TreasureHunt
from marlcore.run import Launch

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

CARTPOLE = "gymnasium:CartPole-v1"
AGENTS = ("agent_0", "agent_1", "agent_2")
HUNT3 = partial(TreasureHunt, **{**HUNT.keywords, "agents": 3})
SMALL = mc.PPO(hidden=(16,), batch_size=64, minibatch_size=32, epochs=2)
runs = Runs(mode="async", **ON_POLICY)
train, start = runs.train, runs.start


@MODES
def test_a_run_reads_each_transition_once(tmp_path: Path, mode: str) -> None:
    """Every whole batch is trained on for all epochs; an incomplete last batch is never read."""
    result = train(tmp_path, CARTPOLE, SMALL, mode=mode, total_steps=15 * 64)
    assert result.updates["agent_0"] == 4 * (result.steps // 64)
    assert set(values_of(result.run_dir, "learning_rate")) == {1e-3} and unexplained(result.run_dir) == []
    policy = mc.load_policy(result.run_dir, "agent_0")
    assert policy.act(policy.spaces.observation.sample()) in (0, 1)


def fight(folder: Path, lives: list[int], batch_size: int, **settings: Any) -> mc.Result:
    """A run of agents that share a policy and die in these rounds; it makes one update of each batch."""
    algorithm = mc.PPO(hidden=(4,), batch_size=batch_size, minibatch_size=batch_size, epochs=1)
    config = {"mode": "serial", "total_steps": 400, "policies": lambda agent: "all"} | settings
    return train(folder, partial(Battle, lives), algorithm, **config)


@pytest.mark.parametrize("mode", [pytest.param("serial"), pytest.param("async", marks=LONG)])
@settings(
    max_examples=1, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@example(lives=[99, *[5] * 9], batch_size=128, copies=2, actors=1)  # as in a battle: one survivor fills its lanes alone
@example(lives=[99, 5], batch_size=150, copies=1, actors=3)  # actors that are done leave the last one alone
@given(
    lives=st.lists(st.integers(1, 50), min_size=1, max_size=9),
    batch_size=st.integers(2, 200), copies=st.integers(1, 4), actors=st.integers(1, 3),
)  # fmt: skip
def test_every_whole_batch_is_read_whoever_dies(
    mode: str, lives: list[int], batch_size: int, copies: int, actors: int
) -> None:
    actor = mc.ActorConfig(envs=copies, processes=actors)
    with TemporaryDirectory() as folder:
        result = fight(Path(folder), lives, batch_size, mode=mode, actor=actor)
    assert result.steps >= 400 and result.updates["all"] == result.steps // batch_size


@LONG
@pytest.mark.parametrize("mode", ["serial", "async"])
@pytest.mark.parametrize("kind", [mc.RecurrentPPO, mc.MAPPO, mc.HAPPO, mc.COMA])
def test_other_on_policy_algorithms_outlive_their_agents_too(tmp_path: Path, kind: Any, mode: str) -> None:
    policies = None if kind is mc.COMA else lambda agent: "all"  # which trains a team
    hyper = kind(batch_size=128, minibatch_size=32, epochs=1)
    result = train(tmp_path, partial(Battle, [99, *[5] * 9]), hyper, mode=mode, policies=policies, total_steps=1_300)
    assert sum(result.updates.values()) >= 10 * 4


@pytest.mark.parametrize("looks", [True, False], ids=["an error", "a stop"])
def test_a_deadlocked_queue_ends_the_run_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: bool) -> None:
    """Forced: the reader overlooks full lanes and, in the second case, does not count its looks."""
    monkeypatch.setattr("marlcore.queue.cursor.ReadCursor.crowded", lambda cursor, committed: committed < 0)
    if looks:
        with pytest.raises(
            mc.WorkerFailed, match=r"^actor-0 failed: .*lane \d+ waits for room for \d rows, but.*$"
        ) as it:
            fight(tmp_path, [99, *[5] * 9], 128)
        assert it.value.reason == "deadlock"
        return
    monkeypatch.setattr("marlcore.queue.cursor.ReadCursor.count_look", lambda cursor: None)
    with start(tmp_path, partial(Battle, [99, *[5] * 9]), SMALL, mode="serial", policies=lambda agent: "all") as run:
        past(run, 64)
        run.stop()
        assert run.wait(timeout=600).steps < runs.config.total_steps


def test_in_serial_mode_a_batch_is_of_the_newest_weights(tmp_path: Path) -> None:
    """A batch lags by one version, plus the few rows that the round before left unread."""
    result = train(tmp_path, CARTPOLE, SMALL, mode="serial")
    lags = values_of(result.run_dir, "policy_lag")
    assert len(lags) == 600 // 64
    assert all(1 <= lag <= 1 + 3 / 64 + 1e-6 for lag in lags), "after the update, what it trained on is one behind"
    assert set(values_of(result.run_dir, "rows")) <= {1, 2, 3}, "unread"


def test_schedules_follow_the_runs_steps(tmp_path: Path) -> None:
    scheduled = replace(SMALL, learning_rate="linear(1e-3, 0, 600)", entropy_coefficient="linear(0.1, 0, 300)")
    result = train(tmp_path, CARTPOLE, scheduled, mode="serial")
    rates, bonuses = values_of(result.run_dir, "learning_rate"), values_of(result.run_dir, "entropy_coefficient")
    assert rates == sorted(rates, reverse=True) and rates[0] > 8e-4 and rates[-1] < 1e-4
    assert bonuses[-1] == 0.0 < bonuses[0]


def test_agents_share_a_queue_and_others_have_a_replay(tmp_path: Path) -> None:
    """Settings of a replay, of updates and of epsilon apply to off-policy policies alone."""
    algorithms = {"both": SMALL, "apart": mc.DQN(hidden=(16, 8))}
    settings = {
        "mode": "serial",
        "policies": {"agent_0": "both", "agent_1": "both", "agent_2": "apart"},
        "learners": {"both": runs.config.learner},
        "learner": {"batch_size": 16, "warmup": 50},
        "replay": mc.ReplayConfig(capacity=5_000, prioritized=True),
        "updates_per_step": 0.2,
        "exploration": mc.ExplorationConfig(0.5, ladder=7.0),
    }
    result = train(tmp_path, HUNT3, algorithms, **settings)
    assert result.updates["both"] >= 4 * (result.steps * 2 // 3 // 64 - 1)
    assert result.updates["apart"] == pytest.approx(0.2 * (result.steps / 3 - 50), abs=3)
    assert {metric.agent for metric in metrics_of(result.run_dir) if metric.name == "epsilon"} == {"apart"}
    resumed = train(tmp_path, HUNT3, algorithms, resume=True, **{**settings, "total_steps": 900})
    assert all(resumed.updates[name] > count for name, count in result.updates.items())


@pytest.mark.parametrize("mask", [pytest.param(None, marks=LONG), "info"])
@pytest.mark.parametrize("space", [MultiDiscrete([3, 2]), MultiBinary(3), Box(-2, 2, (2,), np.float32)], ids=str)
def test_every_kind_of_space_is_learned(tmp_path: Path, space: Any, mask: str | None) -> None:
    """The environment checks every action and every mask."""
    if mask and not isinstance(space, MultiDiscrete):
        mask, space = "observation", None
    result = train(tmp_path, partial(Counting, space, mask), SMALL, mode="serial", total_steps=300)
    assert result.updates["agent_0"] > 0


@LONG
def test_actors_stay_a_batch_ahead_of_a_slow_learner(tmp_path: Path) -> None:
    """A batch is unread while the learner trains. While it waits for rows, writers may fill two batches more.

    So a row is read in one of the next three batches. Few rows of a batch may be older, however workers are scheduled:
    those whose actor stood still between its pull and its add.
    """
    batch, lanes = 256, 4
    slow = replace(SMALL, batch_size=batch, minibatch_size=16, epochs=20)
    result = train(tmp_path, CARTPOLE, slow, total_steps=8_000, actor=mc.ActorConfig(processes=2, envs=2))
    lags = values_of(result.run_dir, "policy_lag_p50")
    assert len(lags) > 20 and max(lags) <= 3
    assert max(values_of(result.run_dir, "rows")) < 2 * batch + 5 * lanes, "left after a batch of all of these"


@LONG
def test_a_run_ends_while_its_actors_wait(tmp_path: Path) -> None:
    """Its learner is stopped dead, so that the queue stays full."""
    with start(tmp_path, CARTPOLE, SMALL, total_steps=10**9) as run:
        until(lambda: run.status().updates["agent_0"] >= 40)
        learner = pid_of(run, "learner-agent_0")
        os.kill(learner, signal.SIGSTOP)
        until(lambda: state(learner) == "T")
        control = run._session.control
        steps = control.steps
        with mc.TrajectoryQueue.attach(next(iter(run._session.memory.transitions.values()))) as queue:
            room = queue.capacity  # all of it, if the learner was stopped while it waited for more
        time.sleep(1.5)  # in which actors that do not wait take thousands
        assert control.steps - steps <= room + 8, f"{room} rows hold what actors add without a learner"
        os.kill(learner, signal.SIGCONT)
        run.stop()
        run.wait(timeout=1800)


@LONG
@pytest.mark.parametrize("mode", ["serial", "async"])
def test_ppo_learns_cartpole(tmp_path: Path, mode: str) -> None:
    result = train(
        tmp_path, CARTPOLE, mc.PPO(batch_size=512, learning_rate=1e-3), mode=mode, total_steps=20_000,
        actor=mc.ActorConfig(envs=4),
    )  # fmt: skip
    returns = values_of(result.run_dir, "episode_return")
    best = np.convolve(returns, np.ones(20) / 20, "valid").max()
    assert best > 120, "the best mean of 20 episodes in a row; 30 without learning, at least 184 in twenty runs with it"
    assert result.returns["agent_0"] > 50, "random play returns 23; at least 99 in forty runs"


class Greedy(mc.PPO):
    def schedules(self) -> Any:
        return {**super().schedules(), "epsilon": 0.1}


WITHOUT_USE = {
    "updates_per_step": 0.5,
    "replay": {"capacity": 2, "prioritized": True, "hindsight": "future", "mixture": {"pool": 1.0}, "save": True},
    "learner": {"warmup": 10, "prefetch": 1, "batch_size": 9},
    "actor": {"sync_interval": 10, "max_policy_lag": 5},
    "exploration": {"epsilon": 0.5, "ladder": 7},
}
STACKED = {"replays": {"agent_0": mc.ReplayConfig(stack=2)}, "learner": {"warmup": 20}}
R2D2 = {"learner": {"n_step": 4, "warmup": 20}, "replay": {"hindsight": "future"}}
OWN = {"learner": {"n_step": 2, "warmup": 20, "reward_norm": "running"}}
OF_USE = {"learner": {"gamma": 0.9, "obs_norm": "running"}, "replay": {"stack": 2}}
SECTIONS = {
    "learner": {"warmup": 10},
    "learners": {"agent_0": mc.LearnerConfig(batch_size=9)},
    "replays": {"agent_0": mc.ReplayConfig(capacity=2)},
    "explorations": {"agent_0": mc.ExplorationConfig(ladder=7)},
    "ratios": {"agent_0": None},
}
OF_AGENT_0 = [f"{name}.agent_0" for name in ("explorations", "learners", "replays", "ratios")]
OF_AGENT_0 = [name + last for name, last in zip(OF_AGENT_0, (".ladder", ".batch_size", ".capacity", ""), strict=True)]
TOLD: dict[str, tuple[Any, Any, dict[str, Any], Any]] = {
    "ppo": (CARTPOLE, SMALL, WITHOUT_USE, dict(flattened(WITHOUT_USE, mc.Config))),
    "r2d2": ("recall", mc.R2D2(units=6), R2D2, ["learner.n_step", "replay.hindsight"]),
    "own rewards": (partial(Crowd, 2), mc.MATD3(rewards="own"), OWN, ["learner.n_step", "learner.reward_norm"]),
    "a dqn beside": (HUNT3, dict.fromkeys(AGENTS, SMALL) | {"agent_2": mc.DQN()}, WITHOUT_USE | {"replay": {}}, []),
    "its sections": (HUNT3, dict.fromkeys(AGENTS, SMALL) | {"agent_2": mc.DQN()}, SECTIONS, OF_AGENT_0),
    "of the run": (HUNT3, mc.DQN(), STACKED, ["replays.agent_0.stack"]),
    "of use": (CARTPOLE, SMALL, OF_USE, []),
    "an own epsilon": (CARTPOLE, Greedy(**vars(SMALL)), {"exploration": {"epsilon": 0.5, "ladder": 7}}, []),
}


@pytest.mark.parametrize("case", TOLD)
def test_settings_without_use_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, case: str) -> None:
    """One configuration serves all algorithms: a setting is reported only if no policy uses it."""
    env_fn, algorithm, settings, names = TOLD[case]
    caplog.set_level(logging.INFO)
    result = train(tmp_path, env_fn, algorithm, mode="serial", total_steps=300, **settings)
    assert all(result.updates.values())
    since = r"(?:\w+, the algorithm of '\w+', |all policies have replay\.stack)"
    told = re.findall(rf"(\S+): .+ has no effect, since {since}", "\n".join(caplog.messages))
    assert sorted(told) == sorted(names)
    caplog.clear()
    recorded = mc.Config.from_dict(config_of(result.run_dir))
    Launch.checked(env_fn, algorithm, replace(recorded, run_dir=None))
    assert "has no effect" not in caplog.text, "they are recorded with their defaults"


def test_options_of_memory_without_memory_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Launch.checked("gymnasium:Pendulum-v1", mc.TD3(burn_in=5, length=7), mc.Config(total_steps=10))
    told = [message for message in caplog.messages if "has no effect without cell" in message]
    assert [message.partition(":")[0] for message in told] == ["algorithm.length", "algorithm.burn_in"]
    caplog.clear()
    Launch.checked("gymnasium:Pendulum-v1", mc.TD3(cell="gru", burn_in=5, length=7), mc.Config(total_steps=10))
    assert "without cell" not in caplog.text


def test_a_run_shorter_than_a_batch_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path, CARTPOLE, mc.PPO(), mode="serial", total_steps=50)
    assert "the algorithm's batch_size: agent_0 takes 50 of the 50 steps, fewer than the 2048 that" in caplog.text


SPREAD = "pettingzoo-parallel:mpe2.simple_spread_v3"


def test_mappo_trains_and_its_policies_act_on_their_own(tmp_path: Path) -> None:
    """Only the policy with a centralized critic stores joint observations."""
    policies = dict(zip(AGENTS, ("both", "both", "apart"), strict=True))
    central = mc.MAPPO(hidden=(16,), batch_size=64, minibatch_size=32, epochs=2)
    algorithms = {"both": central, "apart": SMALL}
    result = train(tmp_path, SPREAD, algorithms, mode="serial", policies=policies)
    assert result.updates["both"] >= 4 * 5 and result.updates["apart"] >= 4 * 2
    first = "{}.torso.dense.layers.0.weight"
    both, apart = (checkpoint(result.run_dir, name)["network"] for name in ("both", "apart"))
    assert both[first.format("critic")].shape == (16, 18 + 54)
    assert both[first.format("acting")].shape == apart[first.format("critic")].shape == (16, 18)
    policy = mc.load_policy(result.run_dir, "agent_0")
    assert policy.act(np.zeros(18, np.float32)) in range(5), "without a joint observation"
    seen: list[Any] = []
    scripts = dict.fromkeys(("both", "apart"), lambda obs: seen.append(np.shape(obs)) or 0)
    assert mc.evaluate(result.run_dir, 2, policies=scripts).mean.keys() == set(AGENTS)
    assert {*seen} == {(18,)}
    resumed = train(tmp_path, SPREAD, algorithms, mode="serial", total_steps=800, policies=policies, resume=True)
    assert resumed.updates["both"] > result.updates["both"]
