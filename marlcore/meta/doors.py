"""The doors to several runs: `train_seeds` repeats one, `train_population` varies it.

This file imports little: a door starts the fork server, whose imports take longest, before its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..run import children_of

if TYPE_CHECKING:
    from pathlib import Path

    from ..config import Config, PopulationConfig
    from ..interfaces import Algorithm
    from ..record import InitFrom
    from ..run import Algorithms, Result
    from .population import Member


def train_seeds(
    env_fn: Callable[[], Any] | str,
    algorithm: Algorithms,
    config: Config,
    seeds: Sequence[int],
    *,
    parallel: int = 1,
    progress: bool = True,
    init_from: InitFrom | None = None,
    init_strict: bool = True,
) -> list[Result]:
    """Trains once with each seed, `parallel` runs at a time, which share a fork server and a table of progress.

    The runs' directories are config.run_dir/seed-SEED, by default in runs/<date and time>-seeds; beside them,
    curves.png shows the mean of the runs that have ended, and a band from the lowest to the highest. If a run fails,
    the others are stopped; the error is raised when they have ended.

    Raises: as `train`; ValueError also if a seed comes twice, or if runs in serial mode, which all work in this
        process, are to run in parallel.
    """
    with children_of(config) as children:
        from .seeds import work_seeds

        initial = {"init_from": init_from, "init_strict": init_strict}
        return work_seeds(env_fn, algorithm, config, seeds, parallel, progress, children, **initial)


def train_population(
    env_fn: Callable[[], Any] | str,
    algorithm: Algorithm | str,
    config: Config,
    population: PopulationConfig,
    *,
    progress: bool = True,
    resume: str | Path | None = None,
) -> list[Member]:
    """Trains a population of runs with settings of their own, `population.parallel` at a time, on one fork server.

    With the method "pbt", a member that ends an interval compares its score with the newest ones of the others; no
    member waits for another. Its score is the mean over its agents of their last evaluation or, if the run does not
    evaluate, of the last tenth of the episodes of the interval.

    The members' directories are config.run_dir/member-NUMBER, by default in runs/<date and time>-population. Beside
    them lie lineage.csv, a row for each interval of each member, lineage.png, and population.json, from which
    `resume` continues.

    Args:
        env_fn, algorithm: as for `train`; one algorithm for all policies.
        config: the settings that all members share. `total_steps` are those of each member, without halving.
        population: what differs between them.
        progress: show one table of progress.
        resume: the directory of a population to continue, also after SIGKILL. `size`, `method`, `interval` and the
            names of its settings must be as before.

    Returns: the members, the best first.

    Raises: as `train`, but a member that diverges does not end the others.
    """
    with children_of(config) as children:
        from .population import work_population

        return work_population(env_fn, algorithm, config, population, progress, resume, children)
