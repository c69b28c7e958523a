"""Leagues: games with more than two seats."""

import itertools
import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arena import ANCHOR, Arena, Marking, episodes_of, weak
from arena_games import marks, rows_of
from crowd import Contest
from whole_runs import Runs

import marlcore as mc

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

THREE = ("left", "middle", "right")
runs = Runs(
    total_steps=3_000,
    actor={"envs": 4, "sync_interval": 5},
    learner={"n_step": 1, "publish_interval": 5, "log_interval": 50},
    replay={"capacity": 48_000, "save": True},
    self_play={"pool": 64, "admit_updates": 25, "latest": 0.3, "anchors": {weak: 0.3}, "draw": "uniform"},
)


def tables(result: mc.Result, name: str = "payoff.json") -> Any:
    return json.loads((result.run_dir / name).read_text())["opponents"].items()


def test_each_other_seat_draws_an_opponent_of_its_own(tmp_path: Path) -> None:
    """The policy's own seat goes round; rows are of the seats it holds, and each pair of seats is a game."""
    notes = tmp_path / "notes"
    notes.mkdir()
    result = runs.train(tmp_path, partial(Arena, notes, sides=THREE), Marking())
    number_of = {mark: number for number, mark in marks(result.run_dir).items()}
    rows: set[tuple[int, ...]] = set()
    games: dict[str, Counter[str]] = {}
    kinds: Counter[str] = Counter()
    seats: dict[int, set[int]] = {}
    for (number, episode), acted in episodes_of(notes, THREE).items():
        sums = np.array([sum(values) for values in acted.values()])
        returns = np.sign(sums[:, None] - sums).sum(axis=1)
        names = [name_of(values, number_of) for values in acted.values()]
        kinds.update([" ".join(sorted(name.partition(":")[0] for name in names))])
        learning = [seat for seat, name in enumerate(names) if name == "learner"]
        rows |= {(number, episode, seat, turn) for seat in learning for turn in range(len(acted[THREE[seat]]))}
        if len(learning) == 1:
            seats.setdefault(number, set()).add((learning[0] - episode) % 3)
        for mine, other in itertools.product(learning, range(3)):
            if names[other] != "learner":
                won = {1: "wins", 0: "draws", -1: "losses"}[int(np.sign(returns[mine] - returns[other]))]
                games.setdefault(names[other], Counter())[won] += 1
    assert kinds.keys() > {"learner learner learner", "anchor learner pool", "anchor anchor learner"}
    assert len(seats) == 4 and all(len(begun) == 1 for begun in seats.values())
    (found,) = rows_of(result.run_dir, parts=1)
    ended = {row[:2] for row in rows}
    assert {row for row in found if row[:2] in ended} == rows and set(found.values()) == {1}
    written = {name: Counter({key: row[key] for key in ("wins", "draws", "losses")}) for name, row in tables(result)}
    assert written == games


def name_of(values: list[float], number_of: dict[float, int]) -> str:
    """Who acted so in an episode; an opponent keeps its weights to the end, and the learner explores."""
    if values[0] % 1 == 0.25:
        return "learner"
    assert len(set(values)) == 1
    return "anchor:weak" if values[0] == ANCHOR else f"pool:{number_of[values[0]]}"


def test_a_game_of_three_is_learnt(tmp_path: Path) -> None:
    """Each agent names what it sees; the last policy beats two of the first one from every seat."""
    result = runs.train(
        tmp_path, partial(Contest, 3), mc.DQN(hidden=(16,), learning_rate=3e-3, reward_scale=1.0), total_steps=6_000,
        updates_per_step=0.25, learner={"n_step": 1, "gamma": 0.5}, self_play={"anchors": {}, "pool": 8},
        evaluation={"interval": 3_000, "episodes": 6},
        exploration=mc.ExplorationConfig(epsilon=mc.Linear(1.0, 0.1, 3_000)),
    )  # fmt: skip
    first = mc.load_policy(result.run_dir, "main", "opponent-1")
    for seat in range(3):
        others = {f"agent_{i}": first for i in range(3) if i != seat}
        assert mc.evaluate(result.run_dir, 10, policies=others).mean[f"agent_{seat}"] > 5
