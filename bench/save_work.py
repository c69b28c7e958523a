"""Saving and loading a replay of frames while another process adds to it.

By marlcore, which stops nobody, and by a pickle of a locked ring's arrays, which holds the ring's lock meanwhile.
"""

import os
import pickle
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

from .peers.ring import LockedRing
from .transitions import FRAME, adding, fill, spec_of, writing

GIGABYTE_ROWS = 10**9 // FRAME.nbytes
STEP_S = 0.001  # an actor adds a frame a millisecond


@dataclass(frozen=True)
class SaveFigures:
    """Medians of the rounds, in seconds and bytes."""

    save_s: float  # of the call; marlcore's waits for the disk
    on_disk_s: float  # until the file is on disk
    load_s: float  # from the page cache
    nbytes: float
    longest_add_s: float  # in another process while nothing is saved, for as long as the save takes
    longest_add_saving_s: float  # during the save


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
        """As Stable-Baselines3 saves its buffers."""
        with ring.lock, path.open("wb") as file:
            arrays = {name: getattr(ring, name) for name in ("obs", "action", "reward", "done")}
            pickle.dump(arrays, file, protocol=pickle.HIGHEST_PROTOCOL)

    yield Subject(ring, save, lambda path: len(pickle.loads(path.read_bytes())["obs"]))


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

    def load() -> None:
        assert 0 < subject.load(path) <= rows

    spent: list[float] = []
    path.unlink(missing_ok=True)
    os.sync()  # nobody's save waits for what another one left to be written
    saving = longest_add(lambda: spent.append(_seconds(partial(subject.save, path))))
    (save,) = spent
    on_disk = save + _seconds(partial(_sync, path))
    alone = longest_add(partial(time.sleep, save))
    load()  # a virtual machine may have to ask its host for the memory
    return save, on_disk, _seconds(load), path.stat().st_size, alone, saving


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
