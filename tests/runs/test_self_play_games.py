"""Self-play of games that people play: PettingZoo's classic ones, with masks, and the puck."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from puck import chaser, idle, two_player_puck
from whole_runs import LONG, Runs, metrics_of, saved_replay

import marlcore as mc

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

runs = Runs(
    total_steps=1_000,
    actor={"envs": 4, "sync_interval": 5},
    learner={"warmup": 100},
    replay={"capacity": 8_000, "save": True},
    self_play={"pool": 4, "admit_updates": 20, "latest": 0.3},
)
DQN = mc.DQN(hidden=(16,))
train = runs.train


def first_allowed(obs: Any) -> int:
    """An anchor that takes the first action of the mask."""
    assert obs["observation"].ndim == 3
    return int(np.flatnonzero(obs["action_mask"])[0])


def payoff_of(run_dir: Path) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = json.loads((run_dir / "payoff.json").read_text())["opponents"]
    return table


@pytest.mark.parametrize("game", ["tictactoe_v3", pytest.param("connect_four_v3", marks=LONG)])
def test_classic_games_are_played_by_their_rules(tmp_path: Path, game: str) -> None:
    """No stored action is illegal, and the sign of the return says who won."""
    settings = {"anchors": {first_allowed: 0.3}}
    result = train(tmp_path, f"pettingzoo:classic.{game}", DQN, self_play=settings)
    with saved_replay(result.run_dir, "main") as replay:
        batch = replay.sampler(2_048, min_size=1, seed=0).sample()
        assert len(replay) < 1_000 * 0.75, "the rows of opponents are not there"
    assert batch.obs["action_mask"][np.arange(len(batch.action)), batch.action].all()
    table = payoff_of(result.run_dir)
    assert "anchor:first_allowed" in table and "pool:1" in table
    assert all(row["wins"] + row["draws"] + row["losses"] == row["games"] > 0 for row in table.values())
    assert any(row["wins"] for row in table.values()) and any(row["losses"] for row in table.values())


@pytest.mark.parametrize("prioritized", [pytest.param(False, marks=LONG), True])
def test_puck_is_trained_with_every_kind_of_opponent(tmp_path: Path, prioritized: bool) -> None:
    """With priorities, actors compute the first ones, also where opponents share the copies."""
    algorithm = mc.DQN(hidden=(16,), actor_priorities=prioritized)
    replay = {"prioritized": prioritized, "mixture": {"anchor": 0.5, "pool": 0.5}}
    settings = {"self_play": {"anchors": {chaser: 0.3, idle: 0.2}}, "replay": replay}
    result = train(tmp_path, two_player_puck, algorithm, **settings)
    table = payoff_of(result.run_dir)
    assert {"anchor:chaser", "anchor:idle"} < table.keys() and any(name.startswith("pool:") for name in table)
    assert table["anchor:chaser"]["losses"] > table["anchor:chaser"]["wins"], "untrained"
    more = train(tmp_path, two_player_puck, algorithm, **settings, total_steps=1_800, resume=True)
    after = payoff_of(more.run_dir)
    assert all(after[name]["games"] >= row["games"] for name, row in table.items())
    assert more.updates["main"] > result.updates["main"]


@pytest.mark.parametrize("algorithm", [mc.TD3(hidden=(16,)), pytest.param(mc.SAC(hidden=(16,)), marks=LONG)])
def test_puck_is_trained_with_continuous_actions(tmp_path: Path, algorithm: Any) -> None:
    """Opponents act within the bounds of their half of the Box, each with its own weights."""
    result = train(tmp_path, partial(two_player_puck, False), algorithm, learner={"n_step": 1})
    with saved_replay(result.run_dir, "main") as replay:
        actions = replay.sampler(512, min_size=1, seed=0).sample().action
    assert actions.shape == (512, 2) and (abs(actions) <= 1.0).all() and actions.std() > 0.1
    assert sum(row["games"] for row in payoff_of(result.run_dir).values()) > 5


def test_puck_is_trained_on_policy(tmp_path: Path) -> None:
    """The queue holds the rows of the learning policy alone, and a lane that is not its side's stops no batch."""
    settings = {"admit_updates": 2}
    algorithm = mc.PPO(hidden=(16,), batch_size=128, minibatch_size=128, epochs=1)
    result = train(
        tmp_path, two_player_puck, algorithm, total_steps=2_000, self_play=settings,
        replay=mc.ReplayConfig(), actor=mc.ActorConfig(envs=4), learner=mc.LearnerConfig(device="cpu"),
    )  # fmt: skip
    table = payoff_of(result.run_dir)
    assert 5 < result.updates["main"] <= 2_000 * 0.8 / 128 and len(table) > 2


@LONG
def test_the_latest_policy_beats_the_first_of_its_pool(tmp_path: Path) -> None:
    """In 90 % of 200 games of puck, half of them from each side."""
    result = train(
        tmp_path, two_player_puck, mc.DQN(learning_rate=1e-3, reward_scale=1.0), mode="async", total_steps=60_000,
        updates_per_step=0.25, replay=mc.ReplayConfig(),
        actor=mc.ActorConfig(envs=8, sync_interval=10), learner=mc.LearnerConfig(warmup=1000, device="cpu"),
        exploration=mc.ExplorationConfig(epsilon=mc.Linear(1.0, 0.05, 15_000)),
        self_play=mc.SelfPlayConfig(pool=8, admit_updates=1000, anchors={idle: 0.1, chaser: 0.1}),
    )  # fmt: skip
    first, wins = mc.load_policy(result.run_dir, "main", "opponent-1"), 0
    for agent, other in (("player_1", "player_2"), ("player_2", "player_1")):
        wins += (mc.evaluate(result.run_dir, 100, policies={other: first}).returns[agent] > 0.5).sum()
    assert wins >= 180


@pytest.mark.long
def test_the_documented_run_uses_every_setting_of_opponents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's example, with fewer steps."""
    pytest.importorskip("trueskill")
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "self-play.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (code,) = (block for block in blocks if "import two_player_puck" in block)
    for long, short in {
        "total_steps=400_000": 'total_steps=3_000, mode="serial"', "100_000": "1_500", "200000": "2000",
        "exploration=": "learner=mc.LearnerConfig(log_interval=20), exploration=",
        "episodes=30": "episodes=6",
    }.items():  # fmt: skip
        assert long in code
        code = code.replace(long, short)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"mc": mc}
    exec(code, names)
    result = names["result"]
    table = json.loads((result.run_dir / "payoff.json").read_text())
    assert table["rating"].keys() == {"by", "policy"} and table["rating"]["policy"].keys() == {"mu", "sigma"}
    assert table["opponents"].keys() >= {"anchor:idle", "anchor:chaser"}
    newest = {metric.name: metric.value for metric in metrics_of(result.run_dir)}
    assert newest.keys() >= {"learning_rate", "trueskill", "eval_win_rate/anchor:chaser", "eval_win_rate/pool"}
    assert newest["self_play"] == 1.0
