"""The numbers of exploration in whole runs: schedules, copies that differ, and how old the acting weights are."""

from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from crowd import Crowd, Naming
from whole_runs import MODES, Runs, metrics_of, saved_replay, values_of

import marlcore as mc
from marlcore.loops import Collector

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

runs = Runs(
    total_steps=1_500,
    actor={"processes": 2, "envs": 3, "sync_interval": 4},
    learner={"n_step": 1, "publish_interval": 5},
    replay={"save": True},
    updates_per_step=0.2,
    updates_tolerance=4,
)
ALONE = partial(Crowd, 1)
train = runs.train


def noting(base: Any, name: str) -> Any:
    """An algorithm that stores in each row epsilon and the schedule `name`, by which it acted."""
    names = ("epsilon", name)

    class Noting(base):
        def transition(self, spaces: mc.Spaces) -> mc.TransitionSpec:
            return replace(super().transition(spaces), extras=dict.fromkeys(names, mc.Field((), "float64")))

        def act(self, model: Any, obs: Any, *, explore: Any, **others: Any) -> mc.Action:
            chosen = super().act(model, obs, explore=explore, **others)
            shape = chosen.action.shape[:1]
            return chosen._replace(extras={key: np.broadcast_to(np.float64(explore[key]), shape) for key in names})

    return Noting


def numbers_by_version(
    run_dir: Path, name: str = "heat", policy: str = "agent_0", copies: int = 1, ladder: float = 0.0
) -> tuple[dict[int, set[tuple[float, float]]], set[int]]:
    """The pairs of base epsilon and schedule in the rows, by version of the weights; and the rows' lanes."""
    by_version: dict[int, set[tuple[float, float]]] = defaultdict(set)
    with saved_replay(run_dir, policy) as replay:
        batch = replay.sampler(20_000, n_step=1, seed=0, min_size=1).sample()
    index, rows = np.unique(batch.index, return_index=True)
    powers = 1 + ladder * (index % copies) / max(copies - 1, 1)
    bases = (batch.extras["epsilon"][rows] ** (1 / powers)).round(9)
    for version, *pair in zip(batch.policy_version[rows], bases, batch.extras[name][rows], strict=True):
        by_version[int(version)].add(tuple(map(float, pair)))
    return by_version, set((index % copies).tolist())


@MODES
def test_all_copies_explore_as_the_runs_steps_say(tmp_path: Path, mode: str) -> None:
    """Rows of one version of the weights have one epsilon, raised to their copy's power on Ape-X's ladder."""
    epsilon, heat = mc.Linear(1.0, 0.1, 1_000), mc.Piecewise(((0, 1.0), (500, 5.0), (1_500, 0.0)))
    exploration = mc.ExplorationConfig(epsilon, ladder=7.0, schedules={"heat": heat})
    result = train(tmp_path, ALONE, noting(mc.DQN, "heat")(), mode=mode, exploration=exploration)
    by_version, lanes = numbers_by_version(result.run_dir, copies=6, ladder=7.0)
    assert len(lanes) == 6 and len(by_version) > 20
    assert all(len(pairs) == 1 for pairs in by_version.values()), "actors disagree"
    metrics = [m for m in metrics_of(result.run_dir) if m.name in ("epsilon", "heat")]
    slack = 5 / 0.2 + 4 / 0.2 + 60  # steps between publications, the tolerance, and those without an outcome
    for metric in metrics:
        schedule = epsilon if metric.name == "epsilon" else heat
        window = [schedule.at(count) for count in range(max(0, int(metric.step - slack)), metric.step + 1)]
        assert min(window) - 1e-9 <= metric.value <= max(window) + 1e-9
    published = sorted(by_version)
    firsts = [next(iter(by_version[version]))[0] for version in published]
    assert firsts == sorted(firsts, reverse=True) and firsts[0] == 1.0 and firsts[-1] < 0.2


@MODES
def test_rows_have_the_version_that_acted_also_out_of_step(tmp_path: Path, mode: str) -> None:
    """The copies' games differ in length, so new weights arrive at different turns of each copy."""
    pytest.importorskip("pygame", reason="the game needs it")
    result = train(
        tmp_path, "pettingzoo:classic.tictactoe_v3", noting(mc.DQN, "heat")(), mode=mode, total_steps=1_000,
        updates_per_step=0.5, actor=mc.ActorConfig(envs=5, sync_interval=1), learner={"publish_interval": 1},
        exploration=mc.ExplorationConfig(mc.Linear(1.0, 0.1, 3_000), schedules={"heat": mc.Linear(0, 3_000, 3_000)}),
    )  # fmt: skip
    for player in ("player_1", "player_2"):
        by_version, _ = numbers_by_version(result.run_dir, policy=player, copies=5)
        assert len(by_version) > 20
        assert all(len(pairs) == 1 for pairs in by_version.values())


@MODES
def test_actors_draw_uniformly_before_the_first_update(tmp_path: Path, mode: str) -> None:
    """Afterwards they add noise to the network's action."""
    result = train(tmp_path, Naming, noting(mc.TD3, "noise")(noise=0.25), mode=mode, total_steps=800)
    by_version, _ = numbers_by_version(result.run_dir, "noise")
    assert by_version.pop(1) == {(1.0, 0.25)}, "the first version's learner has made no update"
    assert len(by_version) > 10 and set().union(*by_version.values()) == {(0.0, 0.25)}
    assert set(values_of(result.run_dir, "noise")) == {0.25}
    policy = mc.load_policy(result.run_dir, "agent_0")
    assert policy._numbers == {"epsilon": 0.0, "noise": 0.25}


def lags_of(folder: Path, **changes: Any) -> list[int]:
    """How many versions old the weights of each turn were."""
    lags: list[int] = []
    act = Collector.act

    def noted(collector: Collector, turn: mc.Turn) -> Any:
        lags.append(collector.weights.subscriber.newest - collector.weights.subscriber.version)
        return act(collector, turn)

    with patch.object(Collector, "act", noted):
        train(folder, ALONE, mode="serial", total_steps=900, learner={"publish_interval": 1}, **changes)
    return lags


def test_no_turn_is_taken_by_weights_older_than_allowed(tmp_path: Path) -> None:
    """In async mode the learner may publish between an actor's look and its turn."""
    actor = mc.ActorConfig(envs=3, sync_interval=100)
    assert max(lags_of(tmp_path / "free", actor=actor)) > 20, "without a bound the weights are old"
    assert max(lags_of(tmp_path / "bound", actor=replace(actor, max_policy_lag=3))) == 3
