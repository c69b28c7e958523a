"""Adding to a replay while it is sampled or saved: a writer's rate beside its rate alone, and its longest add.

marlcore saves while the writer goes on; a pickle of a locked ring's arrays holds the ring's lock.
"""

import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from timeit import timeit
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marlcore import ReplayBuffer

from ..peers.ring import LockedRing
from .sampling import filled_replay, filled_ring
from .transitions import BATCH, FRAME, VECTOR, spec_of

CAPACITY = 100_000  # of the replay that is sampled
WARM_UP_S = 0.3
GIGABYTE_ROWS = 10**9 // FRAME.nbytes
STEP_S = 0.001  # an actor adds a frame a millisecond while its replay is saved

Call = Callable[[], Any]
Saved = tuple[Any, Callable[[Path], Any], Callable[[Path], int]]  # a full replay, its save, and the rows of a load


@contextmanager
def _adding(shared: Any, obs: NDArray[Any]) -> Iterator[Call]:
    """A call that adds a transition to a replay or a locked ring, in the process that writes to it."""
    if isinstance(shared, LockedRing):
        yield partial(shared.add, obs, 1, 0.5, False)
        return
    with shared, shared.writer() as writer:
        yield partial(writer.add, obs, 1, 0.5)


@contextmanager
def _writing(serve: Callable[[Any, Connection], None], shared: Any) -> Iterator[Connection]:
    """Runs serve(shared, pipe) in another process; the other end of its pipe, where the falsy None ends it."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    with ours, theirs:
        writer = context.Process(target=serve, args=(shared, theirs))
        writer.start()
        theirs.close()
        yield ours
        ours.send(None)
        writer.join()
        writer.close()


@contextmanager
def _sampled_replay() -> Iterator[tuple[ReplayBuffer, Call]]:
    with ReplayBuffer.create(spec_of(VECTOR), CAPACITY) as replay:
        yield replay, replay.sampler(BATCH, seed=0).sample


@contextmanager
def _sampled_ring() -> Iterator[tuple[LockedRing, Call]]:
    ring = LockedRing(CAPACITY, VECTOR.shape, VECTOR.dtype.name)
    yield ring, partial(ring.sample, BATCH)


SAMPLED = {"marlcore": _sampled_replay, "locks": _sampled_ring}


def _serve_rates(shared: Any, pipe: Connection) -> None:
    """The writing process: adds for the seconds it is asked to and answers with its rate."""
    with _adding(shared, VECTOR) as add:
        while seconds := pipe.recv():
            count, began = 0, time.perf_counter()
            while (spent := time.perf_counter() - began) < seconds:
                for _ in range(256):
                    add()
                count += 256
            pipe.send(count / spent)


def measure_rates(library: str, rounds: int, seconds: float, warm_up_s: float = WARM_UP_S) -> dict[str, float]:
    """A library's adds per second: alone, while the other process samples, and their ratio, as medians of rounds."""
    with SAMPLED[library]() as (shared, sample), _writing(_serve_rates, shared) as pipe:

        def rate_beside(work: Call, seconds: float) -> float:
            pipe.send(seconds)
            while not pipe.poll():
                work()
            return float(pipe.recv())

        sleep = partial(pipe.poll, None)
        rate_beside(sleep, warm_up_s)
        sample()
        rates = np.array([[rate_beside(work, seconds) for work in (sleep, sample)] for _ in range(rounds)])
    alone, sampling = rates.T
    figures = {"alone": alone, "beside_sampling": sampling, "kept": sampling / alone}
    return {name: float(np.median(values)) for name, values in figures.items()}


@contextmanager
def _saved_replay(rows: int) -> Iterator[Saved]:
    def load(path: Path) -> int:
        with ReplayBuffer.load(path, spec_of(FRAME)) as copy:
            return len(copy)

    with filled_replay(FRAME, rows) as replay:
        yield replay, replay.save, load


@contextmanager
def _pickled_ring(rows: int) -> Iterator[Saved]:
    ring = filled_ring(FRAME, rows)

    def save(path: Path) -> None:
        """As Stable-Baselines3 saves its buffers."""
        with ring.lock, path.open("wb") as file:
            arrays = {name: getattr(ring, name) for name in ("obs", "action", "reward", "done")}
            pickle.dump(arrays, file, protocol=pickle.HIGHEST_PROTOCOL)

    yield ring, save, lambda path: len(pickle.loads(path.read_bytes())["obs"])


SAVED = {"marlcore": _saved_replay, "pickle": _pickled_ring}


def _serve_longest(shared: Any, pipe: Connection) -> None:
    """The writing process: adds from one word to the next, at least once, and tells its longest add; None ends it."""
    with _adding(shared, FRAME) as add:
        add()
        pipe.send(0.0)
        while pipe.recv() is not None:
            longest, told = 0.0, False
            while not told:
                longest = max(longest, timeit(add, number=1))
                told = pipe.poll(STEP_S)
            pipe.recv()
            pipe.send(longest)


def measure_saves(library: str, rows: int, rounds: int) -> dict[str, float]:
    """A library's medians with a replay of so many frames, in a temporary file.

    marlcore's call waits for the disk; loads are from the page cache. The longest add in the other process is taken
    during the save, and for as long while nothing is saved.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        SAVED[library](rows) as (shared, save, load),
        _writing(_serve_longest, shared) as pipe,
    ):
        pipe.recv()
        path = Path(folder) / "save.pkl"

        def longest_add(work: Call) -> tuple[float, float]:
            """Of the writing process meanwhile, and the seconds of the work."""
            pipe.send("add")
            seconds = timeit(work, number=1)
            pipe.send("stop")
            return float(pipe.recv()), seconds

        def checked_load() -> None:
            assert 0 < load(path) <= rows

        def once() -> dict[str, float]:
            path.unlink(missing_ok=True)
            os.sync()  # nobody's save waits for what another one left to be written
            saving, save_s = longest_add(partial(save, path))
            with path.open("rb") as file:
                on_disk_s = save_s + timeit(partial(os.fsync, file.fileno()), number=1)
            alone, _ = longest_add(partial(time.sleep, save_s))
            checked_load()  # a virtual machine may have to ask its host for the memory
            figures = {"save_s": save_s, "on_disk_s": on_disk_s, "load_s": timeit(checked_load, number=1)}
            return {**figures, "nbytes": path.stat().st_size, "longest_add_s": alone, "longest_add_saving_s": saving}

        _, *taken = [once() for _ in range(1 + rounds)]  # the first one warms up
    return {name: median(each[name] for each in taken) for name in taken[0]}
