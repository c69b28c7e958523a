"""One run a seed, and their curves together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..checks import absolute
from .config import Config
from .record import RUNS, plot_runs, read_config, read_metrics
from .run import Algorithms, Result, train


def train_seeds(
    env_fn: Callable[[], Any] | str,
    algorithm: Algorithms,
    config: Config,
    seeds: Sequence[int],
    *,
    progress: bool = True,
) -> list[Result]:
    """Trains once with each seed, one run after another, each with the whole machine.

    The runs' directories are config.run_dir/seed-SEED, by default in runs/<date and time>-seeds; beside them,
    curves.png shows the mean of the runs, and a band from the lowest to the highest.

    Raises: as `train`; ValueError also if a seed comes twice.
    """
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds: expected different ones, got {list(seeds)}")
    folder = absolute(config.run_dir or f"{RUNS}/{time.strftime('%Y%m%d-%H%M%S')}-seeds")
    config = config.with_absolute_paths()
    results = []
    for seed in seeds:
        seeded = replace(config, seed=seed, run_dir=str(folder / f"seed-{seed}"))
        results.append(train(env_fn, algorithm, seeded, progress=progress))
        runs = [read_metrics(result.run_dir / "metrics.csv") for result in results]
        described = read_config(results[0].run_dir)
        title = f"{described['env']}, {described['algorithm']}, seeds {', '.join(map(str, seeds[: len(runs)]))}"
        plot_runs(runs, folder / "curves.png", title)
    return results
