"""Runs with several seeds, and their curves together."""

from pathlib import Path

import pytest
from hunt import HUNT

import marlcore as mc
from marlcore.processes import Metric
from marlcore.training import train_seeds
from marlcore.training.record.curves import draw_runs


@pytest.mark.long
def test_each_seed_has_a_run_of_its_own_and_one_picture_shows_all(tmp_path: Path) -> None:
    config = mc.Config(total_steps=1500, mode="serial", run_dir=str(tmp_path / "all"))
    results = train_seeds(HUNT, "dqn", config, [3, 5], progress=False)
    assert [result.run_dir for result in results] == [tmp_path / "all" / f"seed-{seed}" for seed in (3, 5)]
    assert results[0].returns != results[1].returns
    assert (tmp_path / "all" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_seed_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"seeds: expected different ones, got \[1, 1\]"):
        train_seeds(HUNT, "dqn", mc.Config(run_dir=str(tmp_path / "all")), [1, 1])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lengths", [(0, 0), (1, 1), (1, 40), (40, 0)])
def test_runs_of_any_length_make_a_picture(tmp_path: Path, lengths: tuple[int, int]) -> None:
    runs = [[Metric(float(i), i, "agent_0", "episode_return", i % 7) for i in range(length)] for length in lengths]
    draw_runs(runs, tmp_path / "curves.png", "title")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
