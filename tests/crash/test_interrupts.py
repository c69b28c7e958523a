"""Exceptions that come between any two steps, as a signal's handler raises them, while things are made and closed.

After each, the program's own descriptors are open, none is lost, the lane is free and no segment is left. By chance, at
20,000 moments of real time, in all operations or in some: python tests/long.py interrupts 20000 [attach writer ...]
"""

import gc
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from operator import methodcaller
from pathlib import Path

import numpy as np
import pytest
from interrupts import at_instruction, by_signal
from processes import descriptors
from tiers import long_but

import marlcore
from marlcore import Field, RateLimiter, ReplayBuffer, TrajectoryQueue, TransitionSpec
from marlcore.memory import SHM_DIR
from marlcore.processes import Telemetry

inside = methodcaller("startswith", str(Path(marlcore.__file__).parent))
SPEC = TransitionSpec(Field((4,)), Field((), "int64"))
NAME = f"interrupted{os.getpid()}"
MOMENTS = 50  # of each operation


class Program:
    """A program that opens files of its own whenever it is interrupted."""

    def __init__(self) -> None:
        self.files: list[tuple[int, os.stat_result]] = []

    def open(self) -> None:
        for _ in range(3):
            fd = os.memfd_create("own")
            self.files.append((fd, os.fstat(fd)))

    def close(self) -> int:
        """How many of them another one had closed."""
        lost = 0
        while self.files:
            fd, made = self.files.pop()
            try:
                assert os.path.samestat(os.fstat(fd), made)
                os.close(fd)
            except (OSError, AssertionError):
                lost += 1
        return lost


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        limiter = RateLimiter(1.0, 1, 1000.0)
        self.replay = ReplayBuffer.create(SPEC, 100, 2, limiter=limiter, name=NAME)
        self.unlimited = ReplayBuffer.create(SPEC, 100, 2, name=NAME)
        self.queue = TrajectoryQueue.create(SPEC, 100, 2, name=NAME)
        self.telemetry = Telemetry.create(["one"])
        with self.replay.writer() as writer:
            writer.add_batch(np.zeros((20, 4), np.float32), np.zeros(20, np.int64), np.zeros(20, np.float32))
        self.replay.save(folder / "save")

    def attach(self) -> None:
        ReplayBuffer.attach(self.replay.handle).close()

    def attach_without_closing(self) -> None:
        ReplayBuffer.attach(self.replay.handle)

    def create(self) -> None:
        ReplayBuffer.create(SPEC, 100, name=NAME).close()

    def create_file(self) -> None:
        (self.folder / "file").unlink(missing_ok=True)
        ReplayBuffer.create(SPEC, 100, path=self.folder / "file").close()

    def writer(self) -> None:
        self.replay.writer(1).close()

    def writer_without_closing(self) -> None:
        self.replay.writer(1)

    def vector_writer(self) -> None:
        with self.unlimited.vector_writer() as vector:
            vector.add(np.zeros((2, 4), np.float32), np.zeros(2, np.int64), np.zeros(2, np.float32))

    def sampler(self) -> None:
        self.replay.sampler(8)

    def reader(self) -> None:
        self.queue.reader(8).close()

    def reporter(self) -> None:
        self.telemetry.reporter("one").close()

    def save(self) -> None:
        self.replay.save(self.folder / "save")

    def load(self) -> None:
        ReplayBuffer.load(self.folder / "save", name=NAME).close()

    def check(self) -> None:
        """All lanes are free, and nothing else has a name."""
        for lane in range(2):
            self.replay.writer(lane).close()
            self.unlimited.writer(lane).close()
        self.telemetry.reporter("one").close()
        assert len(list(SHM_DIR.glob(f"marlcore-{NAME}*"))) == 3
        (self.folder / "file").unlink(missing_ok=True)  # interrupted after it was made
        assert [path.name for path in self.folder.iterdir()] == ["save"]

    def close(self) -> None:
        """The ends of readers are free too."""
        self.queue.reader(8).close()
        samplers = [self.replay.sampler(8) for _ in range(16)]
        del samplers
        for shared in (self.replay, self.unlimited, self.queue, self.telemetry):
            shared.close()


OPERATIONS = (
    "attach", "attach_without_closing", "create", "create_file", "writer", "writer_without_closing", "vector_writer",
    "sampler", "reader", "reporter", "save", "load",
)  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    gc.collect()
    yield made
    made.close()


@pytest.mark.parametrize("operation", long_but(["attach"], OPERATIONS))
def test_an_exception_before_any_instruction_is_harmless(operation: str, world: World) -> None:
    program, act = Program(), getattr(world, operation)
    act()
    _, instructions = at_instruction(act, -1, inside)
    world.check()
    gc.collect()
    before = descriptors()
    step, interrupted = max(1, instructions // MOMENTS), 0
    for moment in range(1 + random.randrange(step), instructions + 1, step):
        interrupted += at_instruction(act, moment, inside, program.open)[0]
        gc.collect(1)
        assert program.close() == 0, f"instruction {moment} made it close a descriptor of the program"
        assert descriptors() == before, f"instruction {moment} lost a descriptor"
        world.check()
    assert interrupted > MOMENTS // 2


def storm(world: World, operation: str, times: int) -> Counter[str]:
    """Interrupts it at moments of real time, and counts what came of it."""
    program, act, counts = Program(), getattr(world, operation), Counter[str]()
    began = time.perf_counter()
    for _ in range(20):
        act()
    longest = 1.2 * (time.perf_counter() - began) / 20
    before, handler = descriptors(), signal.getsignal(signal.SIGALRM)
    attack = by_signal(lambda: random.uniform(1e-6, longest), program.open)
    while counts["interrupted"] < times:
        counts["tried"] += 1
        counts["interrupted"] += attack(act)
        counts["foreign descriptors closed"] += program.close()
        if counts["tried"] % 20 == 0:
            gc.collect(1)
            counts["descriptors lost"] += max(0, len(descriptors()) - len(before))
            world.check()
    signal.signal(signal.SIGALRM, handler)
    return counts


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one may come inside a finalizer
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of files of the standard library, which closes them
@pytest.mark.parametrize("operation", long_but(["writer"], ["attach", "writer", "create"]))
def test_signals_at_any_time_leave_nothing_and_take_nothing(operation: str, world: World) -> None:
    counts = storm(world, operation, 200)
    assert counts["foreign descriptors closed"] == counts["descriptors lost"] == 0


def main(times: int, *operations: str) -> None:
    gc.collect()
    gc.freeze()
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for operation in operations or OPERATIONS:
            counts = storm(world, operation, times // len(operations or OPERATIONS))
            print(f"{operation}: {dict(counts)}")
        world.close()
