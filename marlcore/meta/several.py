"""Makes several runs in one program: one after another by `train`, or in parallel by `start` on one fork server.

`work_seeds` makes runs that differ only in their seed, and plots their curves together.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..checks import absolute, brief, check_whole
from ..config import Config
from ..errors import suppress_failed_calls
from ..processes import Children, Interrupts, stopped
from ..record import (
    LOCK,
    RUNS,
    SharedProgress,
    Table,
    check_same_run,
    check_unused,
    dated_paths,
    each_metric,
    holds_files,
    is_address,
    lock_directory,
    plot_runs,
    read_config,
    steps_taken,
)
from ..run import Algorithms, Result, Run, Shared, policies_of, start, train

REPEATED = ("spec", "launch", "resumption", "run")  # files of the package `run` that log the same warnings in every run
POLL_S = 0.1  # between looks at parallel runs

Waiting: TypeAlias = dict[str, dict[str, Any]]  # by label, the arguments of `train`; may grow between two results
Ended: TypeAlias = Generator[tuple[str, Callable[[], Result]], None, None]


def work_seeds(
    env_fn: Callable[[], Any] | str, algorithm: Algorithms, config: Config | None, seeds: Sequence[int],
    parallel: int, progress: bool, children: Children, **initial: Any,
) -> list[Result]:  # fmt: skip
    """Trains with each seed; see `train_seeds`, whose arguments `init_from` and `init_strict` are in `initial`."""
    config = config or Config()
    if isinstance(seeds, str | bytes) or not isinstance(seeds, Iterable):
        raise TypeError(f"seeds: expected a sequence of integers, got {brief(seeds)}")
    seeds = [seed.item() if isinstance(seed, np.generic) else seed for seed in seeds]
    if len(set(seeds)) < len(seeds) or not seeds:
        raise ValueError(f"seeds: expected at least one seed, each seed once, got {seeds}")
    check_parallel(parallel, config)
    folder = folder_of("seeds", config.run_dir)
    config, results = config.with_absolute_paths(), dict[str, Result]()
    with ExitStack() as stack:
        stack.enter_context(warned_once(logging.LogRecord.getMessage))
        stack.enter_context(naming_what_continues(folder, f"{folder}/seed-N"))
        waiting = {}
        for seed in seeds:
            check_unused(run_dir := folder / f"seed-{seed}")
            of_seed = replace(config, seed=seed, run_dir=str(run_dir))
            waiting[f"seed {seed}"] = {"env_fn": env_fn, "algorithm": algorithm, "config": of_seed, **initial}
        labels = [*waiting]
        for label in labels[:1]:  # the other runs differ only in seed and directory
            policies_of(**waiting[label], progress=progress)
        table = SharedProgress(len(seeds) * config.total_steps) if progress else None
        ended = stack.enter_context(closing(make_runs(waiting, config.mode, parallel, children, table)))
        for label, result in ended:
            results[label] = result()
            run_dirs = [made.run_dir for made in results.values() if made.run_dir.exists()]
            if run_dirs:  # empty if all ended runs were stopped before their first step
                described = read_config(run_dirs[0])
                named = ", ".join(path.name.removeprefix("seed-") for path in run_dirs)
                title = f"{described['env']}, {described['algorithm']}, seeds {named}"
                plot_runs([each_metric(path / "metrics.csv") for path in run_dirs], folder / "curves.png", title)
    return [results[label] for label in labels]


def check_parallel(parallel: int, config: Config) -> None:
    """Raises ValueError if `parallel` is not positive, or if runs with these settings cannot work in parallel."""
    check_whole("parallel", parallel)
    if parallel > 1 and config.mode == "serial":
        raise ValueError(f"parallel: expected 1 in serial mode, whose runs work in this process, got {parallel}")


def folder_of(kind: str, run_dir: str | None, resume: str | Path | None = None) -> Path:
    """Returns the absolute directory of several runs, by default a new one, runs/<date and time>-<kind>.

    Raises ValueError if `run_dir` or `resume` is a remote address, or if `resume` does not exist or is another
    directory than `run_dir`.
    """
    label, place = ("run_dir", run_dir) if resume is None else ("resume", resume)
    if is_address(place):
        raise ValueError(f"{label}: expected a directory of this machine, got {place!r}")
    if not place:
        return next(path for path in dated_paths(RUNS, f"-{kind}") if not path.exists())
    folder = absolute(place, label)
    if resume is not None:
        check_same_run(run_dir, resume, kind)
        if not folder.is_dir():
            raise ValueError(f"resume: expected the directory of a {kind}, got {str(resume)!r}, which does not exist")
    return folder


@contextmanager
def working_in(folder: Path, kind: str) -> Iterator[None]:
    """Locks the directory during a `with` block; a KeyboardInterrupt inside the block says how to continue.

    Removes the directory if it is empty at the end, or if it is new and the block fails before the first run begins.
    Raises ValueError if another process has locked it.
    """
    new = not folder.exists()
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    lock = lock_directory(folder)
    if lock is None:
        raise ValueError(f"run_dir: expected a directory in which no other {kind} works, got {str(folder)!r}")
    with lock, naming_what_continues(folder):
        try:
            yield
        except Exception:  # not Ctrl-C, after which the work can be continued
            if new and not any(folder.glob("**/config.json")):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            if folder.exists() and not holds_files(folder):
                with suppress_failed_calls():  # keeps files that another program has just put there
                    (folder / LOCK).unlink()
                    folder.rmdir()


@contextmanager
def naming_what_continues(folder: Path, resume: str = "") -> Iterator[None]:
    """Adds, to a KeyboardInterrupt in a `with` block, the runs' directory and how to continue the runs."""
    try:
        yield
    except KeyboardInterrupt:
        if not folder.exists():
            raise
        raise stopped(str(folder), resume) from None


@contextmanager
def warned_once(text_of: Callable[[logging.LogRecord], str]) -> Iterator[None]:
    """During a `with` block, logs a run's warning only if `text_of` returns a text that is new."""
    seen: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        count = len(seen)
        seen.add(text_of(record))
        return len(seen) > count

    room = Run.__module__.rpartition(".")[0]
    loggers = [logging.getLogger(f"{room}.{name}") for name in REPEATED]
    for logger in loggers:
        logger.addFilter(is_new)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_new)


def make_runs(
    waiting: Waiting, mode: str, parallel: int, children: Children, table: SharedProgress | None, plots: bool = True
) -> Ended:
    """Makes the runs of `waiting`; with `plots`, each run draws its own curves.

    Yields each ended run's label, and a function that returns the run's result or raises the error that ended it.
    """
    with table or nullcontext():
        if mode == "serial":  # some environments work only in a program's first thread
            yield from _in_turn(waiting, table, plots)
        else:
            yield from _side_by_side(waiting, parallel, children, table, plots)


def _in_turn(waiting: Waiting, table: SharedProgress | None, plots: bool) -> Ended:
    while waiting:
        label, arguments, part = _next(waiting, table)
        yield label, partial(train, **arguments, progress=False, _shared=Shared(Children(), part, plots))
        if table:
            table.end(label)


def _side_by_side(
    waiting: Waiting, parallel: int, children: Children, table: SharedProgress | None, plots: bool
) -> Ended:
    running: dict[str, Run] = {}
    with children.interrupts as interrupts, ExitStack() as stack:
        stack.callback(_end_all, running, interrupts)  # if a run fails, the others end too
        while waiting or running:
            if interrupts.stopping:
                waiting.clear()
                _stop(running, interrupts.again)
            while waiting and len(running) < parallel:
                label, arguments, part = _next(waiting, table)
                running[label] = start(**arguments, _shared=Shared(Children(server=children.server), part, plots))
            time.sleep(POLL_S)
            for label in [label for label, run in running.items() if run.done]:
                if table:
                    table.end(label)
                yield label, running[label].wait
                del running[label]
    interrupts.deliver()


def _next(waiting: Waiting, table: SharedProgress | None) -> tuple[str, dict[str, Any], Table | None]:
    label = next(iter(waiting))
    arguments = waiting.pop(label)
    resume = arguments.get("resume")
    return label, arguments, table and table.part(label, steps_taken(resume) if resume else 0)


def _stop(running: Mapping[str, Run], hurry: bool) -> None:
    for run in running.values():
        run.stop()
        if hurry:
            run.hurry()


def _end_all(running: Mapping[str, Run], interrupts: Interrupts) -> None:
    """Stops the runs and waits until they end; a signal during the wait makes them skip their last checkpoints."""
    patient = not interrupts.stopping
    _stop(running, hurry=False)  # stop all runs before waiting for the first
    while not all(run.done for run in running.values()):
        if interrupts.again or (patient and interrupts.stopping):
            _stop(running, hurry=True)
        time.sleep(POLL_S)
    for run in running.values():
        run.close()
