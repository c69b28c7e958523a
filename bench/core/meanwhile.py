"""Adding to a replay while it is sampled or saved: a writer's rate beside its rate alone, and its longest add.

marlcore saves while the writer goes on; a pickle of a locked ring's arrays holds the ring's lock.
"""

import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from timeit import timeit
from typing import Any

from meanwhile import running
from numpy.typing import NDArray

from marlcore import ReplayBuffer

from ..peers.ring import LockedRing
from ..processes import medians
from .transitions import BATCH, FRAME, VECTOR, fill, filled_replay, spec_of

CAPACITY = 100_000  # of the replay that is sampled
WARM_UP_S = 0.3
GIGABYTE_ROWS = 10**9 // FRAME.nbytes
STEP_S = 0.001  # an actor adds a frame a millisecond while its replay is saved

Call = Callable[[], Any]
Meanwhile = tuple[float, float, float]  # the writer's adds a second, the seconds of its longest, and those of the call
Saved = tuple[Any, Callable[[Path], Any], Callable[[Path], int]]  # a full replay, its save, and the rows of a load


@contextmanager
def _writing(shared: Any, obs: NDArray[Any], adds: int, pause: float) -> Iterator[Callable[[Call], Meanwhile]]:
    """Starts the writing process; yields a function that makes a call while that process adds."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    with ours, theirs, running(context.Process(target=_serve, args=(shared, obs, adds, pause, theirs))):
        theirs.close()
        ours.recv()

        def beside(work: Call) -> Meanwhile:
            ours.send("add")
            seconds = timeit(work, number=1)
            ours.send("stop")
            return (*ours.recv(), seconds)

        yield beside
        ours.send(None)


def _serve(shared: Any, obs: NDArray[Any], adds: int, pause: float, pipe: Connection) -> None:
    """The writing process: adds rows from one message to the next, `adds` before each look for it; None ends it."""
    with nullcontext(shared) if isinstance(shared, LockedRing) else shared.writer() as writer:
        add = partial(writer.add, obs, 1, 0.5, False)
        add()
        pipe.send("ready")
        while pipe.recv() is not None:
            longest, count, began, told = 0.0, 0, time.perf_counter(), False
            while not told:
                longest, count = max(longest, timeit(add, number=adds)), count + adds
                told = pipe.poll(pause)
            pipe.recv()
            pipe.send((count / (time.perf_counter() - began), longest))


SAMPLED: dict[str, Callable[[], Any]] = {
    "marlcore": lambda: ReplayBuffer.create(spec_of(VECTOR), CAPACITY),
    "locks": lambda: nullcontext(LockedRing(CAPACITY, VECTOR)),
}


def measure_rates(library: str, rounds: int, seconds: float, warm_up_s: float = WARM_UP_S) -> dict[str, float]:
    """A library's adds per second: alone, while the other process samples, and their ratio, as medians of rounds."""
    with SAMPLED[library]() as shared, _writing(shared, VECTOR, 256, 0.0) as beside:
        locked = isinstance(shared, LockedRing)
        sample = partial(shared.sample, BATCH) if locked else shared.sampler(BATCH, seed=0).sample

        def sampling(seconds: float) -> None:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                sample()

        beside(partial(time.sleep, warm_up_s))
        sample()
        works = {"alone": time.sleep, "beside_sampling": sampling}
        taken = [{name: beside(partial(work, seconds))[0] for name, work in works.items()} for _ in range(rounds)]
    return medians([{**rates, "kept": rates["beside_sampling"] / rates["alone"]} for rates in taken])


@contextmanager
def _saved_replay(rows: int) -> Iterator[Saved]:
    def load(path: Path) -> int:
        with ReplayBuffer.load(path, spec_of(FRAME)) as copy:
            return len(copy)

    with filled_replay(FRAME, rows) as replay:
        yield replay, replay.save, load


@contextmanager
def _pickled_ring(rows: int) -> Iterator[Saved]:
    ring = LockedRing(rows, FRAME)
    fill(FRAME, rows, ring.add_batch)

    def save(path: Path) -> None:
        """Pickles the arrays, as Stable-Baselines3 does."""
        with ring.lock, path.open("wb") as file:
            arrays = {name: getattr(ring, name) for name in ("obs", "action", "reward", "done")}
            pickle.dump(arrays, file, protocol=pickle.HIGHEST_PROTOCOL)

    yield ring, save, lambda path: len(pickle.loads(path.read_bytes())["obs"])


SAVED = {"marlcore": _saved_replay, "pickle": _pickled_ring}


def measure_saves(library: str, rows: int, rounds: int) -> dict[str, float]:
    """A library's medians with a replay of `rows` frames; the longest add is measured during a save and without one."""
    with (
        tempfile.TemporaryDirectory() as folder,
        SAVED[library](rows) as (shared, save, load),
        _writing(shared, FRAME, 1, STEP_S) as beside,
    ):
        path = Path(folder) / "save.pkl"

        def checked_load() -> None:
            assert 0 < load(path) <= rows

        def once() -> dict[str, float]:
            path.unlink(missing_ok=True)
            os.sync()  # nobody's save waits for what another one left to be written
            _, saving, save_s = beside(partial(save, path))
            with path.open("rb") as file:
                on_disk_s = save_s + timeit(partial(os.fsync, file.fileno()), number=1)
            _, alone, _ = beside(partial(time.sleep, save_s))
            checked_load()  # a virtual machine may have to ask its host for the memory
            figures = {"save_s": save_s, "on_disk_s": on_disk_s, "load_s": timeit(checked_load, number=1)}
            return {**figures, "nbytes": path.stat().st_size, "longest_add_s": alone, "longest_add_saving_s": saving}

        _, *taken = [once() for _ in range(1 + rounds)]  # the first one warms up
    return medians(taken)
