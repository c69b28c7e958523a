"""Which agents act by which policy: shared replays, algorithms side by side, many policies in a few processes."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crowd import Crowd, Relay
from hunt import HUNT
from recorded import check_rows, read_records, read_replay, recorded
from whole_runs import LONG, MODES, Runs, checkpoint, metrics_of

import marlcore as mc
from marlcore.__main__ import main
from marlcore.envs import TreasureHunt
from marlcore.processes import BEATS
from marlcore.run import roles

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

HUNT3 = partial(TreasureHunt, **{**HUNT.keywords, "agents": 3})
AGENTS = ("agent_0", "agent_1", "agent_2")
ONE = dict.fromkeys(AGENTS, "hunter")
runs = Runs(mode="async", total_steps=900, learner={"n_step": 1}, updates_per_step=0.2, updates_tolerance=4)


def due(config: mc.Config, agents: int, sharing: int = 1) -> float:
    """Updates that updates_per_step asks of a policy of `sharing` of the agents."""
    assert config.updates_per_step is not None
    steps = config.total_steps * sharing / agents - config.learner_of("").warmup
    return config.updates_per_step * steps


@MODES
def test_a_shared_policys_replay_has_the_rows_of_all_its_agents(tmp_path: Path, mode: str) -> None:
    records = tmp_path / "records"
    policies = dict.fromkeys("abc", "relay")
    result = runs.train(
        tmp_path, lambda: recorded(Relay(), records), mode=mode, policies=policies, replay=mc.ReplayConfig(save=True)
    )
    assert result.updates.keys() == {"relay"} and result.updates["relay"] > 0
    assert [path.name for path in (result.run_dir / "checkpoints").glob("*.pt")] == ["relay.pt"]
    spaces = mc.load_policy(result.run_dir, "relay").spaces
    lanes = read_replay(result.run_dir / "checkpoints" / "relay.replay", spaces)
    recorded_rows = read_records(records)
    assert len(lanes) == len(recorded_rows) == 6
    compared = sum(
        check_rows(lanes[2 * i + copy], recorded_rows[copy, agent]) for i, agent in enumerate("abc") for copy in (0, 1)
    )
    assert result.steps - 12 <= compared <= result.steps
    assert result.returns.keys() == {"a", "b", "c"}


@MODES
def test_policies_differ_in_algorithm_and_settings(tmp_path: Path, mode: str) -> None:
    algorithms = {
        "agent_0": mc.DQN(hidden=(16, 8)),
        "agent_1": mc.IQN(hidden=(24, 12)),
        "agent_2": mc.DQN(learning_rate=1e-3, dueling=False, hidden=(32, 16)),
    }
    learner = runs.config.learner
    learners = {
        "agent_0": replace(learner, n_step=3, gamma=0.9),
        "agent_1": replace(learner, batch_size=32, warmup=100, publish_mode="triple_buffer"),
        "agent_2": replace(learner, obs_norm="running"),
    }
    own = {
        "learners": learners,
        "replays": {"agent_1": mc.ReplayConfig(capacity=200, prioritized=True, save=True)},
        "explorations": {"agent_2": mc.ExplorationConfig(epsilon=0.25)},
        "ratios": {"agent_2": 0.4},
    }
    result = runs.train(tmp_path, HUNT3, algorithms, mode=mode, **own)
    counts = [0.2 * 250, 0.2 * 200, 0.4 * 250]  # agent_1 began later
    assert [result.updates[agent] for agent in AGENTS] == [pytest.approx(count, abs=4) for count in counts]
    logged = {(metric.agent, metric.name): metric.value for metric in metrics_of(result.run_dir)}
    assert logged["agent_0", "rows"] > 250 > 200 >= logged["agent_1", "rows"]
    assert logged["agent_2", "epsilon"] == 0.25 < logged["agent_0", "epsilon"]
    assert "agent_1.replay" not in {path.name for path in (result.run_dir / "checkpoints").iterdir()}, "as the run says"
    for agent, algorithm in algorithms.items():
        state = checkpoint(result.run_dir, agent)
        untrained = algorithm.make_model(mc.load_policy(result.run_dir, agent).spaces)
        assert state["network"].keys() == untrained.state_dict().keys()
        assert (state["norm"] is None) == (agent != "agent_2")
        policy = mc.load_policy(result.run_dir, agent)
        assert policy.act(policy.spaces.observation.sample()) in range(4)
    resumed = runs.train(tmp_path, HUNT3, algorithms, mode=mode, **own, total_steps=1_500, resume=True)
    assert all(resumed.updates[agent] > result.updates[agent] for agent in AGENTS)


@LONG
@pytest.mark.parametrize("policies", [None, ONE], ids=["own", "shared"])
def test_async_makes_the_updates_of_serial(tmp_path: Path, policies: Any) -> None:
    config = replace(runs.config, total_steps=9_000, policies=policies)
    train = partial(runs.train, env_fn=HUNT3, total_steps=9_000, policies=policies)
    made = {mode: train(tmp_path / mode, mode=mode).updates for mode in ("serial", "async")}
    expected = due(config, 3, 3 if policies else 1)
    for policy, serial in made["serial"].items():
        assert made["async"][policy] == pytest.approx(serial, rel=0.01)
        assert expected * 0.99 <= made["async"][policy] <= expected + 1, "the learner leads, or is late"


@LONG
def test_a_hundred_policies_train_in_four_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = runs.configured(
        tmp_path, total_steps=60_000, exploration=mc.ExplorationConfig(epsilon=0.1),
        learner={"processes": 4, "gamma": 0.0},
    )  # fmt: skip
    names = {f"agent_{i}" for i in range(100)}
    with mc.start(Crowd, mc.DQN(hidden=(16, 16), learning_rate=1e-2), config) as run:
        shown = ""
        while run.status().running and "running" not in shown:
            main(["top", str(tmp_path / "run"), "--once"])
            shown = capsys.readouterr().out
        result = run.wait()
        status = run.status()
    assert "learner-3" in shown and "running" in shown
    assert result.updates.keys() == status.updates.keys() == names
    expected = due(config, 100)
    assert all(expected * 0.98 <= count <= expected + 1 for count in result.updates.values()), result.updates
    assert status.returns.keys() == names
    assert {metric.agent for metric in metrics_of(result.run_dir) if metric.name == "loss"} == names
    assert len(list((tmp_path / "run" / "logs").iterdir())) == 5
    assert sum(result.returns.values()) / 100 > 14, "20 is perfect, 10 is chance"


def test_a_policy_is_found_by_its_own_name_first(tmp_path: Path) -> None:
    names = {"agent_0": "agent_1", "agent_1": "agent_0"}
    algorithms = {"agent_0": mc.DQN(hidden=(8, 8)), "agent_1": mc.DQN(hidden=(9, 9))}
    run = runs.train(tmp_path, HUNT, algorithms, mode="serial", total_steps=200, policies=names).run_dir
    for name, units in (("agent_0", 8), ("agent_1", 9)):
        policy: Any = mc.load_policy(run, name)
        assert units in {tensor.shape[0] for tensor in policy._model.parameters()}


def test_workers_beat_for_each_policy_that_they_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a worker of a thousand policies would be killed as hung while it builds them."""
    beats = {}
    for kind in (roles.ActorRole, roles.LearnerRole):

        def build(worker: Any, original: Any = kind.build) -> None:
            before = worker.counters.load(BEATS)
            original(worker)
            beats[worker.name] = worker.counters.load(BEATS) - before

        monkeypatch.setattr(kind, "build", build)
    runs.train(tmp_path, HUNT3, "dqn", mode="serial", total_steps=30, learner={"processes": 1})
    assert beats["actor-0"] >= 3
    assert beats["learner-0"] >= 3
