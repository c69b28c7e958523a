"""The picture of a task's curves beside those of another."""

from __future__ import annotations

from pathlib import Path

from marlcore.processes import Metric

from .results import _draw


def test_the_curves_of_two_tasks_are_one_picture(tmp_path: Path) -> None:
    def curves(agent: str) -> list[list[Metric]]:
        return [[Metric(0.0, step, agent, "episode_return", float(step)) for step in (100, 200)] for _ in range(2)]

    _draw("ours", curves("agent_0"), "theirs", curves("agent_0"), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
