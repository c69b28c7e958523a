"""Plots the returns of one run, or of several runs together, as PNG files."""

from __future__ import annotations

import io
import math
import textwrap
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..checks import printable
from ..processes import Metric
from .files import write_atomically
from .run_directory import agent_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRID = 500  # number of steps at which runs are compared
MAX_POINTS = 4000  # of a curve 1200 pixels wide: more points would only cost time
_plotting = threading.Lock()  # several runs may end at once

Points = NDArray[np.float64]  # [episodes, 2]: step and return, in order of steps


@contextmanager
def canvas(path: Path, title: str, height: float) -> Iterator[tuple[Figure, Axes]]:
    """Yields a figure of 1200 by 100 * `height` pixels; writes it to `path` at the end of the `with` block."""
    # Imported here: matplotlib takes longer to import than marlcore itself.
    from matplotlib.figure import Figure

    with _plotting:
        figure = Figure(figsize=(12, height), dpi=100, layout="constrained")
        axes = figure.add_subplot()
        title = textwrap.fill(printable(title), 100)
        axes.set_title(title, fontsize=15, pad=12, parse_math=False)  # it may contain a dollar sign
        yield figure, axes
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=100)
    write_atomically(path, png.getvalue())


def say_that_none_ended(axes: Axes) -> None:
    """Writes "no episode has ended" into an empty picture."""
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, "no episode has ended", transform=axes.transAxes, ha="center", fontsize=15)


def plot_run(metrics: Iterable[Metric], path: Path, title: str) -> None:
    """Plots each agent's finite `episode_return`s over steps as points, and their running mean, as a PNG at `path`."""
    _plot(path, title, "return (points: episodes, lines: running means)", [metrics], _plot_episodes)


def plot_runs(runs: Sequence[Iterable[Metric]], path: Path, title: str) -> None:
    """Plots the mean of several runs' running means, and a band from the lowest to the highest; see `plot_run`."""
    _plot(path, title, "return (lines: means of the runs, bands: lowest to highest)", runs, _plot_band)


def _plot(
    path: Path,
    title: str,
    label: str,
    runs: Sequence[Iterable[Metric]],
    plot_agent: Callable[[Axes, str, list[Points], Any], None],
) -> None:
    from matplotlib import colormaps
    from matplotlib.ticker import EngFormatter

    returns = [returns_of(metrics) for metrics in runs]
    agents = [agent for agent in returns[0] if all(agent in by_agent for by_agent in returns)]
    with canvas(path, title, 7) as (figure, axes):
        axes.set_xlabel("environment steps", fontsize=12)
        axes.set_ylabel(label, fontsize=12)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 200k rather than 200000
        axes.grid(color="0.9")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if not agents:
            say_that_none_ended(axes)
            return
        last = max(points[-1, 0] for by_agent in returns for points in by_agent.values())
        axes.set_xlim(0, max(10, 1.01 * last))  # at least 10, so that ticks fall on whole steps
        few = len(agents) <= 10
        colors = colormaps["tab10" if few else "turbo"](
            np.arange(len(agents)) if few else np.linspace(0, 1, len(agents))
        )
        for agent, color in zip(agents, colors, strict=True):
            name = f" {agent}" if agent.startswith("_") else agent  # matplotlib shows no label that begins with "_"
            plot_agent(axes, printable(name) or "all", [by_agent[agent] for by_agent in returns], color)
        widest = max(len(label) for label in axes.get_legend_handles_labels()[1])
        # Below the axes: beside the curves, the legend would take a sixth of the width.
        legend = figure.legend(loc="outside lower center", frameon=False, ncols=max(1, 160 // (widest + 8)))
        for text in legend.get_texts():
            text.set_parse_math(False)


def _plot_episodes(axes: Axes, agent: str, runs: list[Points], color: Any) -> None:
    ((steps, returns),) = (points.T for points in runs)
    window = _window(len(returns))
    mean = thin(steps[window - 1 :], running_mean(returns, window))
    axes.plot(*thin(steps, returns), ".", color=color, markersize=6, alpha=0.4, markeredgewidth=0)
    axes.plot(*mean, color="white", linewidth=3.5, zorder=3)  # a rim that separates the line from the points
    label = f"{agent}: mean of {window} episode{'s'[: window > 1]}"
    marker = "o" if mean.shape[1] == 1 else None  # one episode makes no line
    axes.plot(*mean, color=color, linewidth=2, marker=marker, zorder=4, label=label)


def _plot_band(axes: Axes, agent: str, runs: list[Points], color: Any) -> None:
    means = []
    for steps, returns in (points.T for points in runs):
        window = _window(len(returns))
        means.append((steps[window - 1 :], running_mean(returns, window)))
    grid = np.linspace(max(steps[0] for steps, _ in means), min(steps[-1] for steps, _ in means), GRID)
    rows = np.stack([np.interp(grid, *mean) for mean in means])
    axes.fill_between(grid, rows.min(0), rows.max(0), color=color, alpha=0.2, linewidth=0)
    axes.plot(grid, rows.mean(0), color=color, linewidth=2, label=f"{agent}: mean of {len(rows)} runs")


def returns_of(metrics: Iterable[Metric]) -> dict[str, Points]:
    """Returns each agent's finite returns, in order of steps."""
    flat: dict[str, array[float]] = {}  # step, return, step, return ...
    for metric in metrics:
        if metric.name == "episode_return" and math.isfinite(metric.value):
            flat.setdefault(metric.agent, array("d")).extend((metric.step, metric.value))
    points = {agent: np.frombuffer(flat[agent]).reshape(-1, 2) for agent in sorted(flat, key=agent_order)}
    # Several actors report, so their episodes come out of order.
    return {agent: episodes[episodes[:, 0].argsort(kind="stable")] for agent, episodes in points.items()}


def running_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Returns the means of each `window` consecutive values."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    return (sums[window:] - sums[:-window]) / window


def thin(steps: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns evenly spaced points as an array [2, at most MAX_POINTS]."""
    return np.stack((steps, values))[:, :: 1 + (len(steps) - 1) // MAX_POINTS]


def _window(episodes: int) -> int:
    """Returns the window of a running mean: 100 episodes, but at most a tenth and at least a fiftieth of all."""
    return max(1, min(100, episodes // 10), episodes // 50)
