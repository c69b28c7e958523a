"""Runs with several seeds, their table of progress and their curves together."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from ..checks import absolute, check_whole
from ..processes import Children, Interrupts
from .config import Config
from .record import RUNS, Progress, SharedProgress, Table, is_address, plot_runs, read_config, read_metrics
from .request import Request
from .run import Result, Run, work
from .run_input import RunInput

POLL_S = 0.1  # between looks at runs beside each other


def work_seeds(request: Request, seeds: Sequence[int], parallel: int, children: Children) -> list[Result]:
    """The results of the request's run with each of the seeds. Raises: see `train_seeds`."""
    config = request.config or Config()
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds: expected different ones, got {list(seeds)}")
    check_whole("parallel", parallel)
    if parallel > 1 and config.mode == "serial":
        raise ValueError(f"parallel: expected 1 in serial mode, whose runs work in this process, got {parallel}")
    if is_address(config.run_dir):
        raise ValueError(f"run_dir: expected a directory of this machine for several seeds, got {config.run_dir!r}")
    folder = absolute(config.run_dir or f"{RUNS}/{time.strftime('%Y%m%d-%H%M%S')}-seeds")
    config = config.with_absolute_paths()
    inputs = {
        seed: RunInput.checked(
            replace(request, config=replace(config, seed=seed, run_dir=str(folder / f"seed-{seed}")))
        )
        for seed in seeds
    }
    results = dict[int, Result]()
    with ExitStack() as stack:
        table = None
        if request.progress:
            table = SharedProgress(stack.enter_context(Progress()), len(seeds) * config.total_steps)
        if config.mode == "serial":
            ended = _in_turn(inputs, folder, table)
        else:
            ended = _side_by_side(inputs, parallel, children, table)
        for seed, result in stack.enter_context(closing(ended)):
            results[seed] = result
            if table:
                table.end(f"seed {seed}")
            _plot_ended(results, folder)
    children.interrupts.deliver(str(folder) if folder.exists() else "")
    return [results[seed] for seed in seeds]


def _in_turn(
    inputs: Mapping[int, RunInput], folder: Path, table: SharedProgress | None
) -> Generator[tuple[int, Result], None, None]:
    """Runs in this thread, since some environments work only in a program's first one. Yields each one's result."""
    for seed, run_input in inputs.items():
        children = Children(interrupts=Interrupts())
        with children.interrupts as interrupts:
            yield seed, work(run_input, children, _part(table, seed))
        interrupts.deliver(str(folder) if folder.exists() else "")


def _side_by_side(
    inputs: Mapping[int, RunInput], parallel: int, children: Children, table: SharedProgress | None
) -> Generator[tuple[int, Result], None, None]:
    """Runs `parallel` at a time, whose workers one server forks. Yields the results as the runs end."""
    waiting, running = dict(inputs), dict[int, Run]()
    with children.interrupts as interrupts, ExitStack() as stack:
        stack.callback(_end_all, running, interrupts)  # the runs beside one that fails
        while waiting or running:
            if interrupts.stopping:
                waiting.clear()
                for run in running.values():
                    run.stop()
                    if interrupts.again:
                        run.hurry()
            while waiting and len(running) < parallel:
                seed = next(iter(waiting))
                run = Run(waiting.pop(seed), Children(server=children.server), _part(table, seed))
                running[seed] = run
            time.sleep(POLL_S)
            for seed in [seed for seed, run in running.items() if run.done]:
                yield seed, running[seed].wait()
                del running[seed]


def _part(table: SharedProgress | None, seed: int) -> Table | None:
    return table.part(f"seed {seed}") if table else None


def _end_all(running: Mapping[int, Run], interrupts: Interrupts) -> None:
    """Stops the runs and waits for them; a signal that comes meanwhile ends them without their last checkpoints."""
    patient = not interrupts.stopping
    for run in running.values():
        run.stop()  # all before waiting for the first
    while not all(run.done for run in running.values()):
        if interrupts.again or (patient and interrupts.stopping):
            for run in running.values():
                run.hurry()
        time.sleep(POLL_S)
    for run in running.values():
        run.close()


def _plot_ended(results: Mapping[int, Result], folder: Path) -> None:
    """Plots the mean and the band of the runs that have ended; one that was stopped before its first step has none."""
    ended = {seed: result.run_dir for seed, result in results.items() if result.run_dir.exists()}
    if ended:
        described = read_config(next(iter(ended.values())))
        title = f"{described['env']}, {described['algorithm']}, seeds {', '.join(map(str, ended))}"
        plot_runs([read_metrics(path / "metrics.csv") for path in ended.values()], folder / "curves.png", title)
