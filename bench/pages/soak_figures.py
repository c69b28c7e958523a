"""What a soak's figures say: rates by minute, and a picture."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ..figures import picture

Figures = Mapping[str, Any]

CALLERS = {"adds": "adder", "samples": "sampler", "publishes": "publisher", "pulls": "subscriber"}  # workers' titles


def rates(figures: Figures) -> dict[str, list[float]]:
    """Calls a second in each minute, by name."""
    return {name: _changes(counts, figures["seconds"]) for name, counts in figures["counts"].items()}


def cpu_rates(figures: Figures) -> dict[str, list[float]]:
    """Calls in a second of their processes' CPU time, which other programs change less; of the core's calls."""
    cpu_rates = {}
    for name in (name for name in CALLERS if name in figures["counts"]):
        callers = [cpu_s for process, cpu_s in figures["cpu_s"].items() if process.startswith(f"{CALLERS[name]}-")]
        spent = [sum(cpu_s or 0.0 for cpu_s in each) for each in zip(*callers, strict=True)]
        cpu_rates[name] = _changes(figures["counts"][name], spent)
    return cpu_rates


def _changes(counts: list[int], spent: list[float]) -> list[float]:
    steps = zip(pairwise(counts), pairwise(spent), strict=True)
    return [(after - before) / (end - begin) for (before, after), (begin, end) in steps]


def spread(values: list[float]) -> list[float]:
    """The 5th percentile, the median and the 95th percentile."""
    return [float(value) for value in np.percentile(values, [5, 50, 95])]


def draw(path: Path, figures: Figures) -> None:
    """Memory, descriptors, rates and load over the minutes."""
    minutes = [seconds / 60 for seconds in figures["seconds"]]
    with picture(path, 5, figsize=(9, 13)) as (_, panels):
        for axes, measure in zip(panels, ("rss_mb", "anonymous_mb", "descriptors"), strict=False):
            for name, values in figures[measure].items():
                axes.plot(minutes, [float("nan") if value is None else value for value in values], label=name)
        for name, values in rates(figures).items():
            if middle := median(values):
                panels[3].plot(minutes[1:], [value / middle for value in values], label=f"{name}, {middle:,.3g}/s")
        panels[4].plot(minutes, figures["load"], color="#555555", label="load of the machine")
        labels = "resident MB", "anonymous MB", "descriptors", "rate / its median", "load"
        for axes, label in zip(panels, labels, strict=True):
            axes.set(ylabel=label, xlim=(0, minutes[-1]), ylim=(0, None))
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
        panels[4].set_xlabel("minutes")
