"""The learning curves of a run as a picture."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .rundir import Metric, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

_MAX_POINTS = 4000  # a curve is 1200 pixels wide; more points only cost time


def draw(metrics: list[Metric], path: Path, title: str) -> None:
    """Draw each agent's `episode_return` over environment steps, 1200 x 700 pixels, as a PNG at `path`.

    Faint points are episodes, the line is their trailing mean. NaN and infinite returns are left out. The
    file is replaced at once, so a viewer never sees half a picture.
    """
    # Imported here: matplotlib takes longer to import than marlcore itself.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=15, pad=12, parse_math=False)  # a title may hold a dollar sign
    curves = _returns(metrics)
    _style(axes)
    if curves:
        _draw_curves(axes, curves)
        figure.legend(loc="outside right upper", frameon=False)
    else:
        axes.text(0.5, 0.5, "No episode has ended yet", transform=axes.transAxes, ha="center", fontsize=15)
    png = io.BytesIO()
    FigureCanvasAgg(figure).print_png(png)
    write_atomically(Path(path), png.getvalue())


def _returns(metrics: list[Metric]) -> dict[str, NDArray[np.float64]]:
    """By agent in name order: an [episodes, 2] array of step and return, in order of steps."""
    points: dict[str, list[tuple[int, float]]] = {}
    for metric in metrics:
        if metric.name == "episode_return" and math.isfinite(metric.value):
            points.setdefault(metric.agent, []).append((metric.step, metric.value))
    # Several actors report, so their episodes arrive out of order.
    return {
        agent: np.array(sorted(points[agent], key=lambda p: p[0]), np.float64) for agent in sorted(points)
    }


def _trailing_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """The mean of the last `window` values at each place; of all so far where there are fewer."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    means: NDArray[np.float64] = (sums[ends] - sums[starts]) / (ends - starts)
    return means


def _style(axes: Axes) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel("environment steps", fontsize=12)
    axes.set_ylabel("episode return", fontsize=12)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 200k rather than 200000
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)


def _draw_curves(axes: Axes, curves: dict[str, NDArray[np.float64]]) -> None:
    colors = _colors(len(curves))
    for (agent, points), color in zip(curves.items(), colors, strict=True):
        steps, returns = points.T
        window = min(100, max(1, len(returns) // 10))
        mean = _trailing_mean(returns, window)
        every = slice(None, None, 1 + len(returns) // _MAX_POINTS)
        axes.plot(steps[every], returns[every], ".", color=color, markersize=3, alpha=0.2, markeredgewidth=0)
        # A white rim keeps lines apart where they cross the points.
        axes.plot(steps[every], mean[every], color="white", linewidth=3.5, zorder=3)
        label = f"{agent or 'all'} (mean of {window})"
        axes.plot(steps[every], mean[every], color=color, linewidth=2, zorder=4, label=label)


def _colors(n: int) -> list[Any]:
    from matplotlib import colormaps

    return list(colormaps["tab10"].colors[:n]) if n <= 10 else list(colormaps["turbo"](np.linspace(0, 1, n)))
