"""Self-play in Connect Four: no masked action is ever taken, and no target looks at one.

The long form, `python tests/long.py masks [MOVES]`, plays that many moves with two policies, then with one that both
players share; then as many, up to 20,000, with an algorithm that ignores masks, which both counts must notice.
"""

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from whole_runs import LONG, Runs, values_of

import marlcore as mc
from marlcore.algos import dqn
from marlcore.loops import ActingPolicy

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

runs = Runs(
    actor={"envs": 8},
    learner={"batch_size": 64, "warmup": 200, "n_step": 2},
    exploration={"epsilon": 0.2},
    updates_per_step=0.05,
)
SHARED = {"player_0": "player", "player_1": "player"}


class Referee:
    """Connect Four that counts all moves and the moves that the mask forbids, which end the game."""

    def __init__(self, folder: Path) -> None:
        self._env = mc.NamedEnvironment("pettingzoo:classic.connect_four_v3")()
        self._path = folder / f"{os.getpid()}-{id(self)}.json"
        self._counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: int | None) -> None:
        if action is not None:
            mask = self._env.observe(self._env.agent_selection)["action_mask"]
            self._counts["moves"] += 1
            self._counts["illegal moves"] += not mask[action]
        self._env.step(action)

    def close(self) -> None:
        self._path.write_text(json.dumps(self._counts))
        self._env.close()


class Watched(mc.DQN):
    """DQN whose trainer reports, for each batch, the targets that no allowed action explains."""

    def make_trainer(self, model: Any) -> Any:
        return WatchedTrainer(self, model)


class WatchedTrainer(dqn.DQNTrainer):
    def update(self, batch: Any) -> mc.Update:
        update = super().update(batch)
        return replace(update, metrics={**update.metrics, "illegal_targets": self.illegal})

    @torch.no_grad()
    def targets(self, batch: Any) -> torch.Tensor:
        targets = super().targets(batch)
        values = self.target(batch.next_obs)
        explained = (self.hyper.reward_scale * batch.reward + batch.discount * values.T).T
        allowed = batch.next_obs["action_mask"] & ((explained - targets[:, None]).abs() < 1e-6)
        self.illegal = ((batch.discount > 0) & ~allowed.any(1)).sum().float()
        return targets


class Blind(Watched):
    """Ignores masks: the control."""

    def make_model(self, spaces: mc.Spaces) -> Any:
        model = super().make_model(spaces)
        model.allowed = lambda obs, values: None
        return model

    def act(self, model: Any, obs: Any, *, mask: Any, **others: Any) -> mc.Action:
        return super().act(model, obs, mask=None, **others)


def play(folder: Path, algorithm: mc.Algorithm, **changes: Any) -> Counter[str]:
    moves = folder / "moves"
    moves.mkdir()
    result = runs.train(folder, partial(Referee, moves), algorithm, **changes)
    counts = sum((Counter[str](json.loads(path.read_text())) for path in moves.iterdir()), Counter[str]())
    reported = values_of(result.run_dir, "illegal_targets")
    assert reported, "nothing was learned"
    learner = runs.config.learner
    counts["targets"] = len(reported) * learner.log_interval * learner.batch_size
    counts["illegal targets"] = int(sum(reported) * learner.log_interval)
    return counts


def play_blindly(folder: Path, steps: int) -> Counter[str]:
    """The counts of a run that ignores masks, with marlcore's own check off."""
    with patch.object(ActingPolicy, "_check_allowed"):
        return play(folder, Blind(), total_steps=steps)


@pytest.mark.parametrize(
    ("policies", "mode"),
    [
        (SHARED, "serial"),
        *(pytest.param(*case, marks=LONG) for case in ((None, "serial"), (SHARED, "async"), (None, "async"))),
    ],
)
def test_no_masked_action_is_taken_or_looked_at(tmp_path: Path, policies: Any, mode: str) -> None:
    pytest.importorskip("pygame", reason="Connect Four needs it")
    counts = play(tmp_path, Watched(), mode=mode, policies=policies, total_steps=2_500)
    assert 2_500 <= counts["moves"] < 2_500 + 8
    assert counts["targets"] > 5_000
    assert counts["illegal moves"] == counts["illegal targets"] == 0


@LONG
def test_an_algorithm_that_ignores_masks_is_caught(tmp_path: Path) -> None:
    """The control of both counts; marlcore itself refuses such actions."""
    pytest.importorskip("pygame", reason="Connect Four needs it")
    counts = play_blindly(tmp_path, 5_000)
    assert counts["illegal moves"] > 20 and counts["illegal targets"] > 20, counts


def report(label: str, work: Callable[[Path], Counter[str]]) -> Counter[str]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counts = work(Path(folder))
    print(f"{label}: {dict(counts)}, {time.monotonic() - began:.0f} s", flush=True)
    return counts


def main(steps: int = 1_000_000) -> bool:
    watched = partial(play, algorithm=Watched(), mode="async", total_steps=steps)
    runs = [report("two policies", watched), report("one shared policy", partial(watched, policies=SHARED))]
    control = report("control", partial(play_blindly, steps=min(steps, 20_000)))
    whole = all(counts["illegal moves"] == counts["illegal targets"] == 0 for counts in runs)
    return not (whole and control["illegal moves"] and control["illegal targets"])
