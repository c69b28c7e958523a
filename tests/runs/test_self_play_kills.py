"""Self-play under SIGKILL: of the learner, of an actor, and of everything; the payoff table and the pool survive."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from arena import ROLES, SIDES, Arena, Banded, Marking, episodes_of
from arena_games import played, table
from processes import sweep, until
from whole_runs import Runs, checkpoint, kill, kill_once, opponents_of, steps_of

from marlcore.processes import ForkServer

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("undrawn", "shared_fork_server")]

runs = Runs(
    mode="async",
    total_steps=10**9,
    actor={"envs": 4, "sync_interval": 5},
    learner={"n_step": 1, "publish_interval": 1, "checkpoint_interval": 40},
    self_play={"pool": 4, "admit_updates": 25, "latest": 0.0, "draw": "uniform"},
    supervision={"backoff": 0.0, "max_restarts": 100},
)


def saved(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "checkpoints" / "main.pt"
    return torch.load(path, weights_only=True)["self_play"]["payoff"]["totals"] if path.exists() else {}


def games(run_dir: Path) -> int:
    return sum(sum(counts) for counts in saved(run_dir).values())


LEAGUE = {name: Banded(place=place) for place, name in enumerate(ROLES)}


@pytest.mark.parametrize(
    ("victim", "lost", "algorithm", "roles"),
    [("learner-main", 0, Marking(), {}), ("actor-0", 4, Marking(), {}), ("learner-rival", 0, LEAGUE, ROLES)],
    ids=["learner", "actor", "exploiter"],
)
def test_the_table_counts_every_game_despite_kills(
    tmp_path: Path, victim: str, lost: int, algorithm: Any, roles: dict[str, str]
) -> None:
    """A killed actor loses at most the results of its copies, which it had no time to report."""
    notes = tmp_path / "notes"
    steps = 6_000 * max(len(roles), 1)
    with runs.start(tmp_path, partial(Arena, notes), algorithm, total_steps=steps, self_play={"roles": roles}) as run:
        for kills in (1, 2):
            until(lambda: games(run.run_dir) > 60 * kills)  # noqa: B023 - called at once
            kill(run, victim)
            until(lambda: run.status().restarts[victim] == kills)  # noqa: B023
        result = run.wait(timeout=1800)  # its actors end before its learner, which a run that is stopped does not await
    seen, counted = played(notes), table(result.run_dir)
    assert result.restarts[victim] == 2
    missing = {kind: seen[kind] - counted[kind] for kind in counted}
    assert all(0 <= one <= 2 * lost for one in missing.values()), (missing, seen)


def play(folder: Path, notes: Path) -> None:
    runs.train(folder, partial(Arena, notes), Marking())


def test_the_table_and_the_pool_survive_sigkill_of_everything(tmp_path: Path, fork_server: ForkServer) -> None:
    run_dir, notes = tmp_path / "run", tmp_path / "notes"

    def enough() -> bool:
        return games(run_dir) > 100 and len(opponents_of(run_dir)) >= 4

    kill_once(enough, fork_server, play, tmp_path, notes)
    before = saved(run_dir)
    newest = list(opponents_of(run_dir).values())[-4:]
    restored = {float(torch.load(path, weights_only=True)["acting"]["model.mark"][0]) for path in newest}
    assert sum(table(run_dir).values()) <= sum(sum(one) for one in before.values()), "never newer than the checkpoint"
    resumed = tmp_path / "resumed"
    steps = max(steps_of(run_dir), checkpoint(run_dir, "main")["step"]) + 3_000
    runs.train(tmp_path, partial(Arena, resumed), Marking(), total_steps=steps, resume=True)
    after = saved(run_dir)
    assert all(now >= then for n, counts in before.items() for now, then in zip(after[n], counts, strict=True))
    new = played(resumed)
    counts = np.sum([*before.values()], 0).tolist()
    assert table(run_dir) == Counter(dict(zip(("wins", "draws", "losses"), counts, strict=True))) + new
    firsts = {acted[side][0] for acted in episodes_of(resumed).values() for side in SIDES}
    frozen = {action for action in firsts if action % 1 == 0}
    assert len(restored & frozen) >= 2, "restored opponents have played, with their own weights"
    sweep()
