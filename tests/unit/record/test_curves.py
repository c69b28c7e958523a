"""Learning curves are pictures of the right size, whatever the metrics hold."""

import math
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from marlcore.processes import Metric
from marlcore.record import curves


def episode(step: int, value: float, agent: str = "agent_0") -> Metric:
    return Metric(step / 1000, step, agent, "episode_return", value)


def size(path: Path) -> tuple[int, int]:
    """Width and height, from the PNG's header chunk."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[-8:-4] == b"IEND"
    return struct.unpack(">II", data[16:24])


RUNS = {
    "many agents": [episode(25 * i, math.sin(i) - agent, f"agent_{agent}") for agent in range(14) for i in range(500)],
    "no return": [Metric(0.0, 1, "agent_0", "loss", 1.0)],
    "one return": [episode(0, 2.0)],
    "no finite return": [episode(1, math.nan), episode(2, math.inf)],
    "one of all agents": [episode(1, 2.0, agent="")],
    "names with a meaning": [episode(1, 2.0, agent=agent) for agent in ("_hidden", "$x_{$")],
    "hidden names": [episode(1, 2.0, agent="_hidden")],
}


@pytest.mark.parametrize("case", RUNS)
def test_runs_are_plotted_at_1200_by_700(tmp_path, case):
    """Alone and together with another run, without pyplot, which keeps figures alive and may look for a display."""
    loaded = "matplotlib.pyplot" in sys.modules
    curves.plot_run(RUNS[case], tmp_path / "one.png", "costs $5 or $x_")
    curves.plot_runs([RUNS[case], [episode(i, i % 7) for i in range(40)]], tmp_path / "two.png", "title")
    assert size(tmp_path / "one.png") == size(tmp_path / "two.png") == (1200, 700)
    assert len([*tmp_path.iterdir()]) == 2 and ("matplotlib.pyplot" in sys.modules) == loaded


def test_a_picture_is_replaced_only_when_the_next_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "curves.png"
    path.write_bytes(b"old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        curves.plot_run([episode(1, 2.0)], path, "run")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_returns_are_grouped_by_agent_and_ordered_by_step():
    metrics = [episode(20, 2.0, "a10"), episode(10, 1.0, "a10"), episode(5, 0.5, "a2"), episode(7, math.nan)]
    returns = curves.returns_of([*metrics, Metric(0.0, 1, "a", "loss", 9.0)])
    assert list(returns) == ["a2", "a10"] and returns["a2"].tolist() == [[5.0, 0.5]]
    assert returns["a10"].tolist() == [[10.0, 1.0], [20.0, 2.0]]


@pytest.mark.parametrize("window", [1, 2, 7, 20])
def test_the_running_mean_is_the_mean_of_the_last_values(window):
    values = np.random.default_rng(1).normal(size=20)
    expected = [values[end - window : end].mean() for end in range(window, 21)]
    np.testing.assert_allclose(curves.running_mean(values, window), expected)


@pytest.mark.parametrize("n", [1, 4000, 4001, 123_456])
def test_long_runs_are_thinned_evenly(n):
    steps = np.arange(n, dtype=np.float64)
    kept, values = curves.thin(steps, -steps)
    assert min(n, curves.MAX_POINTS / 2) <= len(kept) <= curves.MAX_POINTS
    assert len(set(np.diff(kept))) <= 1
    np.testing.assert_array_equal(values, -kept)


def test_a_window_is_at_most_a_tenth_of_a_short_run():
    assert [curves._window(episodes) for episodes in (5, 100, 5_000, 50_000)] == [1, 10, 100, 1_000]
