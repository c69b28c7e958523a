"""Saving and loading a replay of frames while another process adds to it: `python -m bench.save_work`.

By marlcore, which stops nobody, and by a pickle of a locked ring's arrays, which holds the ring's lock meanwhile.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from marlcore import ReplayBuffer

from .peers import pickled
from .peers.ring import LockedRing
from .transitions import FRAME, adding, fill, spec_of, writing

GIGABYTE_ROWS = 10**9 // FRAME.nbytes
STEP_S = 0.001  # an actor adds a frame a millisecond


@dataclass(frozen=True)
class SaveFigures:
    """Medians of the rounds.

    Attributes:
        save_s: seconds that the call takes; marlcore's waits for the disk.
        on_disk_s: seconds until the file is on disk.
        load_s: seconds to load it again, from the page cache.
        nbytes: length of the file.
        longest_add_s: of the adds in another process while nothing is saved, for as long as the save takes.
        longest_add_saving_s: of those during the save.
    """

    save_s: float
    on_disk_s: float
    load_s: float
    nbytes: float
    longest_add_s: float
    longest_add_saving_s: float


@dataclass(frozen=True)
class Subject:
    """A library's full replay, which the writing process adds to."""

    shared: Any
    save: Callable[[Path], Any]
    load: Callable[[Path], int]  # the rows that it found


@contextmanager
def _marlcore(rows: int) -> Iterator[Subject]:
    def load(path: Path) -> int:
        with ReplayBuffer.load(path, spec) as copy:
            return len(copy)

    spec = spec_of(FRAME)
    with ReplayBuffer.create(spec, rows) as replay:
        with replay.writer() as writer:
            fill(FRAME, rows, writer.add_batch)
        yield Subject(replay, replay.save, load)


@contextmanager
def _pickled(rows: int) -> Iterator[Subject]:
    ring = LockedRing(rows, FRAME.shape, FRAME.dtype.name)
    fill(FRAME, rows, ring.add_batch)

    def save(path: Path) -> None:
        with ring.lock:
            names = ("obs", "action", "reward", "done")
            pickled.dump({name: getattr(ring, name) for name in names}, path)

    yield Subject(ring, save, lambda path: len(pickled.load(path)["obs"]))


LIBRARIES = {"marlcore": _marlcore, "pickle": _pickled}


def _serve(shared: Any, pipe: Connection) -> None:
    """The writing process: adds from one word to the next, at least once, and tells its longest add; None ends it."""
    with adding(shared, FRAME) as add:
        add()
        pipe.send(0.0)
        while pipe.recv() is not None:
            longest, told = 0.0, False
            while not told:
                began = time.perf_counter()
                add()
                longest = max(longest, time.perf_counter() - began)
                told = pipe.poll(STEP_S)
            pipe.recv()
            pipe.send(longest)


def measure_saves(library: str, rows: int, rounds: int) -> SaveFigures:
    """A library's figures with a replay of so many frames, in a file of the directory for temporary ones."""
    with (
        tempfile.TemporaryDirectory() as folder,
        LIBRARIES[library](rows) as subject,
        writing(_serve, subject.shared) as pipe,
    ):
        pipe.recv()
        taken = [_measure_once(subject, Path(folder) / "save.pkl", pipe, rows) for _ in range(1 + rounds)]
    return SaveFigures(*(median(column) for column in zip(*taken[1:], strict=True)))  # the first one warms up


def _measure_once(subject: Subject, path: Path, pipe: Connection, rows: int) -> tuple[float, ...]:
    def longest_add(work: Callable[[], Any]) -> float:
        pipe.send("add")
        work()
        pipe.send("stop")
        return float(pipe.recv())

    spent = {}

    def save() -> None:
        began = time.perf_counter()
        subject.save(path)
        spent["save"] = time.perf_counter() - began

    path.unlink(missing_ok=True)
    os.sync()  # nobody's save waits for what another one left to be written
    saving = longest_add(save)
    began = time.perf_counter()
    _sync(path)
    on_disk = spent["save"] + time.perf_counter() - began
    alone = longest_add(partial(time.sleep, spent["save"]))
    for _ in range(2):  # the first time a virtual machine may have to ask its host for the memory
        began = time.perf_counter()
        found = subject.load(path)
        load = time.perf_counter() - began
        assert 0 < found <= rows
    return spent["save"], on_disk, load, path.stat().st_size, alone, saving


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def main() -> None:
    for library in LIBRARIES:
        f = measure_saves(library, GIGABYTE_ROWS, rounds=3)
        times = f"saved in {f.save_s:.2f} s, on disk after {f.on_disk_s:.2f} s, loaded in {f.load_s:.2f} s"
        longest = f"{f.longest_add_s * 1e3:.2f} ms alone, {f.longest_add_saving_s * 1e3:.2f} ms during the save"
        sys.stdout.write(f"{library}: {f.nbytes / 1e9:.2f} GB {times}; longest add {longest}\n")


if __name__ == "__main__":
    main()
