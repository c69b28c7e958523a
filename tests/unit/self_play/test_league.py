"""The learner's part of self-play: odds, payoff table, admissions and pool, and how a successor restores them."""

import io
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from arena import Counted, Marking, weak

import marlcore as mc
from marlcore.loops import PolicyModel
from marlcore.processes import Telemetry
from marlcore.record import read_json
from marlcore.self_play import League, Pool, Snapshot, plot_payoff, report_result
from marlcore.self_play.league import Payoff
from marlcore.self_play.matchmaking import Standings, odds_of, pool_odds
from marlcore.self_play.opponents import name_of
from marlcore.self_play.pool import pool_store, saved_opponents
from marlcore.self_play.ratings import Elo, rating_of

EXTRAS: dict[str, Any] = {"updates": (), "step": (), "epsilon": ()}
BOX = gymnasium.spaces.Box(0, 1, (1,), np.float32)
SPACES = mc.Spaces(BOX, BOX)


def settings(**changes: Any) -> mc.SelfPlayConfig:
    return mc.SelfPlayConfig(**{"pool": 4, "window": 10, "latest": 0.25, "anchors": {weak: 0.15}, **changes})


START = {"steps": 0, "updates": 0}
RATES = np.array([0.9, 0.5, 0.75, 0.2])
STANDINGS = Standings(RATES, np.array([5, 0, 7, 9]), np.array([0.1, 1.0, 0.5, 0.0]))


def even(opponents: Any) -> Standings:
    """Returns standings of a policy that won half of its games against each opponent."""
    count = len(opponents)
    return Standings(np.full(count, 0.5), np.full(count, 4), np.ones(count))


def by_games(rates: Any, games: Any) -> Any:
    """Draws opponents as a user's function may, by the numbers of their games."""
    assert rates.tolist() == RATES.tolist() or len(rates) == 2
    return games


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0, 3.5, 2])
@pytest.mark.parametrize(
    ("draw", "weight"),
    [
        ("pfsp", lambda rate, age, power: (1.0 - rate) ** power),
        ("recent", lambda rate, age, power: 1.0 / age**power),
        ("variance", lambda rate, age, power: rate * (1.0 - rate)),
        ("uniform", lambda rate, age, power: 1.0),
        ("rating", lambda rate, age, power: {0.9: 0.1, 0.5: 1.0, 0.75: 0.5, 0.2: 0.0}[rate]),
        ("test_league:by_games", lambda rate, age, power: {0.9: 5, 0.5: 0, 0.75: 7, 0.2: 9}[rate]),
    ],
)
def test_odds_are_those_of_their_formula(draw: Any, weight: Callable[..., float], power: float) -> None:
    weights = [weight(float(rate), len(RATES) - i, power) for i, rate in enumerate(RATES)]
    expected = [share / sum(weights) for share in weights]
    assert pool_odds(settings(draw=draw, power=power), STANDINGS).tolist() == pytest.approx(expected, rel=1e-12)


def test_odds_survive_extreme_numbers() -> None:
    """Opponents whose ratings are all far away are drawn alike."""
    assert pool_odds(settings(draw="pfsp", power=1e5), STANDINGS).tolist() == [0.0, 0.0, 0.0, 1.0]
    assert pool_odds(settings(draw="rating"), STANDINGS._replace(evenness=np.zeros(4))).tolist() == [0.25] * 4


SCHEDULED = {"latest": "linear(0, 0.5, 10, of=updates)", "anchors": {weak: mc.Linear(0.8, 0.0, 100)}}
ODDS: dict[str, tuple[dict[str, Any], range, dict[str, Any], list[float]]] = {
    "latest, anchor and pool": ({}, range(7, 10), {}, [0.25, 0.15, 0.2, 0.2, 0.2, 0]),
    "an empty pool": ({}, range(0), {}, [0.625, 0.375, 0, 0, 0, 0]),
    "only an empty pool": ({"latest": 0.0, "anchors": {}}, range(0), {}, [1, 0, 0, 0, 0]),
    "schedules at first": (SCHEDULED, range(1, 3), {}, [0, 0.8, 0.1, 0.1, 0, 0]),
    "schedules later": (SCHEDULED, range(1, 3), {"steps": 50, "updates": 2}, [0.1, 0.4, 0.25, 0.25, 0, 0]),
    "schedules at last": (SCHEDULED, range(1, 3), {"steps": 100, "updates": 10}, [0.5, 0, 0.25, 0.25, 0, 0]),
    "two anchors": ({"anchors": {weak: 0.1, Counted: 0.3}}, range(1, 3), {"begun": False}, [0, 0.25, 0.75, 0, 0, 0, 0]),
    "one of two": ({"anchors": {weak: 0.1, Counted: 0}}, range(1, 3), {"begun": False}, [0, 1, 0, 0, 0, 0, 0]),
    "no shares": (
        {"latest": 0.0, "anchors": {weak: 0.0, Counted: 0.0}}, range(1, 3), {"begun": False}, [0, 0.5, 0.5, 0, 0, 0, 0]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ODDS)
def test_shares_go_to_the_latest_the_anchors_and_the_pool(case: str) -> None:
    """Before self-play has begun, only anchors have odds."""
    changes, members, now, expected = ODDS[case]
    counts = {**START, **now}
    numbers, odds = odds_of(settings(draw="uniform", **changes), members, even, counts, counts.pop("begun", True))
    assert odds.tolist() == pytest.approx(expected)
    pool = members if now.get("begun", True) else []
    assert numbers.tolist() == [*range(0, 4 - len(expected), -1), *pool, *[0] * (4 - len(pool))]


def test_opponents_have_names() -> None:
    assert [name_of(number, ["anchor:weak"]) for number in (0, -1, 7)] == ["pool:latest", "anchor:weak", "pool:7"]


@pytest.mark.parametrize("result", [1, 0, -1])
def test_elo_moves_both_ratings_by_its_formula(result: int) -> None:
    policy, opponent = [1100.0], [900.0]
    expected_score = 1 / (1 + 10 ** ((900 - 1100) / 400))
    moved = 24.0 * ({1: 1.0, 0: 0.5, -1: 0.0}[result] - expected_score)
    after = rating_of(settings(elo_k=24.0)).after(policy, opponent, result)
    assert after == ([pytest.approx(1100 + moved)], [pytest.approx(900 - moved)])
    assert rating_of(settings()).after([1e7], [0.0], -1)[0] == [1e7 - 16], "no distance overflows"
    assert rating_of(settings()).evenness(policy, opponent) == 4 * expected_score * (1 - expected_score)


def test_trueskill_is_that_of_its_package() -> None:
    trueskill = pytest.importorskip("trueskill")
    rating = rating_of(settings(rating="trueskill"))
    policy, opponent, own = trueskill.Rating(), trueskill.Rating(), [rating.first, rating.first]
    for result in (1, 1, 0, -1):
        if result < 0:
            opponent, policy = trueskill.rate_1vs1(opponent, policy)
        else:
            policy, opponent = trueskill.rate_1vs1(policy, opponent, drawn=result == 0)
        own = [*rating.after(own[0], own[1], result)]
    assert own == [pytest.approx([policy.mu, policy.sigma]), pytest.approx([opponent.mu, opponent.sigma])]
    assert rating.evenness(*own) == pytest.approx(trueskill.quality_1vs1(policy, opponent))


def test_a_win_rate_is_of_the_last_games_with_two_imagined_ones() -> None:
    payoff = Payoff(4, Elo(16.0))
    assert payoff.rate(3) == 0.5 and payoff.win_rate is None
    for result in (-1, -1, 1, 0, 1):
        payoff.record(3, result)
    assert payoff.rate(3) == (1.5 + 1 + 1) / 6  # a loss, a win, a draw, a win; a win and a loss imagined
    payoff.record(-1, 1)
    assert payoff.win_rate == (1 + 0.5 + 1 + 1) / 4 and payoff.rate(-1) == 2 / 3
    assert payoff.games == 6


def test_the_payoff_table_is_written_restored_and_drawn(tmp_path: Path) -> None:
    payoff = Payoff(10, Elo(16.0))
    for step in range(1, 5):
        for number in (-1, step, step + 1):
            for result in (1, 1, 0, -1)[:step]:
                payoff.record(number, result)
        payoff.note(step, [-1, step, step + 1])
    path = tmp_path / "payoff.json"
    payoff.write(path, partial(name_of, anchors=["anchor:weak"]))
    written = json.loads(path.read_text())
    table, history = written["opponents"], written["history"]
    ratings = [table[name].pop("rating")["elo"] for name in ("anchor:weak", "pool:1")]
    assert ratings[0] < ratings[1] < 1000 < written["rating"]["policy"]["elo"] and written["rating"]["by"] == "elo"
    low, high = table["anchor:weak"].pop("interval")
    assert [low, high] == [round(low, 4), round(high, 4)]
    assert [(rate - 0.8) ** 2 for rate in (low, high)] == pytest.approx(  # where the score test just fails
        [1.96**2 * rate * (1 - rate) / 10 for rate in (low, high)], rel=1e-3
    )
    assert table["anchor:weak"] == {"games": 10, "wins": 7, "draws": 2, "losses": 1, "win_rate": 0.8} and low < 0.8
    assert table["pool:1"] == {"games": 1, "wins": 1, "draws": 0, "losses": 0, "win_rate": None, "interval": None}
    assert [row["step"] for row in history] == [1, 2, 3, 4]
    assert history[0]["win_rates"].keys() == {"anchor:weak", "pool:1", "pool:2"}
    other = Payoff(10, Elo(16.0), **payoff.state_dict())
    other.write(tmp_path / "again.json", partial(name_of, anchors=["anchor:weak"]))
    assert read_json(tmp_path / "again.json") == read_json(path)
    assert Payoff(2, Elo(16.0), **payoff.state_dict()).win_rate == 0.25, "a draw and a loss, in a smaller window"
    plot_payoff(path, tmp_path / "payoff.png", "a run")
    Payoff(10, Elo(16.0)).write(path, str)
    plot_payoff(path, tmp_path / "empty.png", "a run")
    sizes = [(tmp_path / name).stat().st_size for name in ("payoff.png", "empty.png")]
    assert sizes[0] > 10_000 and sizes[1] > 1_000


def test_a_long_history_loses_every_second_row() -> None:
    payoff = Payoff(1, Elo(16.0))
    payoff.record(1, 1)
    for step in range(2_000):
        payoff.note(step, [1])
    steps = [step for step, _ in payoff.history]
    assert len(steps) <= 400 and steps == sorted(set(steps)) and steps[-1] == 1_999 and steps[0] < 300


class Momentum:
    """A trainer whose state is a number."""

    value = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class Scene:
    """A learner's pool and league, and the actors' lanes of results; a resumed one begins with new memory."""

    def __init__(self, run_dir: Path, config: mc.SelfPlayConfig, stack: ExitStack) -> None:
        (run_dir / "checkpoints").mkdir(exist_ok=True)
        self.config, self.run_dir = config, run_dir
        self.stack = stack.enter_context(ExitStack())
        self.model = PolicyModel(Marking().make_model(SPACES), None)
        self.store = pool_store(PolicyModel(Marking().make_model(SPACES), None), config.pool, EXTRAS, run_dir, "main")
        self.stack.enter_context(self.store)
        self.results = self.stack.enter_context(closing(Telemetry.create(["actor-0", "actor-1"])))
        self.reporters = [self.stack.enter_context(closing(self.results.reporter(f"actor-{i}"))) for i in (0, 1)]
        self.metrics: dict[str, float] = {}
        self.trainer: Any = Momentum()
        self.join()

    def table(self) -> dict[str, Any]:
        """Returns the payoff table by opponent, as the file has it."""
        return json.loads((self.run_dir / "payoff.json").read_text())["opponents"]

    def join(self, state: Any = None) -> None:
        """Begins as the successor of a learner process that has died."""
        if hasattr(self, "pool"):
            self.pool.close()
        self.pool = self.stack.enter_context(closing(Pool(self.store, self.model.acting, self.run_dir, "main")))
        attached = self.stack.enter_context(closing(Telemetry.attach(self.results.handle)))
        pools, report = {"main": self.store}, self.metrics.__setitem__
        self.league = League(self.config, self.pool, pools, attached, self.run_dir, report, state or {})

    def snapshot(self, name: str) -> Snapshot:
        return Snapshot(self.run_dir / f"checkpoints/main.{name}.pt", self.model, self.trainer)

    def publish_each(self, updates: Iterable[int]) -> list[dict[int, float]]:
        """Publishes after each of these numbers of updates; returns the odds by opponent each time."""
        return [self.publish(count) for count in updates]

    def play(self, opponent: int, *results: int, actor: int = 0) -> None:
        for result in results:
            report_result(self.reporters[actor], opponent, result)

    def publish(self, updates: int) -> dict[int, float]:
        """Publishes after `updates` updates; returns the odds by opponent."""
        self.model.whole.mark.data.fill_(updates)
        published = self.league.publish({"updates": updates, "step": 10 * updates, "epsilon": 0.5})
        return {n: o for n, o in zip(published["opponents"].tolist(), published["odds"].tolist(), strict=True) if o}

    def held(self) -> dict[int, float]:
        """Returns the weight of each opponent in the store, by number."""
        local = Marking().make_model(SPACES)
        subscriber = self.store.subscriber(PolicyModel(local, None).acting)
        return {n: float(local.mark.detach()[0]) for n in range(1, 50) if subscriber.pull_version(n)}


def from_checkpoint(state: Any) -> Any:
    data = io.BytesIO()
    torch.save(state, data)
    data.seek(0)
    return torch.load(data, weights_only=True)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    with ExitStack() as stack:
        yield lambda **changes: Scene(tmp_path, settings(**changes), stack)


def test_the_first_policy_is_admitted_then_one_every_k_updates(scene: Callable[..., Scene]) -> None:
    run = scene(admit_updates=100)
    odds = run.publish_each((0, 90, 100, 110, 205, 299, 305))
    assert [len(opponents) - 2 for opponents in odds] == [1, 1, 2, 2, 3, 3, 4]
    assert run.held() == {1: 0.0, 2: 100.0, 3: 205.0, 4: 305.0}


def test_a_full_pool_replaces_its_oldest(scene: Callable[..., Scene]) -> None:
    run = scene(admit_updates=10)
    odds = run.publish_each(range(0, 80, 10))
    assert run.held() == {5: 40.0, 6: 50.0, 7: 60.0, 8: 70.0} and list(odds[-1]) == [0, -1, 5, 6, 7, 8]
    files = sorted(path.name for path in (run.run_dir / "checkpoints").iterdir())
    assert files == [f"main.opponent-{n}.pt" for n in (1, 5, 6, 7, 8)], "the first stays as a yardstick"


def test_the_gate_admits_past_a_win_rate_over_a_whole_window(scene: Callable[..., Scene]) -> None:
    run = scene(admit_updates=None, admit_win_rate=0.7, window=10)
    run.publish(0)
    games = {
        10: (1, *[1] * 9),  # no window yet
        20: (-1, *[-1] * 4),  # 6 of the last 10
        30: (1, *[1] * 5, 0),  # 5.5
        40: (1, 1, 1, 1),  # 8.5
        50: (1,),  # a new window begins
    }
    for updates, (opponent, *results) in games.items():
        run.play(opponent, *results, actor=updates == 20)
        run.publish(updates)
        assert run.held() == ({1: 0.0} if updates < 40 else {1: 0.0, 2: 40.0})


def test_odds_follow_the_results(scene: Callable[..., Scene]) -> None:
    run = scene(admit_updates=10, draw="pfsp", power=2.0)
    run.publish_each((0, 10))
    run.play(1, *[1] * 8)
    run.play(2, -1, 0, actor=1)
    odds = run.publish(15)
    weights = {1: (1 - 9 / 10) ** 2, 2: (1 - 1.5 / 4) ** 2}
    for number, weight in weights.items():
        assert odds[number] == pytest.approx(0.6 * weight / sum(weights.values()))
    run.league.report_rates()
    assert run.league.state_dict()["payoff"]["history"] == [(150, {1: 0.9, 2: 1.5 / 4})]
    assert run.metrics["pool_size"] == 2 and run.metrics["games"] == 10
    assert run.metrics["win_rate/pool:1"] == 0.9 and run.metrics["win_rate"] == 8.5 / 10


def test_a_new_member_has_the_policys_rating(scene: Callable[..., Scene]) -> None:
    """The table of a successor whose checkpoint does not know the member has that rating, too."""
    run = scene(admit_updates=10)
    run.publish(0)
    run.play(-1, 1, 1, 1)
    run.publish(5)
    run.league.report_rates()
    state, rating = from_checkpoint(run.league.state_dict()), run.metrics["elo"]
    assert rating > 1020 and run.metrics["elo/anchor:weak"] == pytest.approx(2000 - rating)
    run.publish(10)
    former = run.league
    run.join(state)
    for joined in (former, run.league):
        run.metrics.clear()
        joined.report_rates()
        assert run.metrics["elo/pool:2"] == rating and run.metrics["elo/pool:1"] == 1000.0


def test_a_successor_stands_where_the_checkpoint_says(scene: Callable[..., Scene]) -> None:
    """The successor has every field of the checkpoint; fields that an older checkpoint lacks have their defaults."""
    run = scene(admit_updates=10, begin_step=10**6)
    run.publish(0)
    state = from_checkpoint(run.league.state_dict())
    state |= {"games_before": 3, "begun": True, "highest": 0.75, "measured": 20}
    run.join(state)
    assert run.league.state_dict() == state
    for name in ("begun", "highest", "measured"):
        del state[name]
    run.join(state)
    older = run.league.state_dict()
    assert (older["games_before"], older["begun"], older["highest"], older["measured"]) == (3, False, None, 0)


def test_a_learners_successor_counts_each_game_once(scene: Callable[..., Scene]) -> None:
    """The successor begins with the checkpoint's table, and reads the later results again."""
    run = scene(admit_updates=10)
    run.publish(0)
    run.play(1, 1, 1, -1)
    run.publish(5)
    state = run.league.state_dict()
    run.play(1, 0, 0)
    run.publish(12)  # an admission, and a table that is lost with the process
    run.play(1, -1, actor=1)
    run.join(from_checkpoint(state))
    run.publish_each((12, 13))
    run.league.write()
    row = run.table()["pool:1"]
    assert {name: row[name] for name in ("games", "wins", "draws", "losses", "win_rate")} == {
        "games": 6, "wins": 2, "draws": 2, "losses": 2, "win_rate": 0.5
    }  # fmt: skip
    assert run.held() == {1: 0.0, 2: 12.0}, "nor is anything admitted again"


def test_a_resumed_run_continues_its_table_and_its_pool(scene: Callable[..., Scene]) -> None:
    first = scene(admit_updates=10)
    first.publish_each(range(0, 70, 10))
    first.play(5, 1, 1, -1)
    first.publish(60)
    state = from_checkpoint(first.league.state_dict())
    first.play(5, 1)  # nobody reads it: everything is killed
    held = first.held()
    first.stack.close()
    second = scene(admit_updates=10)
    assert second.held() == held == {4: 30.0, 5: 40.0, 6: 50.0, 7: 60.0}
    second.join(state)
    second.play(6, -1)  # in new lanes, which begin at 0
    odds = second.publish(65)
    assert list(odds) == [0, -1, 4, 5, 6, 7]
    second.publish(70)
    assert second.held() == {5: 40.0, 6: 50.0, 7: 60.0, 8: 70.0}
    second.league.write()
    assert {name: row["games"] for name, row in second.table().items()} == {"pool:5": 3, "pool:6": 1}


def test_a_smaller_pool_keeps_the_newest_of_an_earlier_one(scene: Callable[..., Scene]) -> None:
    first = scene(admit_updates=10)
    first.publish_each(range(0, 60, 10))
    first.stack.close()
    assert saved_opponents(first.run_dir, "main", 10) == [3, 4, 5, 6]
    assert scene(pool=2).held() == {5: 40.0, 6: 50.0}
    assert scene(pool=9).held() == {3: 20.0, 4: 30.0, 5: 40.0, 6: 50.0}


def test_bots_come_first_until_a_win_rate(scene: Callable[..., Scene]) -> None:
    """The gate stays open after a resume, whatever the win rate is then."""
    run = scene(admit_updates=10, begin_win_rate=0.7, window=10)
    assert run.publish_each((0, 20)) == [{-1: 1.0}, {-1: 1.0}]
    run.play(-1, *[1] * 9)  # no whole window yet
    assert run.publish(30) == {-1: 1.0} and run.held() == {1: 0.0}
    run.play(-1, *[-1] * 3, 0, *[1] * 4)  # 6.5 of the last 10
    assert run.publish(40) == {-1: 1.0}
    closed = from_checkpoint(run.league.state_dict())
    run.play(-1, 1, 1, 1)  # 7.5 of them
    odds = run.publish(50)
    assert list(odds) == [0, -1, 1, 2] and run.held() == {1: 0.0, 2: 50.0}, "the present policy joins at once"
    run.play(-1, *[-1] * 10)
    assert list(run.publish(55)) == [0, -1, 1, 2]
    states = closed, from_checkpoint(run.league.state_dict())
    run.stack.close()
    for state, opponents in zip(states, ([-1], [0, -1, 1, 2]), strict=True):
        resumed = scene(admit_updates=10, begin_win_rate=0.7, window=10)
        resumed.join(state)
        assert list(resumed.publish(56)) == opponents
        resumed.stack.close()


def test_self_play_begins_at_a_step_at_the_latest(scene: Callable[..., Scene]) -> None:
    run = scene(admit_updates=None, admit_win_rate=0.9, begin_win_rate=0.7, begin_step=500)
    odds = run.publish_each((0, 49, 50))  # ten steps each
    assert [list(opponents) for opponents in odds] == [[-1], [-1], [0, -1, 1, 2]]


def test_a_successor_makes_up_for_a_lost_return(scene: Callable[..., Scene]) -> None:
    """The learner died after its copy joined the pool, or after its first weights were published again."""
    run = scene(anchors={}, admit_updates=10, roles={"main": "main_exploiter", "other": "main"})

    def begin(state: Any = None) -> None:
        run.join(state)
        run.league.rivals = {"main": run.store, "other": run.store}
        run.league.initial = run.snapshot("initial")

    begin()
    run.publish(0)
    run.trainer.value = 9.0
    state = from_checkpoint(run.league.state_dict())
    run.publish(10)
    assert run.metrics["reset"] == 2 and run.trainer.value == 0.0
    run.trainer.value = 9.0  # of the checkpoint
    begin(state)
    run.publish(9)
    assert run.trainer.value == 0.0 and float(run.model.whole.mark.detach()[0]) == 0.0
    run.trainer.value = 1.0
    run.publish(9)
    assert run.trainer.value == 1.0, "once for each copy"


def test_a_falling_win_rate_restores_the_best(scene: Callable[..., Scene]) -> None:
    run = scene(rollback=0.25, window=10, admit_updates=1000)
    run.league.best = run.snapshot("rollback")

    def window(wins: int, updates: int) -> float:
        """Plays a window of games against the anchor, and games that must not count; returns the weight afterwards."""
        run.play(-1, *[1] * wins, *[-1] * (10 - wins))
        run.play(1, *[-1] * 10)
        run.trainer.value = updates
        run.publish(updates)
        return float(run.model.whole.mark.detach()[0])

    run.publish(0)
    assert [window(6, 10), window(8, 20), window(6, 30)] == [10, 20, 30], "0.2 is no fall by more than 0.25"
    state = from_checkpoint(run.league.state_dict())
    run.join(state)
    run.league.best = run.snapshot("rollback")
    assert window(5, 40) == 20 and run.trainer.value == 20 and run.metrics["rollback"] == 0.5
    assert [window(3, 50), window(1, 60)] == [50, 60], "it is measured anew after that"
    assert window(0, 70) == 50
