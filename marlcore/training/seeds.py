"""Runs with several seeds, their table of progress and their curves together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from ..processes import Children
from .config import Config
from .record import Progress, SharedProgress, each_metric, plot_runs, read_config
from .run import Result
from .run_input import RunInput
from .several import begin_several, deliver, make_runs


def work_seeds(
    check: Callable[..., RunInput], config: Config | None, seeds: Sequence[int], parallel: int, progress: bool,
    children: Children,
) -> list[Result]:  # fmt: skip
    """The results with each seed; `check` makes the input with given settings. Raises: see `train_seeds`."""
    config = config or Config()
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds: expected different ones, got {list(seeds)}")
    folder = begin_several(config, parallel, "seeds")
    config = config.with_absolute_paths()
    inputs = {
        f"seed {seed}": check(replace(config, seed=seed, run_dir=str(folder / f"seed-{seed}")), progress)
        for seed in seeds
    }
    labels, results = dict(zip(inputs, seeds, strict=True)), dict[int, Result]()
    with ExitStack() as stack:
        table = None
        if progress:
            table = SharedProgress(stack.enter_context(Progress()), len(seeds) * config.total_steps)
        ended = make_runs(inputs, config.mode, parallel, children, folder, table)
        for label, result in stack.enter_context(closing(ended)):
            results[labels[label]] = result()
            _plot_ended(results, folder)
    deliver(children.interrupts, folder)
    return [results[seed] for seed in seeds]


def _plot_ended(results: Mapping[int, Result], folder: Path) -> None:
    """Plots the mean and the band of the runs that have ended; one that was stopped before its first step has none."""
    ended = {seed: result.run_dir for seed, result in results.items() if result.run_dir.exists()}
    if ended:
        described = read_config(next(iter(ended.values())))
        title = f"{described['env']}, {described['algorithm']}, seeds {', '.join(map(str, ended))}"
        plot_runs([each_metric(path / "metrics.csv") for path in ended.values()], folder / "curves.png", title)
