"""Makes runs with several seeds, and plots their curves together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from logging import LogRecord
from typing import Any

from ..config import Config
from ..processes import Children
from ..record import SharedProgress, each_metric, plot_runs, read_config
from ..run import Algorithms, Result, policies_of
from .several import check_parallel, folder_of, make_runs, naming_what_continues, warned_once


def work_seeds(
    env_fn: Callable[[], Any] | str, algorithm: Algorithms, config: Config | None, seeds: Sequence[int],
    parallel: int, progress: bool, children: Children, **initial: Any,
) -> list[Result]:  # fmt: skip
    """Trains with each seed; returns results. `initial` has `init_from` and `init_strict`. Raises: as `train_seeds`."""
    config = config or Config()
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds: expected different ones, got {list(seeds)}")
    check_parallel(parallel, config)
    folder = folder_of("seeds", config.run_dir)
    config, results = config.with_absolute_paths(), dict[str, Result]()
    with ExitStack() as stack:
        stack.enter_context(warned_once(LogRecord.getMessage))
        stack.enter_context(naming_what_continues(folder, f"{folder}/seed-N"))
        waiting = {}
        for seed in seeds:
            of_seed = replace(config, seed=seed, run_dir=str(folder / f"seed-{seed}"))
            waiting[f"seed {seed}"] = {"env_fn": env_fn, "algorithm": algorithm, "config": of_seed, **initial}
        labels = [*waiting]
        for label in labels[:1]:  # the others differ in their seed and directory alone
            policies_of(**waiting[label], progress=progress)
        table = SharedProgress(len(seeds) * config.total_steps) if progress else None
        ended = stack.enter_context(closing(make_runs(waiting, config.mode, parallel, children, table)))
        for label, result in ended:
            results[label] = result()
            run_dirs = [made.run_dir for made in results.values() if made.run_dir.exists()]
            if run_dirs:  # else all ended runs were stopped before their first step
                described = read_config(run_dirs[0])
                named = ", ".join(path.name.removeprefix("seed-") for path in run_dirs)
                title = f"{described['env']}, {described['algorithm']}, seeds {named}"
                plot_runs([each_metric(path / "metrics.csv") for path in run_dirs], folder / "curves.png", title)
    return [results[label] for label in labels]
