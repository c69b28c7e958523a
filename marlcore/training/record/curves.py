"""The learning curves of a run as a PNG."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...processes import Metric
from .canvas import canvas, say_that_none_ended
from .run_directory import agent_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GRID = 500  # steps at which runs are compared
MAX_POINTS = 4000  # a curve is 1200 pixels wide; more points only cost time


def draw(metrics: list[Metric], path: Path, title: str) -> None:
    """Draw each agent's `episode_return` over environment steps, 1200 x 700 pixels, as a PNG at `path`.

    Points are episodes, the line is their running mean. NaN and infinite returns are omitted. The file is replaced
    atomically, so a viewer never reads half a picture.
    """
    curves = returns_of(metrics)
    label = "return (points: episodes, lines: running means)"
    _picture(path, title, label, (lambda axes: _draw_curves(axes, curves)) if curves else None)


def draw_runs(runs: list[list[Metric]], path: Path, title: str) -> None:
    """Draw each agent's running mean over several runs, such as one a seed: their mean, and a band from the lowest to
    the highest; otherwise as `draw`.
    """
    curves = [returns_of(metrics) for metrics in runs]
    agents = [agent for agent in curves[0] if all(agent in one for one in curves)] if curves else []
    label = "return (lines: means of the runs, bands: lowest to highest)"
    _picture(path, title, label, (lambda axes: _draw_bands(axes, curves, agents)) if agents else None)


def _picture(path: Path, title: str, label: str, fill: Callable[[Axes], None] | None) -> None:
    """A picture that `fill` fills; None: that no episode has ended."""
    with canvas(path, title, 7) as (figure, axes):
        _style(axes, label)
        if fill is None:
            say_that_none_ended(axes)
            return
        fill(axes)
        widest = max(len(label) for label in axes.get_legend_handles_labels()[1])
        # Below the axes: beside the curves, the legend would take a sixth of the width.
        figure.legend(loc="outside lower center", frameon=False, ncols=max(1, 160 // (widest + 8)))


def returns_of(metrics: list[Metric]) -> dict[str, NDArray[np.float64]]:
    """By agent, in order: an [episodes, 2] array of step and return, in order of steps."""
    points: dict[str, list[tuple[int, float]]] = {}
    for metric in metrics:
        if metric.name == "episode_return" and math.isfinite(metric.value):
            points.setdefault(metric.agent, []).append((metric.step, metric.value))
    # Several actors report, so their episodes come out of order.
    return {
        agent: np.array(sorted(points[agent], key=lambda point: point[0]), np.float64)
        for agent in sorted(points, key=agent_order)
    }


def running_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """The mean of the last `window` values at each index from window - 1 on."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    means: NDArray[np.float64] = (sums[window:] - sums[:-window]) / window
    return means


def thin(steps: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A [2, at most MAX_POINTS] array of evenly picked points."""
    return np.stack((steps, values))[:, :: 1 + (len(steps) - 1) // MAX_POINTS]


def _style(axes: Axes, label: str) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel("environment steps", fontsize=12)
    axes.set_ylabel(label, fontsize=12)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 200k rather than 200000
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_curves(axes: Axes, curves: dict[str, NDArray[np.float64]]) -> None:
    last = max(points[-1, 0] for points in curves.values())
    axes.set_xlim(0, max(10, 1.01 * last))  # at least 10, so that ticks fall on whole steps
    colors = _colors(len(curves))
    for (agent, points), color in zip(curves.items(), colors, strict=True):
        steps, returns = points.T
        window = _window(len(returns))
        mean = thin(steps[window - 1 :], running_mean(returns, window))
        axes.plot(*thin(steps, returns), ".", color=color, markersize=6, alpha=0.4, markeredgewidth=0)
        # A white rim separates the line from the points.
        axes.plot(*mean, color="white", linewidth=3.5, zorder=3)
        label = f"{agent or 'all'}: mean of {window} episode{'s'[: window > 1]}"
        marker = "o" if mean.shape[1] == 1 else None  # one episode makes no line
        axes.plot(*mean, color=color, linewidth=2, marker=marker, zorder=4, label=label)


def _draw_bands(axes: Axes, curves: list[dict[str, NDArray[np.float64]]], agents: list[str]) -> None:
    last = max(points[-1, 0] for one in curves for points in one.values())
    axes.set_xlim(0, max(10, 1.01 * last))
    for agent, color in zip(agents, _colors(len(agents)), strict=True):
        means = []
        for one in curves:
            steps, returns = one[agent].T
            window = _window(len(returns))
            means.append((steps[window - 1 :], running_mean(returns, window)))
        # Where every run has a mean.
        grid = np.linspace(max(steps[0] for steps, _ in means), min(steps[-1] for steps, _ in means), GRID)
        rows = np.stack([np.interp(grid, *mean) for mean in means])
        axes.fill_between(grid, rows.min(0), rows.max(0), color=color, alpha=0.2, linewidth=0)
        axes.plot(grid, rows.mean(0), color=color, linewidth=2, label=f"{agent or 'all'}: mean of {len(rows)} runs")


def _window(episodes: int) -> int:
    """Of a running mean: wide enough to be smooth, at most a tenth of the run, so that short runs keep their shape."""
    return max(1, min(100, episodes // 10), episodes // 50)


def _colors(n: int) -> list[Any]:
    from matplotlib import colormaps

    return list(colormaps["tab10"](np.arange(n)) if n <= 10 else colormaps["turbo"](np.linspace(0, 1, n)))
