"""What runs of the arena noted: who played whom with which weights, whose rows lie where, and what the payoff says."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arena import ANCHOR, SIDES, episodes_of
from whole_runs import opponents_of, saved_replay


def marks(run_dir: Path, policy: str = "main") -> dict[int, float]:
    """The weight of each opponent that was admitted, by number."""
    states = {number: torch.load(path, weights_only=True) for number, path in opponents_of(run_dir, policy).items()}
    return {number: float(state["acting"]["model.mark"][0]) for number, state in states.items()}


def rows_of(run_dir: Path, parts: int = 2, policy: str = "main") -> list[Counter[tuple[int, int, int, int]]]:
    """How often each (environment, episode, side, round) lies in each part of the replay."""
    counters = []
    with saved_replay(run_dir, policy) as replay:
        size = replay.lanes // parts
        for part in range(parts):
            lanes = range(part * size, (part + 1) * size)
            sampler = replay.sampler(40_000, lanes=lanes, min_size=1, seed=0)
            batches = [sampler.sample() for _ in range(8)]  # one alone misses some of 4,000 rows in every tenth run
            _, rows = np.unique(np.concatenate([batch.index for batch in batches]), return_index=True)
            drawn = np.concatenate([batch.obs for batch in batches])[rows]
            counters.append(Counter(map(tuple, drawn.astype(int).tolist())))
    return counters


def kind_of(acted: dict[str, list[float]], side: str, frozen: set[float]) -> str:
    """Who played a side: the learning policy's actions all lie a quarter above whole numbers."""
    values = set(acted[side])
    if values == {ANCHOR}:
        return "anchor"
    if all(value % 1 == 0.25 for value in values):
        return "learner"
    assert len(values) == 1 and values <= frozen, values
    return "pool"


def sides_of(run_dir: Path, folder: Path) -> dict[tuple[int, int], dict[str, str]]:
    frozen = set(marks(run_dir).values())
    return {key: {side: kind_of(acted, side, frozen) for side in SIDES} for key, acted in episodes_of(folder).items()}


def check_opponents(run_dir: Path, folder: Path) -> None:
    """Opponents acted with exactly the weights that were admitted, the same ones throughout an episode."""
    admitted = marks(run_dir)
    assert list(admitted) == list(range(1, len(admitted) + 1)) and len(admitted) > 8
    assert admitted[1] == 0.0 and sorted(admitted.values()) == list(admitted.values())
    kinds = Counter(frozenset(one.values()) for one in sides_of(run_dir, folder).values())
    assert kinds.keys() == {frozenset({"learner"}), frozenset({"learner", "pool"}), frozenset({"learner", "anchor"})}
    played_by = {mark for acted in episodes_of(folder).values() for side in SIDES for mark in acted[side]}
    assert len(played_by & set(admitted.values())) > len(admitted) / 2, "many of them were drawn"


def check_parts(run_dir: Path, folder: Path) -> None:
    """Each part of the replay has the rows of the learning policy's sides against its opponents, each once."""
    anchor, pool = rows_of(run_dir)
    assert set(anchor.values()) == set(pool.values()) == {1}
    sides, rounds = sides_of(run_dir, folder), episodes_of(folder)
    expected: tuple[set[Any], set[Any]] = set(), set()
    for (number, episode), kinds in sides.items():
        part = expected[0 if "anchor" in kinds.values() else 1]
        for i, side in enumerate(SIDES):
            if kinds[side] == "learner":
                part.update((number, episode, i, turn) for turn in range(len(rounds[number, episode][side])))
    ended = set(sides)
    for found, wanted in zip((anchor, pool), expected, strict=True):
        assert {row for row in found if row[:2] in ended} == wanted  # the last episodes did not end


def check_table(run_dir: Path, folder: Path) -> None:
    number_of = {mark: number for number, mark in marks(run_dir).items()}
    episodes, expected = episodes_of(folder), dict[str, Counter[str]]()
    for key, kinds in sides_of(run_dir, folder).items():
        learner = [side for side in SIDES if kinds[side] == "learner"]
        if len(learner) == 1:
            (mine,), (other,) = learner, [side for side in SIDES if side != learner[0]]
            acted, theirs = episodes[key][mine], episodes[key][other]
            name = "anchor:weak" if kinds[other] == "anchor" else f"pool:{number_of[theirs[0]]}"
            expected.setdefault(name, Counter())["wins" if sum(acted) > sum(theirs) else "losses"] += 1
    table = json.loads((run_dir / "payoff.json").read_text())["opponents"]
    assert table.keys() == expected.keys()
    for name, counts in expected.items():
        found = [table[name][kind] for kind in ("wins", "losses", "draws", "games")]
        assert found == [counts["wins"], counts["losses"], 0, counts.total()]


def played(folder: Path) -> Counter[str]:
    """The learning policy's results, by the environments' notes; since it explores, it adds a quarter."""
    games: Counter[str] = Counter()
    for acted in episodes_of(folder).values():
        (learning,) = (side for side in SIDES if acted[side][0] % 1 == 0.25)
        (frozen,) = (side for side in SIDES if side != learning)
        lead = sum(acted[learning]) - sum(acted[frozen])
        games["wins" if lead > 0 else "losses" if lead < 0 else "draws"] += 1  # weights may change in a game
    return games


def table(run_dir: Path) -> Counter[str]:
    """Games that all policies' tables count."""
    tables = [json.loads(path.read_text()) for path in run_dir.glob("payoff*.json")]
    rows = [row for table in tables for row in table["opponents"].values()]
    return Counter({kind: sum(row[kind] for row in rows) for kind in ("wins", "draws", "losses")})
