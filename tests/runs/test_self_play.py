"""Self-play in whole runs: who acted with which weights, whose rows were written where, and what the payoff says."""

import json
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from arena import ANCHOR, SIDES, Arena, Counted, Marking, episodes_of, strong, weak
from arena_games import check_opponents, check_parts, check_table, marks, rows_of, sides_of
from chances import OneShot
from metric_names import unexplained
from refused import check_refused
from whole_runs import LONG, Runs, change_checkpoint, metrics_of, opponents_of, saved_replay, updating

import marlcore as mc
from marlcore.envs import vectorize

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

runs = Runs(
    total_steps=2_000,
    updates_per_step=0.2,
    actor={"envs": 4, "sync_interval": 5},
    learner={"n_step": 1, "publish_interval": 5, "log_interval": 50},
    replay={"capacity": 16_000, "save": True, "mixture": {"anchor": 0.25, "pool": 0.75}},
    self_play={"pool": 64, "admit_updates": 25, "latest": 0.2, "anchors": {weak: 0.2}, "draw": "uniform"},
)


small = Runs(total_steps=300, learner={"warmup": 50})


def train(tmp_path: Path, algorithm: Any = None, **changes: Any) -> mc.Result:
    """A run of the arena, whose notes lie in `tmp_path`/notes."""
    return runs.train(tmp_path, partial(Arena, tmp_path / "notes"), algorithm or Marking(), **changes)


def acts_of(tmp_path: Path) -> list[list[float]]:
    return [acted[side] for acted in episodes_of(tmp_path / "notes").values() for side in SIDES]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[mc.Result, Path]:
    folder = tmp_path_factory.mktemp("self_play")
    return train(folder), folder / "notes"


@pytest.fixture(scope="module", params=["serial", pytest.param("async", marks=LONG)])
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[mc.Result, Path]:
    if request.param == "serial":
        return request.getfixturevalue("run")
    folder = tmp_path_factory.mktemp("self_play")
    actor = {"processes": 2, "envs": 2}
    return train(folder, mode="async", actor=actor), folder / "notes"


def test_opponents_act_with_the_admitted_weights(played: tuple[mc.Result, Path]) -> None:
    """An opponent keeps its weights throughout an episode, whatever the pool admits meanwhile."""
    result, folder = played
    check_opponents(result.run_dir, folder)


def test_opponents_keep_the_schedules_of_their_policy(tmp_path: Path) -> None:
    own = {"main": mc.ExplorationConfig(schedules={"temperature": 0.5})}
    result = train(tmp_path, explorations=own, total_steps=1_000)
    assert opponents_of(result.run_dir) and torch.load(opponents_of(result.run_dir)[1])["numbers"]["temperature"] == 0.5


def test_the_learner_takes_the_sides_in_turn(run: tuple[mc.Result, Path]) -> None:
    """In each copy, episode by episode; half of the copies begin on the left."""
    result, folder = run
    begins: defaultdict[int, set[int]] = defaultdict(set)
    for (number, episode), kinds in sides_of(result.run_dir, folder).items():
        if set(kinds.values()) != {"learner"}:
            begins[number].add((list(kinds.values()).index("learner") + episode) % 2)
    assert sorted(map(sorted, begins.values())) == [[0], [0], [1], [1]]


def test_shares_of_episodes_are_as_configured(run: tuple[mc.Result, Path]) -> None:
    result, folder = run
    kinds = Counter(
        next(iter(set(one.values()) - {"learner"}), "latest") for one in sides_of(result.run_dir, folder).values()
    )
    total = sum(kinds.values())
    for kind, share in {"latest": 0.2, "anchor": 0.2, "pool": 0.6}.items():
        assert abs(kinds[kind] - share * total) < 4 * math.sqrt(total * share * (1 - share)), kinds


def test_every_row_of_an_episode_lies_in_its_tags_part(played: tuple[mc.Result, Path]) -> None:
    """No row of a frozen opponent or an anchor is stored."""
    result, folder = played
    check_parts(result.run_dir, folder)


def test_the_payoff_table_counts_every_game(played: tuple[mc.Result, Path]) -> None:
    result, folder = played
    check_table(result.run_dir, folder)


@pytest.mark.parametrize("judge", [False, True])
def test_games_that_end_before_the_learners_first_move_count(tmp_path: Path, judge: bool) -> None:
    """The learner plays "b" and "a" in turn; chance, or the judge, decides who wins."""
    OneShot.games.clear()
    play = {"pool": 1, "admit_updates": 10_000, "latest": 0.0, "anchors": {"chances:script": 1.0}}
    result = small.train(tmp_path, partial(OneShot, judge), actor={"envs": 1}, self_play=mc.SelfPlayConfig(**play))
    [table] = json.loads((result.run_dir / "payoff.json").read_text())["opponents"].values()
    won = [(winner == "ba"[game % 2]) != judge for game, winner in enumerate(OneShot.games)][: table["games"]]
    assert table["games"] >= len(OneShot.games) - 1 > 100
    assert (table["wins"], table["draws"], table["losses"]) == (sum(won), 0, len(won) - sum(won))


def test_win_rates_and_the_pools_size_are_metrics(run: tuple[mc.Result, Path]) -> None:
    result, _ = run
    last = newest_values(result.run_dir)
    assert last["pool_size"] >= len(marks(result.run_dir)) - 2
    assert last["win_rate/anchor:weak"] > 0.9 and 0.5 < last["win_rate"] <= 1.0
    history = json.loads((result.run_dir / "payoff.json").read_text())["history"]
    steps = [row["step"] for row in history]
    assert len(steps) > 3 and steps == sorted(set(steps)) and len(history[-1]["win_rates"]) > 5
    assert (result.run_dir / "payoff.png").stat().st_size > 5_000


def test_a_serial_run_of_self_play_repeats_itself(run: tuple[mc.Result, Path], tmp_path: Path) -> None:
    first, _ = run
    again = train(tmp_path)
    tables = [(one.run_dir / "payoff.json").read_text() for one in (first, again)]
    assert tables[0] == tables[1]


def test_a_slot_that_is_replaced_keeps_playing_its_episode(tmp_path: Path) -> None:
    """With a pool of two, opponents are replaced during most episodes against them."""
    settings = {"pool": 2, "admit_updates": 3, "latest": 0.0, "anchors": {}}
    changes: Any = {"replay": {"mixture": {}}, "learner": {"publish_interval": 1}}
    result = train(tmp_path, self_play=settings, **changes)
    frozen = [acted for acted in acts_of(tmp_path) if acted[0] % 1 == 0]
    assert len(frozen) > 100 and all(len(set(acted)) == 1 for acted in frozen)
    kept = list(opponents_of(result.run_dir))
    assert kept[-1] > 40 and kept == [1, kept[-1] - 1, kept[-1]]


@pytest.mark.parametrize("alone", [True, False])
def test_a_script_acts_until_the_first_update(tmp_path: Path, alone: bool) -> None:
    """The script plays whole episodes, whose rows count as the policy's; in self-play, on the learner's side only."""
    none = {"self_play": mc.SelfPlayConfig(), "policies": dict.fromkeys(SIDES, "main")} if alone else {}
    changes: Any = {"self_play": {"pool": 4, "anchors": {}, "latest": 0.0}, **none, "replay": {"mixture": {}}}
    result = train(tmp_path, exploration={"script": "arena:weak"}, total_steps=1_000, **changes)
    with saved_replay(result.run_dir, "main") as replay:
        batch = replay.sampler(20_000, min_size=1, seed=0).sample()
    actions: defaultdict[tuple[int, int, int], set[float]] = defaultdict(set)
    drawn = zip(batch.obs.tolist(), batch.action[:, 0].tolist(), strict=True)
    rows = {(*row, action) for row, action in drawn}
    for number, episode, side, _, action in rows:
        actions[number, episode, side].add(action)
    scripted = {key for key, values in actions.items() if values == {ANCHOR}}
    assert all(value % 1 == 0.25 for key in actions.keys() - scripted for value in actions[key])
    assert sum(action == ANCHOR for *_, action in rows) >= 50, "the warm-up is all of the script"
    last = {number: max(episode for n, episode, _ in scripted if n == number) for number, _, _ in scripted}
    assert all((number, episode, side) in scripted for number, episode, side in actions if episode < last[number])
    assert max(last.values()) < 12 < max(episode for _, episode, _ in actions)


def test_an_opponent_is_drawn_for_a_block_of_episodes(tmp_path: Path) -> None:
    """The opponent stays even if the pool replaces it meanwhile."""
    settings = {"pool": 3, "admit_updates": 5, "block": 3, "latest": 0.0}
    result = train(tmp_path, self_play=settings, replay={"mixture": {}}, updates_per_step=0.2, total_steps=1_500)
    kept = max(opponents_of(result.run_dir))
    opponents: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for (number, episode), acted in episodes_of(tmp_path / "notes").items():
        (opponent,) = {values[0] for values in acted.values() if values[0] % 1 == 0}
        opponents[number, episode // 3].append(opponent)
    assert all(len(set(block)) == 1 for block in opponents.values())
    assert len({block[0] for block in opponents.values()}) > 5 and kept > 20


def test_the_pool_opens_late_and_a_losing_learner_rolls_back(tmp_path: Path) -> None:
    """The learner beats the anchor after its first update; when it starts to lose, the run rolls it back."""
    settings = {"begin_win_rate": 0.9, "window": 20, "latest": 0.0, "anchors": {weak: 0.5}, "rollback": 0.3}
    changes: Any = {"replay": {"mixture": {}}, "total_steps": 3_000, "updates_per_step": 0.1}
    result = train(tmp_path, Falling(), self_play=settings, **changes)
    metrics = [metric for metric in metrics_of(result.run_dir) if metric.agent == "main"]
    begun = [metric.value for metric in metrics if metric.name == "self_play"]
    assert begun[-1] == 1.0 and begun == sorted(begun)
    assert next(metric.value for metric in metrics if metric.name == "rollback") < 0.7
    folder = result.run_dir / "checkpoints"
    kept = torch.load(folder / "main.rollback.pt", weights_only=True)["network"]["mark"]
    assert 0 <= float(kept[0]) < LOSES_FROM
    first = torch.load(folder / "main.opponent-2.pt", weights_only=True)["acting"]["model.mark"]
    assert float(first[0]) > 0, "the copy that joined when self-play began"
    table = json.loads((result.run_dir / "payoff.json").read_text())
    assert table["rating"]["by"] == "elo" and table["opponents"].keys() > {"anchor:weak", "pool:2"}


class Common(Arena):
    """Without a winner in its info; both are paid the same."""

    def step(self, actions: dict[str, Any]) -> Any:
        obs, rewards, *rest = super().step(actions)
        return obs, dict.fromkeys(rewards, 0.1), *rest


def test_equal_returns_are_a_draw(tmp_path: Path) -> None:
    """In the payoff table, the ratings and the evaluations."""
    result = runs.train(
        tmp_path, partial(Common, tmp_path / "notes"), Marking(), total_steps=600, replay={"mixture": {}},
        self_play={"anchors": {strong: 0.5, weak: 0.5}, "latest": 0.0, "rating": "elo"},
        evaluation=mc.EvaluationConfig(interval=300, episodes=12),
    )  # fmt: skip
    assert unexplained(result.run_dir) == ["drawn"], "except a metric of the test's own algorithm"
    table, last = json.loads((result.run_dir / "payoff.json").read_text())["opponents"], newest_values(result.run_dir)
    for name in ("anchor:strong", "anchor:weak"):
        assert table[name]["draws"] == table[name]["games"] > 10
        assert last[f"eval_win_rate/{name}"] == 0.5 and table[name]["rating"]["elo"] == 1000.0


LOSES_FROM = 60.0


@dataclass(frozen=True)
class Falling(Marking):
    """Acts below the anchor after a number of updates."""

    def act(self, model: Any, obs: Any, **options: Any) -> mc.Action:
        value = float(model.mark.detach()[0])
        return mc.Action(np.full((len(obs), 1), -2.0 if value >= LOSES_FROM else value, np.float32))


def test_the_learner_may_keep_one_side(tmp_path: Path) -> None:
    """Its opponents may explore, too."""
    settings = {"side": "right", "latest": 0.0, "anchors": {}, "explore": True}
    result = train(tmp_path, self_play=settings, replay={"mixture": {}}, total_steps=1_000)
    (rows,) = rows_of(result.run_dir, parts=1)
    assert {side for _, _, side, _ in rows} == {1}
    admitted = {mark + 0.25 for mark in marks(result.run_dir).values()}
    assert {one for acted in episodes_of(tmp_path / "notes").values() for one in acted["left"]} <= admitted


def test_an_anchor_may_be_a_class_or_a_checkpoint(run: tuple[mc.Result, Path], tmp_path: Path) -> None:
    """An object of the class plays in each copy; the checkpoint acts with its weights."""
    first, _ = run
    earlier = str(opponents_of(first.run_dir)[3])
    settings = {"latest": 0.0, "anchors": {Counted: 0.6, earlier: 0.4}}
    train(tmp_path, self_play=settings, replay={"mixture": {}}, total_steps=800)
    frozen = [acted for acted in acts_of(tmp_path) if acted[0] % 1 == 0]
    objects = [set(acted) for acted in frozen if acted[0] < 0]
    assert len(objects) > 40 and all(actions == {-2.0} for actions in objects)
    assert {acted[0] for acted in frozen if acted[0] >= 0} == {marks(first.run_dir)[3]}


def test_a_pools_member_can_be_loaded_and_evaluated(run: tuple[mc.Result, Path], tmp_path: Path) -> None:
    result, _ = run
    first = mc.load_policy(result.run_dir, "main", "opponent-1")
    outcome = mc.evaluate(result.run_dir, 10, policies={"right": first}, env_fn=partial(Arena, tmp_path))
    assert outcome.mean == {"left": 1.0, "right": -1.0}


@pytest.mark.parametrize("share", [0.25, pytest.param(0.9, marks=LONG)])
def test_parts_are_drawn_in_their_shares(tmp_path: Path, share: float) -> None:
    sources: list[np.ndarray] = []
    noting = updating(Marking, lambda update, batch: sources.append(batch.source) or update(batch))
    result = train(tmp_path, noting(), total_steps=1_000, replay={"mixture": {"anchor": share, "pool": 1 - share}})
    assert abs((np.concatenate(sources[10:]) == 0).mean() - share) < 0.01
    rows = sum(len(part) for part in rows_of(result.run_dir))
    assert abs(result.updates["main"] - 0.2 * (rows - 50)) <= 2


def test_an_environments_own_tags_are_routes_too(tmp_path: Path) -> None:
    tags = ("easy", "hard:cliff", "hard")
    runs.train(
        tmp_path, partial(Arena, tmp_path, tags), Marking(), self_play=mc.SelfPlayConfig(), total_steps=1_000,
        replay={"mixture": {"easy": 0.5, "hard": 0.5}}, policies=dict.fromkeys(SIDES, "main"),
    )  # fmt: skip
    easy, hard = rows_of(tmp_path / "run")
    assert {episode % 3 for _, episode, _, _ in easy} == {0} and {episode % 3 for _, episode, _, _ in hard} == {1, 2}
    assert set(easy.values()) == set(hard.values()) == {1}
    episodes = episodes_of(tmp_path)
    ended = {(*key, i, turn) for key, acted in episodes.items() for i in (0, 1) for turn in range(len(acted["left"]))}
    assert len(ended) > 900 and {row for row in easy | hard if row[:2] in episodes} == ended


def test_a_tag_without_a_part_names_copy_and_agent(tmp_path: Path) -> None:
    with pytest.raises(mc.WorkerFailed) as caught:
        env_fn = partial(Arena, tmp_path, ("pool", "boss"))
        runs.train(tmp_path, env_fn, Marking(), self_play=mc.SelfPlayConfig())
    says = "environment copy 0, left: tag: expected one of replay.mixture's names ['anchor', 'pool'], got 'boss'"
    assert caught.value.traceback.strip().endswith(says)


# ---- resumed ----


def test_an_opponent_of_another_network_is_refused(tmp_path: Path) -> None:
    """As an anchor, and among a resumed run's opponents, which stay as they are."""
    pool = mc.SelfPlayConfig(pool=4, admit_updates=10)
    saved = opponents_of(train(tmp_path, total_steps=400, self_play=pool).run_dir)[2]
    anchored = replace(pool, anchors={str(saved): 0.5})
    other = partial(train, tmp_path / "other", Marking(2), self_play=anchored)
    check_refused(other, ValueError, "self_play.anchors: expected a checkpoint of main's network, got ")
    assert not (tmp_path / "other" / "run").exists()
    normed = train(tmp_path / "normed", total_steps=200, self_play=pool, learner={"obs_norm": "running"}).run_dir
    anchored = replace(pool, anchors={str(normed / "checkpoints" / "main.pt"): 0.5})
    other = partial(train, tmp_path / "other", self_play=anchored)
    check_refused(other, ValueError, "main.pt', for normalized observations; learner.obs_norm is off")
    acting = torch.load(saved, weights_only=True)["acting"]
    change_checkpoint(saved, acting={**acting, "model.mark": torch.zeros(2)})
    again = partial(train, tmp_path, total_steps=800, self_play=pool, resume=True)
    check_refused(again, ValueError, "resume: expected an opponent with main's network, got ")
    assert torch.load(saved, weights_only=True)["acting"]["model.mark"].shape == (2,)


def test_a_resumed_run_keeps_anchors_parts_and_its_best(tmp_path: Path) -> None:
    play = mc.SelfPlayConfig(pool=4, admit_updates=10, anchors={"arena:weak": 0.5})
    parts = mc.ReplayConfig(mixture={"anchor": 0.5, "pool": 0.5}, save=True)
    settings = {"self_play": play, "replay": parts, "learner": {"warmup": 20}}
    settings["evaluation"] = mc.EvaluationConfig(interval=200, episodes=4)
    train(tmp_path, total_steps=400, **settings)
    assert {"eval_return/anchor:weak", "eval_return/pool"} < newest_values(tmp_path / "run").keys()
    others, had = replace(play, anchors={"arena:Counted": 0.5}), "as in the run so far, got"
    was = f"resume: expected self_play.anchors ['arena:weak'], {had} ['arena:Counted']: the run's table"
    for changes, says in (
        ({"self_play": others}, was),
        ({"replay": mc.ReplayConfig(save=True)}, f"mixture {{'anchor': 0.5, 'pool': 0.5}}, {had} {{}}"),
    ):
        options = {**settings, **changes, "total_steps": 800, "resume": True}
        check_refused(partial(train, tmp_path, **options), ValueError, says)
    settings["self_play"] = replace(play, anchors={"arena:weak": "linear(0.3, 0.1, 800)"})
    assert train(tmp_path, total_steps=800, resume=True, **settings).steps >= 800
    newest = newest_values(tmp_path / "run")
    assert newest["eval_return"] == 1.0 and newest["eval_return_of_best"] <= 1.0


def newest_values(run_dir: Path) -> dict[str, float]:
    return {metric.name: metric.value for metric in metrics_of(run_dir) if metric.agent == "main"}


class Copied:
    """An environment of one-shot games whose count of ended episodes is a new array at each look."""

    def __init__(self, judge: float) -> None:
        self.env = vectorize(partial(OneShot, judge), 4)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["env"], name)

    @property
    def ended(self) -> Any:
        return self.env.ended.copy()


@pytest.mark.parametrize("judge", [False, math.nan])
def test_games_are_counted_whatever_the_environment_hands_out(judge: float, tmp_path: Path) -> None:
    """A winner that is not a number decides nothing."""
    settings = {"pool": 4, "admit_updates": 10, "latest": 0.0}
    small.train(tmp_path, partial(Copied, judge), mc.DQN(hidden=(8,)), self_play=settings, actor={"envs": 4})
    opponents = json.loads((tmp_path / "run" / "payoff.json").read_text())["opponents"]
    assert sum(opponent["games"] for opponent in opponents.values()) > 20
