"""Runs with several seeds, their table of progress and their curves together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

from ..config import Config
from ..processes import Children
from ..record import Progress, SharedProgress, each_metric, plot_runs, read_config
from ..run import Launch, Result
from .several import begin_several, deliver, make_runs


def work_seeds(
    check: Callable[..., Launch], config: Config | None, seeds: Sequence[int], parallel: int, progress: bool,
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
            begun = {seed: made.run_dir for seed, made in results.items() if made.run_dir.exists()}
            if begun:  # else all that have ended were stopped before their first step
                described = read_config(next(iter(begun.values())))
                title = f"{described['env']}, {described['algorithm']}, seeds {', '.join(map(str, begun))}"
                plot_runs([each_metric(path / "metrics.csv") for path in begun.values()], folder / "curves.png", title)
    deliver(children.interrupts, folder)
    return [results[seed] for seed in seeds]
