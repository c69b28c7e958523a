"""Several runs in one program: in turn in its first thread, or beside each other on one fork server.

`waiting` holds the runs to make, by label; its owner may add to it between two results.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

from ..checks import absolute, check_whole
from ..config import Config
from ..errors import WorkerFailed, suppress_failed_calls
from ..processes import Children, Interrupts
from ..record import (
    LOCK,
    RUNS,
    SharedProgress,
    Table,
    dated_paths,
    holds_files,
    is_address,
    lock_directory,
    steps_taken,
)
from ..run import Launch, Result, Run, work

POLL_S = 0.1  # between looks at runs beside each other

Ended: TypeAlias = Generator[tuple[str, Callable[[], Result]], None, None]


def begin_several(config: Config, parallel: int, kind: str) -> Path:
    """See `folder_of`. Raises ValueError: the settings do not fit several runs."""
    check_whole("parallel", parallel)
    if parallel > 1 and config.mode == "serial":
        raise ValueError(f"parallel: expected 1 in serial mode, whose runs work in this process, got {parallel}")
    if is_address(config.run_dir):
        raise ValueError(f"run_dir: expected a directory of this machine for several {kind}, got {config.run_dir!r}")
    return folder_of(config.run_dir, kind)


def folder_of(place: str | Path | None, kind: str) -> Path:
    """The absolute directory of several runs, by default a new one, runs/<date and time>-<kind>."""
    if place:
        return absolute(place)
    return next(path for path in dated_paths(RUNS, f"-{kind}") if not path.exists())


@contextmanager
def held(folder: Path, kind: str) -> Iterator[None]:
    """Keeps the directory from other processes. Raises ValueError: one works in it.

    A directory that stays empty is removed, and one made here if the block fails before the first run has begun.
    """
    new = not folder.exists()
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    lock = lock_directory(folder)
    if lock is None:
        raise ValueError(f"run_dir: expected one in which no other {kind} works, got {str(folder)!r}")
    with lock:
        try:
            yield
        except Exception:  # not by Ctrl-C, after which it can be continued
            if new and not any(folder.glob("**/config.json")):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            if folder.exists() and not holds_files(folder):
                with suppress_failed_calls():  # another program has just put files there, which stay
                    (folder / LOCK).unlink()
                    folder.rmdir()


def make_runs(
    waiting: dict[str, Launch],
    mode: str,
    parallel: int,
    children: Children,
    folder: Path,
    table: SharedProgress | None,
) -> Ended:
    """Makes the runs, all of one mode. Yields their labels, and functions that return or raise what ended them."""
    if mode == "serial":
        return _in_turn(waiting, folder, table)
    return _side_by_side(waiting, parallel, children, table)


def _in_turn(waiting: dict[str, Launch], folder: Path, table: SharedProgress | None) -> Ended:
    """Makes runs in this thread, since some environments work only in a program's first one. Yields their results."""
    while waiting:
        label = next(iter(waiting))
        children, result = Children(interrupts=Interrupts()), Future[Result]()
        with children.interrupts as interrupts:
            try:
                result.set_result(work(launch := waiting.pop(label), children, _part(table, label, launch)))
            except WorkerFailed as error:
                result.set_exception(error)
            if table:
                table.end(label)
            yield label, result.result
        deliver(interrupts, folder)


def deliver(interrupts: Interrupts, folder: Path) -> None:
    """Raises what a signal came for. The message names the directory to resume; with seeds, one for each run."""
    each = "/seed-N" if any(folder.glob("seed-*")) else ""
    interrupts.deliver(str(folder) if folder.exists() else "", f"{folder}{each}")


def _side_by_side(waiting: dict[str, Launch], parallel: int, children: Children, table: SharedProgress | None) -> Ended:
    """Makes runs, `parallel` at a time, whose workers one server forks. Yields the results as the runs end."""
    running: dict[str, Run] = {}
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
                label = next(iter(waiting))
                launch = waiting.pop(label)
                part = _part(table, label, launch)
                running[label] = Run(launch, Children(server=children.server), part)
            time.sleep(POLL_S)
            for label in [label for label, run in running.items() if run.done]:
                if table:
                    table.end(label)
                yield label, running[label].wait
                del running[label]


def _part(table: SharedProgress | None, label: str, launch: Launch) -> Table | None:
    if table is None:
        return None
    return table.part(label, 0 if launch.resume is None else steps_taken(launch.resume))


def _end_all(running: Mapping[str, Run], interrupts: Interrupts) -> None:
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
