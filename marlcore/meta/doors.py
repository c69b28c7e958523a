"""The functions that train several runs: `train_seeds` repeats a run, `train_population` varies a run's settings.

This file imports little at its top: each function starts the fork server first, because its imports take longest.
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
    """Trains once with each seed; up to `parallel` runs work at a time, on one fork server.

    The runs' directories are config.run_dir/seed-SEED, by default in runs/<date and time>-seeds. The file curves.png
    beside these shows the mean return of the ended runs, and a band from the lowest to the highest return. If a run
    fails, the other runs are stopped; the error is raised when all have ended. All runs share one table of progress.

    Raises: as `train`; ValueError also if a seed occurs twice, if there is none, or if `parallel` is above 1 in serial
        mode, where all runs work in this process.
    """
    with children_of(config) as children:
        from .several import work_seeds

        arguments = env_fn, algorithm, config, seeds, parallel, progress, children
        return work_seeds(*arguments, init_from=init_from, init_strict=init_strict)


def train_population(
    env_fn: Callable[[], Any] | str,
    algorithm: Algorithm | str,
    config: Config,
    population: PopulationConfig,
    *,
    progress: bool = True,
    resume: str | Path | None = None,
) -> list[Member]:
    """Trains a population of runs with different settings, up to `population.parallel` at a time, on one fork server.

    With the method "pbt", a member that ends an interval compares its score with the other members' newest scores; no
    member waits for another. A score is a mean return over the run's agents: that of the last evaluation or, if the run
    does not evaluate, that of the last tenth of the interval's episodes.

    The members' directories are config.run_dir/member-NUMBER, by default in runs/<date and time>-population. The same
    folder has lineage.csv, with a row for each interval of each member, lineage.png, and population.json, from which
    `resume` continues.

    Args:
        env_fn, algorithm: as for `train`; one algorithm for all policies.
        config: the settings that all members share. Each member takes `config.total_steps` steps, unless the method
            "halving" ends the member earlier.
        population: the settings that differ between members, and the method.
        progress: whether to show one table of progress.
        resume: the directory of a population to continue, even after SIGKILL. The population's `size`, `method`,
            `interval` and names of settings must be as before.

    Returns: the members, the best first.

    Raises: as `train`; but if a member diverges, the others continue.
    """
    with children_of(config) as children:
        from .population import work_population

        return work_population(env_fn, algorithm, config, population, progress, resume, children)
