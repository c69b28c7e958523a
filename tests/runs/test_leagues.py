"""Leagues: games with more than two seats, and policies that play against each other in roles."""

import itertools
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from arena import ANCHOR, BAND, ROLES, SIDES, STRONG, Arena, Banded, Marking, Stateless, episodes_of, strong, weak
from arena_games import marks, rows_of
from crowd import RockPaperScissors
from refused import check_refused
from whole_runs import LONG, Runs, values_of

import marlcore as mc

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

THREE = ("left", "middle", "right")
OUTCOMES = {1: "wins", 0: "draws", -1: "losses"}

runs = Runs(
    total_steps=1_500,
    updates_per_step=0.2,
    actor={"envs": 4, "sync_interval": 5},
    learner={"n_step": 1, "publish_interval": 5, "log_interval": 50},
    replay={"capacity": 16_000, "save": True},
    self_play={"pool": 64, "admit_updates": 25, "latest": 0.3, "anchors": {weak: 0.3}, "draw": "uniform"},
)


def tables(result: mc.Result, name: str = "payoff.json") -> Any:
    return json.loads((result.run_dir / name).read_text())["opponents"].items()


def test_each_other_seat_draws_an_opponent_of_its_own(tmp_path: Path) -> None:
    """The policy's seat rotates, its rows come from its own seats, and each pair of seats counts as a game."""
    notes = tmp_path / "notes"
    play = {"anchors": {weak: 0.2, strong: 0.2}}
    result = runs.train(tmp_path, partial(Arena, notes, sides=THREE), Marking(), self_play=play)
    number_of = {mark: number for number, mark in marks(result.run_dir).items()}
    rows, kinds = set[tuple[int, ...]](), Counter[str]()
    games: defaultdict[str, Counter[str]] = defaultdict(Counter)
    seats: defaultdict[int, set[int]] = defaultdict(set)
    for (number, episode), acted in episodes_of(notes, THREE).items():
        sums = np.array([sum(values) for values in acted.values()])
        returns = np.sign(sums[:, None] - sums).sum(axis=1)
        names = [name_of(values, number_of) for values in acted.values()]
        kinds.update([" ".join(sorted(name.partition(":")[0] for name in names))])
        learning = [seat for seat, name in enumerate(names) if name == "learner"]
        rows |= {(number, episode, seat, turn) for seat in learning for turn in range(len(acted[THREE[seat]]))}
        if len(learning) == 1:
            seats[number].add((learning[0] - episode) % 3)
        for mine, other in itertools.product(learning, range(3)):
            if names[other] != "learner":
                games[names[other]][OUTCOMES[int(np.sign(returns[mine] - returns[other]))]] += 1
    assert kinds.keys() > {"learner learner learner", "anchor learner pool", "anchor anchor learner"}
    assert len(seats) == 4 and all(len(begun) == 1 for begun in seats.values())
    (found,) = rows_of(result.run_dir, parts=1)
    ended = {row[:2] for row in rows}
    assert {row for row in found if row[:2] in ended} == rows and set(found.values()) == {1}
    written = {name: Counter({key: row[key] for key in OUTCOMES.values()}) for name, row in tables(result)}
    assert written == games


def name_of(values: list[float], number_of: dict[float, int]) -> str:
    """The player of a seat, by its actions: opponents keep their weights for an episode, and the learner explores."""
    if values[0] % 1 == 0.25:
        return "learner"
    assert len(set(values)) == 1
    return {ANCHOR: "anchor:weak", STRONG: "anchor:strong"}.get(values[0]) or f"pool:{number_of[values[0]]}"


def met_by_role(notes: Path, admitted: dict[str, list[float]]) -> tuple[Any, ...]:
    """The opponents, games and recorded rows of each role that learned."""
    met, games = {name: Counter[str]() for name in ROLES}, dict.fromkeys(ROLES, 0)
    rows: dict[str, set[tuple[int, ...]]] = {name: set() for name in ROLES}
    for (number, episode), acted in episodes_of(notes).items():
        learning = [seat for seat, side in enumerate(SIDES) if acted[side][0] % 1 == 0.25]
        (name,) = {[*ROLES][int(acted[SIDES[seat]][0] // BAND)] for seat in learning}
        games[name] += 1
        rows[name] |= {(number, episode, seat, turn) for seat in learning for turn in range(len(acted[SIDES[seat]]))}
        for seat in {0, 1}.difference(learning):
            place, mark = divmod(acted[SIDES[seat]][-1], BAND)
            other = [*ROLES][int(place)]
            met[name][other if mark in admitted[other] else f"newest {other}"] += 1
    return met, games, rows


def test_roles_choose_their_opponents_and_exploiters_begin_anew(tmp_path: Path) -> None:
    """Each policy learns in a third of the games, from its own rows, and has its own payoff table."""
    notes = tmp_path / "notes"
    env_fn, algorithms = partial(Arena, notes), {name: Banded(place=i) for i, name in enumerate(ROLES)}
    play = mc.SelfPlayConfig(pool=64, admit_updates=25, latest=0.3, draw="uniform", roles=ROLES, reset=0.0)
    options = {"self_play": play, "replay": {"capacity": 16_000, "save": True}, "total_steps": 3_000}
    result = runs.train(tmp_path, env_fn, algorithms, **options)
    admitted = {name: [*marks(result.run_dir, name).values()] for name in ROLES}
    assert max(admitted["rival"][1:]) < 40 < 60 < min(admitted["main"][-1], admitted["hunter"][-1])
    assert len(values_of(result.run_dir, "reset")) == len(admitted["rival"]) - 1
    met, games, rows = met_by_role(notes, admitted)
    assert met["main"].keys() == met["hunter"].keys() == {"main", "rival", "hunter"}
    assert met["rival"].keys() <= {"newest main", "main"} and met["rival"]["newest main"] > 20
    assert max(games.values()) - min(games.values()) < 20
    ended = {*episodes_of(notes)}
    for name, learned in rows.items():
        (found,) = rows_of(result.run_dir, parts=1, policy=name)
        assert {row for row in found if row[:2] in ended} == learned
        table = dict(tables(result, f"payoff.{name}.json"))
        assert sum(row["games"] for row in table.values()) == sum(met[name].values())
    assert [*dict(tables(result, "payoff.rival.json"))] == ["pool:main:latest"]
    assert mc.load_policy(result.run_dir, "rival", "initial").act(np.zeros(4, np.float32)) == [BAND]
    more = runs.train(tmp_path, env_fn, algorithms, resume=True, **{**options, "total_steps": 3_600})
    assert min(more.updates[name] - result.updates[name] for name in ROLES) > 0
    elsewhere = partial(mc.evaluate, more.run_dir, 1, policies={"rival": weak}, env_fn=env_fn)
    check_refused(elsewhere, ValueError, "policies: expected names among ")
    resume = partial(runs.train, tmp_path, env_fn, algorithms, resume=True)
    for roles in ({**ROLES, "hunter": "main"}, dict(reversed(ROLES.items()))):  # tables number opponents by this order
        options["self_play"] = mc.SelfPlayConfig(pool=64, roles=roles)
        check_refused(partial(resume, **options), ValueError, "resume: expected self_play.roles ")


class Logits(torch.nn.Module):
    def __init__(self, first: tuple[float, ...]) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.tensor(first))

    @property
    def strategy(self) -> np.ndarray:
        return torch.softmax(self.logits.detach().double(), 0).numpy()


@dataclass(frozen=True)
class Multiplicative(mc.Algorithm):
    """Multiplicative weights, which spiral outwards against themselves (Bailey and Piliouras 2018)."""

    rate: float
    first: tuple[float, ...]
    strategies: list[np.ndarray] = field(default_factory=list)  # after each update

    def source(self, chosen: Any) -> mc.QueueSource:
        return mc.QueueSource(64)

    def make_model(self, spaces: mc.Spaces) -> torch.nn.Module:
        return Logits(self.first)

    def act(self, model: Any, obs: Any, *, explore: Any, state: Any, mask: Any, generator: Any) -> mc.Action:
        odds = model.strategy if explore is None else 0.95 * model.strategy + 0.05 / 3
        return mc.Action(generator.choice(3, len(obs), p=odds))

    def make_trainer(self, model: Any) -> Any:
        return Weighing(self, model)


@dataclass
class Weighing(Stateless):
    algorithm: Multiplicative
    model: Logits

    def update(self, batch: Any) -> mc.Update:
        moves, rewards = batch.action.numpy(), batch.reward.double().numpy()
        paid = np.array([rewards[moves == move].mean() if (moves == move).any() else 0.0 for move in range(3)])
        with torch.no_grad():
            self.model.logits += self.algorithm.rate * torch.tensor(paid - paid.mean(), dtype=torch.float32)
        self.algorithm.strategies.append(self.model.strategy)
        return mc.Update({"loss": torch.zeros(())})


@LONG
def test_exploiters_end_the_cycle_of_rock_paper_scissors(tmp_path: Path) -> None:
    """The control is the same learner against itself alone: its best answer wins far more."""
    main, fast = (0.15, (1.0, 0.0, 0.0)), partial(Multiplicative, 1.0, (0.0, 0.0, 0.0))
    common: dict[str, Any] = {"replay": mc.ReplayConfig(), "learner": mc.LearnerConfig(device="cpu")}
    common["actor"] = mc.ActorConfig(envs=64)
    plain = Multiplicative(*main)
    play = mc.SelfPlayConfig(pool=8, latest=1.0, explore=True)
    runs.train(tmp_path / "plain", RockPaperScissors, plain, total_steps=12_800, self_play=play, **common)
    league = Multiplicative(*main)
    play = mc.SelfPlayConfig(
        pool=8, admit_updates=20, window=10, latest=0.0, draw="pfsp", power=4.0, explore=True, roles=ROLES
    )
    algorithms = {"main": league, "rival": fast(), "hunter": fast()}
    runs.train(tmp_path / "league", RockPaperScissors, algorithms, total_steps=76_800, self_play=play, **common)
    assert gain_against(plain) > 0.4 > 0.25 > gain_against(league)
    assert np.abs(np.mean(league.strategies[100:], axis=0) - 1 / 3).max() < 0.1


def gain_against(algorithm: Multiplicative) -> float:
    """The mean gain of a best response to the strategies of the run's second half."""
    late = np.array(algorithm.strategies[100:])
    assert len(late) > 90
    return float((late - np.roll(late, 1, axis=1)).max(axis=1).mean())
