"""All processes of a durable replay are killed at once, at any moment: every row that was added is there.

    python tests/support/durable_kills.py FOLDER CYCLES [cut]

In each cycle four processes attach to the file, the first of them the flusher: two writers, one of them of several
lanes, a sampler with priorities, and one that attaches and leaves again and again. They are killed with SIGKILL. Then
this process attaches, and looks at every row, at the sampler's state and at the limiter's counts. Now and then the
processes find the file as after a power cut, so that one of them recovers it, killed or not, and the others wait for
that. With `cut` this process finds it so each time, until it misses rows. The program reports what it counted; its
status is 1 if there was any fault.
"""

import itertools
import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from core import report_cycles
from filled import rows
from mapped import Mapped
from processes import until
from seams import another_boot, replace
from victims import fork, kill, shared_numbers

from marlcore import Durable, Field, Prioritized, RateLimiter, ReplayBuffer, TransitionSpec
from marlcore.kernels.rows import PLACE
from marlcore.memory import BOUNDARY

SPEC = TransitionSpec(Field((100,), "uint64"), Field((), "int64"))
LANES, ROWS, BATCH = 4, 96, 16
EVERY_S = 0.01
NAME = "learner"
FAULTS = ("lost", "torn", "ahead", "stale")


def add(path: Path, told: np.ndarray) -> None:
    """Adds rows to the first lane; tells each ticket once it was added."""
    replay = ReplayBuffer.attach(path)
    with replay.writer(0) as writer:
        for ticket in itertools.count(Mapped(replay).committed(0)):
            assert writer.add(**rows(SPEC, ticket * LANES, LANES)) == ticket
            told[0] = ticket + 1


def add_vector(path: Path, told: np.ndarray) -> None:
    replay, lanes = ReplayBuffer.attach(path), np.arange(1, LANES)
    told[1:LANES] = [Mapped(replay).committed(lane) for lane in lanes]
    with replay.vector_writer(lanes) as vector:
        while True:
            tickets = told[1:LANES].copy()
            assert (vector.add(**rows(SPEC, tickets * LANES + lanes, LANES)) == tickets).all()
            told[1:LANES] += 1


def sample(path: Path, told: np.ndarray) -> None:
    """Draws, and gives each row the priority that its ticket says."""
    replay = ReplayBuffer.attach(path)
    sampler = replay.sampler(BATCH, prioritized=Prioritized(1.0, epsilon=0.0), name=NAME)
    while True:
        batch = sampler.sample(timeout=60.0)
        sampler.update_priorities(batch.index, priority_of(batch.index))


def come_and_go(path: Path, told: np.ndarray) -> None:
    while True:
        with ReplayBuffer.attach(path) as replay:
            assert len(replay) <= LANES * ROWS


def priority_of(index: np.ndarray) -> np.ndarray:
    return 2.0 + index % 1000


class Kills:
    def __init__(self, path: Path, cuts: bool) -> None:
        self.path, self.cuts, self.counts = path, cuts, Counter[str]()
        limiter = RateLimiter(0.5, 1, 1e9)
        ReplayBuffer.create(SPEC, LANES * ROWS, LANES, path=path, durable=Durable(EVERY_S), limiter=limiter).close()
        self.told = shared_numbers(1, LANES)[0]  # tickets below these were added
        self.sampled = self.batches = 0

    def cycle(self, number: int) -> None:
        rebooted = number % 10 == 9
        self.counts["reboots"] += rebooted
        if rebooted:
            replace("memory", **another_boot())
        roles: list[Callable[[Path, np.ndarray], None]] = [add, add_vector, sample, come_and_go]
        random.shuffle(roles)
        victims = [fork(role, self.path, self.told) for role in roles]
        if number % 10 == 0:
            before, full = self.state(), self.told + ROWS
            until(lambda: self.state() != before and (self.told >= full).all())
        time.sleep(random.random() * 0.06)
        for pid in victims:
            kill(pid)
        self.counts["kills"] += len(victims)
        if self.cuts:
            replace("memory", **another_boot())
        with ReplayBuffer.attach(self.path) as replay:
            self.look(replay, rebooted)

    def state(self) -> tuple[int, int]:
        """The file of the sampler's state: another one after each write."""
        with suppress(FileNotFoundError):
            status = os.stat(f"{self.path}@{NAME}.sampler")
            return status.st_ino, status.st_mtime_ns
        return 0, 0

    def look(self, replay: ReplayBuffer, rebooted: bool) -> None:
        mapped = Mapped(replay)
        for lane in range(LANES):
            committed, reserved = mapped.counters(lane).tolist()
            if not rebooted:  # else rows behind the watermark were cut, before new ones came
                self.counts["lost"] += max(0, int(self.told[lane]) - committed)
                self.counts["ahead"] += committed > self.told[lane] + 1
            tickets = np.arange(max(0, reserved - ROWS), committed)
            place = mapped.column(0, lane)[tickets % ROWS].view(np.uint32)[:, PLACE]
            tickets = tickets[place >> 24 & BOUNDARY == 0]  # without the row of no content that recovery leaves
            written = rows(SPEC, tickets * LANES + lane, LANES)["obs"].view(np.uint8).reshape(len(tickets), 800)
            self.counts["torn"] += int((mapped.column(1, lane)[tickets % ROWS] != written).any(1).sum())
            self.counts["rows"] += len(tickets)
            self.told[lane] = committed
        self.counts["stale"] += mapped.sampled < self.sampled and not rebooted
        self.sampled = mapped.sampled
        sampler = replay.sampler(BATCH, prioritized=Prioritized(1.0, epsilon=0.0), name=NAME)
        batches = int(sampler.state_dict()["batches"])
        self.counts["stale"] += batches < self.batches
        self.counts["resumed"] += batches > self.batches
        self.batches = batches
        self.counts["batches"] = batches


def warm() -> None:
    """Loads what drawing needs: else each forked sampler loads it anew, and most are killed before they draw."""
    with ReplayBuffer.create(SPEC, ROWS) as replay, replay.writer() as writer:
        for ticket in range(BATCH):
            writer.add(**rows(SPEC, ticket))
        sampler = replay.sampler(BATCH, prioritized=Prioritized(1.0, epsilon=0.0))
        index = sampler.sample().index
        sampler.update_priorities(index, priority_of(index))


def main() -> int:
    _, folder, cycles, *cut = sys.argv
    logging.disable()  # of what is recovered
    replace("memory", check_keeps=lambda directory: None)
    replace("transitions", check_keeps=lambda directory: None)
    kills = Kills(Path(folder) / "replay", bool(cut))
    for number in range(int(cycles)):
        kills.cycle(number)
        if cut and kills.counts["lost"]:
            break
    return report_cycles(kills.counts, FAULTS, cycles)


if __name__ == "__main__":
    warm()
    sys.exit(main())
