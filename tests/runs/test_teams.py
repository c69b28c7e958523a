"""Whole runs of teams: what they learn, teams beside each other and beside agents, resumption, and self-play."""

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crowd import Crowd, Matching
from refused import check_refused
from two_step_game import train
from whole_runs import LONG, MODES, Runs, checkpoint, updating, values_of

import marlcore as mc

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

FIVE, FOUR = partial(Crowd, 5), partial(Crowd, 4)
MEMORY = {"units": 4, "length": 8, "burn_in": 2, "period": 4}
TEAMS = {"agent_0": "red", "agent_1": "red", "agent_2": "blue", "agent_3": "blue"}
ALGORITHMS = {
    "red": mc.QMIX(hidden=(8, 8), cell="gru", **MEMORY),
    "blue": mc.VDN(hidden=(8,), shared=False),
    "agent_4": mc.DQN(hidden=(8, 8)),
}
PAIRS = {"agent_0": "left", "agent_1": "left", "agent_2": "right", "agent_3": "right"}
PLAY = {"pool": 3, "admit_updates": 8}
OBS = {"members": np.zeros((2, 1), np.float32), "alive": np.ones(2, np.int8)}
runs = Runs(total_steps=400, learner={"n_step": 1, "batch_size": 8}, teams=TEAMS)


@LONG
@pytest.mark.parametrize(("algorithm", "earned"), [(mc.VDN(), 7), (mc.QMIX(), 8)], ids=["vdn", "qmix"])
def test_only_qmix_dares_in_the_two_step_game(tmp_path: Path, algorithm: Any, earned: float) -> None:
    """The game of Rashid et al. 2018: a sum of two agents' values cannot tell that daring pays only together."""
    assert train(algorithm, 2_000, seed=1, run_dir=str(tmp_path / "run")) == earned


ON_POLICY = {"batch_size": 400, "minibatch_size": 200, "learning_rate": 3e-3}
CUED = {"learning_rate": 2e-3, "reward_scale": 1.0}
MOVES = partial(Matching, moves=True)
LEARNERS = [
    (Matching, mc.VDN(**CUED), 2_000),
    (Matching, mc.QMIX(**CUED), 1_500),
    (Matching, mc.QMIX(**CUED, cell="gru", units=16, length=5, burn_in=0, period=5), 1_500),
    (Matching, mc.MATD3(**CUED), 1_800),
    (Matching, mc.MATD3(**CUED, cell="gru", units=16, length=5, burn_in=0, period=5, n_step=1), 1_800),
    (Matching, mc.MADDPG(learning_rate=1e-3, reward_scale=1.0, shared=False), 2_500),
    (Matching, mc.HAPPO(**ON_POLICY), 2_000),
    (Matching, mc.COMA(batch_size=100, minibatch_size=50, learning_rate=3e-3, reward_scale=1.0), 4_000),
    (MOVES, mc.MATD3(**CUED), 2_000),
    (MOVES, mc.HAPPO(**ON_POLICY), 12_000),
]


def returned(env_fn: Any, algorithm: Any, steps: int, run_dir: Path) -> float:
    queued = isinstance(algorithm, (mc.HAPPO, mc.COMA))
    learner = mc.LearnerConfig(warmup=500, n_step=1, gamma=0.9, batch_size=64)
    options: Any = {} if queued else {"learner": learner, "updates_per_step": 0.25}
    config = mc.Config(total_steps=steps, mode="serial", run_dir=str(run_dir), actor=mc.ActorConfig(envs=4), **options)
    mc.train(env_fn, algorithm, config, progress=False)
    return mc.evaluate(run_dir, 20).mean["team"]


@LONG
@pytest.mark.parametrize("env_fn, algorithm, steps", LEARNERS, ids=lambda value: getattr(value, "owner", ""))
def test_both_agents_learn_their_parts(env_fn: Any, algorithm: Any, steps: int, tmp_path: Path) -> None:
    """Choices are right in four of five steps, where random ones make half of one right. Moves are near: squared
    distances of 0.1 a step in all, where random moves are 1.2 off, and resting is 0.65.
    """
    least = -0.1 if env_fn is MOVES else 0.8
    assert returned(env_fn, algorithm, steps, tmp_path / "run") >= least * Matching.STEPS


@LONG
@pytest.mark.parametrize("rewards", ["own", "sum"])
def test_opponents_learn_by_their_own_rewards_alone(rewards: str, tmp_path: Path) -> None:
    """The control is the sum of the rewards, which is always 0."""
    returned(partial(Matching, opposed=True), mc.MATD3(**CUED, rewards=rewards), 2_500, tmp_path / "run")
    policy, right = mc.load_policy(tmp_path / "run", "team"), 0
    for cues in product(range(Matching.CUES), repeat=2):
        obs = {"members": np.eye(Matching.CUES, dtype=np.float32)[[*cues]], "alive": np.ones(2, np.int8)}
        right += tuple(policy.act(obs)) == cues
    assert right == Matching.CUES**2 if rewards == "own" else right < Matching.CUES


@MODES
def test_teams_train_beside_each_other_and_beside_an_agent(tmp_path: Path, mode: str) -> None:
    result = runs.train(tmp_path, FIVE, ALGORITHMS, mode=mode)
    assert result.updates.keys() == ALGORITHMS.keys() and min(result.updates.values()) > 0
    more = runs.train(tmp_path, FIVE, ALGORITHMS, mode=mode, resume=True, total_steps=600)
    assert all(more.updates[name] > result.updates[name] for name in ALGORITHMS)
    assert all(np.isfinite(values_of(result.run_dir, name)).all() for name in ("loss", "q_mean", "episode_return"))
    scores = mc.evaluate(result.run_dir, 4).mean
    assert scores.keys() == ALGORITHMS.keys()
    assert all(0 <= scores[name] <= 40 for name in ("red", "blue")), "20 rounds, and the members' rewards add up"
    for name in ("red", "blue"):
        policy = mc.load_policy(result.run_dir, name)
        assert policy.act(OBS).shape == (2,)
        if mode == "async":  # which is long; test_export.py compares what programs do
            inputs = policy.export(tmp_path / f"{name}.pt").keys()
            assert any(part.endswith("members") for part in inputs) and ("state_hidden" in inputs) == (name == "red")
    assert checkpoint(result.run_dir, "red")["network"]["mixer.biases.weight"].shape == (32, 4 + 4 + 1)


def test_a_function_of_an_agents_name_is_saved_as_names(tmp_path: Path) -> None:
    """A run resumes with the same teams, and refuses other teams."""

    def by_number(agent: str) -> str:
        return "even" if int(agent[-1]) % 2 == 0 else "odd"

    train = partial(runs.train, tmp_path, FOUR, mc.VDN(hidden=(8,)))
    assert train(teams=by_number, total_steps=200).updates.keys() == {"even", "odd"}
    train(teams=by_number, total_steps=300, resume=True)
    check_refused(partial(train, total_steps=500, resume=True), ValueError, "teams")


def test_an_algorithm_of_agents_trains_a_team_as_one(tmp_path: Path) -> None:
    """PPO draws each member's action, by one network that sees all of them."""
    algorithm = mc.PPO(hidden=(8,), batch_size=64, minibatch_size=32, epochs=1)
    changes: Any = {"actor": mc.ActorConfig(envs=2), "learner": mc.LearnerConfig(device="cpu")}
    result = runs.train(tmp_path, FOUR, algorithm, teams=dict.fromkeys(Crowd(4).possible_agents, "all"), **changes)
    obs = {"members": np.zeros((4, 1), np.float32), "alive": np.ones(4, np.int8)}
    assert result.updates.keys() == {"all"} and mc.load_policy(result.run_dir, "all").act(obs).shape == (4,)


def audit(update: Any, batch: Any) -> mc.Update:
    assert torch.equal(batch.extras["member_rewards"].sum(1), batch.reward)
    return update(batch)


@LONG
def test_batches_hold_what_each_member_earned(tmp_path: Path) -> None:
    """In self-play, and with saved rows in a run that goes on; the learner's process would fail otherwise."""
    changes: Any = {"mode": "async", "replay": {"save": True}, "teams": PAIRS, "self_play": PLAY}
    train = partial(runs.train, tmp_path, FOUR, updating(mc.MATD3, audit)(hidden=(8,), rewards="own"), **changes)
    assert 0 < train(total_steps=600).updates["main"] < train(total_steps=800, resume=True).updates["main"]
    assert max(values_of(tmp_path / "run", "pool_size")) > 0


@pytest.mark.parametrize(
    "algorithm", [mc.VDN(hidden=(8,)), pytest.param(mc.QMIX(hidden=(8,)), marks=LONG)], ids=["vdn", "qmix"]
)
def test_two_teams_play_themselves_with_one_policy(tmp_path: Path, algorithm: Any) -> None:
    result = runs.train(tmp_path, FOUR, algorithm, teams=PAIRS, self_play=PLAY, total_steps=600)
    assert result.updates.keys() == {"main"} and result.updates["main"] > 20
    assert max(values_of(result.run_dir, "pool_size")) == 3
    first = mc.load_policy(result.run_dir, "main", "opponent-1")
    for env_fn in (None, FOUR):  # the caller's is put into the run's teams
        played = mc.evaluate(result.run_dir, 2, policies={"right": first}, env_fn=env_fn)
        assert played.mean.keys() == {"left", "right"}
