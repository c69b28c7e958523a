"""Segments that processes create, attach, sweep and let go of at once, while some of them are killed at any moment.

Nobody loses a segment that it holds, nobody finds half a segment, and one sweep removes what all of them left. Over so
many attempts: python tests/long.py segment_races 100000
"""

import os
import random
import select
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from core import counted, python, report
from filled import filled
from marlcore._core import lib
from seams import replace
from victims import fork, kill, shared_numbers

from marlcore import SegmentNotFound
from marlcore.memory import File, Segment, new_file, survey_segments
from marlcore.memory import native as locking

pytestmark = pytest.mark.long
WORKERS = 6
HELD = 6
PATIENCE = 200_000  # attempts until a broken rule must have shown
COUNTS = ("created", "attached", "not_found", "sweeps", "removed")
ATTEMPTS = slice(0, 4)
PAGE_WORDS = 512
GONE, SEED = 0, 1  # words of a body: whether its creator takes its name away, and what the others follow from


class Fault(Exception):
    """A violated rule."""


def content(seed: int, words: int) -> np.ndarray:
    """The content of a body that is not gone, uint64 [words], which follows from its seed."""
    return filled(words, 0, seed)


class Worker:
    def __init__(self, directory: Path, counts: np.ndarray, seed: int) -> None:
        self.directory, self.counts, self.random = directory, counts, random.Random(seed)
        self.created, self.attached, self.known = list[Segment](), list[Segment](), list[Path]()

    def live(self, parent: int) -> None:
        acts = [self.create, self.attach, self.attach, self.sweep, self.let_go]
        while os.getppid() == parent:
            self.random.choice(acts)()
            for segment in self.created + self.attached:
                self.look(segment)
            while len(self.created + self.attached) > HELD:
                self.let_go()

    def count(self, name: str, more: int = 1) -> None:
        self.counts[COUNTS.index(name)] += more

    def create(self) -> None:
        body = content(self.random.getrandbits(63), PAGE_WORDS * self.random.randint(1, 4))
        described = {"words": len(body)}
        self.created.append(
            Segment.create("race", described, body.nbytes, fill=lambda put: put(0, body.view(np.uint8)))
        )
        self.count("created")

    def attach(self) -> None:
        """To what is there, or was a while ago, or what this process holds anyway."""
        if not self.known or self.random.random() < 0.3:
            self.known = list(self.directory.iterdir())
        paths = [segment.path for segment in self.created + self.attached] + self.known
        if not paths:
            return
        path = self.random.choice(paths)
        try:
            segment = Segment.attach(path, writable=self.random.random() < 0.5)
        except SegmentNotFound:
            self.count("not_found")
            if any(held.path == path and not held.body.view(np.uint64)[GONE] for held in self.created + self.attached):
                raise Fault(f"{path}: not found while it was held") from None
            return
        self.count("attached")
        self.attached.append(segment)
        if 8 * segment.description["words"] != len(segment.body):
            raise Fault(f"{path}: attached to another segment than its header describes")

    def sweep(self) -> None:
        files = survey_segments(self.directory, remove=True)
        self.count("sweeps")
        self.count("removed", sum(not file.held for file in files))

    def let_go(self) -> None:
        held = self.random.choice([self.created, self.attached])
        if not held:
            return
        segment = held.pop(self.random.randrange(len(held)))
        path = segment.path
        if held is self.created:
            segment.body.view(np.uint64)[GONE] = 1
            if self.random.random() < 0.3:
                segment.unlink()
                self.attached.append(segment)  # it keeps the memory, as the others do
            else:
                segment.close()
            if path.exists():
                raise Fault(f"{path}: its creator let go of it, and it is there")
        elif self.random.random() < 0.5:
            segment.close()

    def look(self, segment: Segment) -> None:
        """A held segment keeps its name until its creator removes it, and its content for good."""
        named = segment.is_at(segment.path)  # before it is asked whether its creator has taken the name away
        words = segment.body.view(np.uint64)
        if not named and not words[GONE]:
            raise Fault(f"{segment.path}: swept while it was held")
        if not np.array_equal(words[SEED:], content(int(words[SEED]), len(words))[SEED:]):
            raise Fault(f"{segment.path}: its content is not the one that its creator wrote")


def dawdle(seed: int) -> None:
    """Has locks taken a little later and acted upon a little later, now and then: others come between."""
    chance, try_lock = random.Random(seed), locking.try_lock

    def nap() -> None:
        if chance.random() < 0.3:
            time.sleep(chance.random() * 3e-4)

    def try_lock_slowly(fd: int, offset: int, exclusive: bool) -> bool:
        nap()
        locked = try_lock(fd, offset, exclusive)
        nap()
        return locked

    replace("memory", try_lock=try_lock_slowly)


def sweep_without_asking() -> None:
    """A sweeper that takes every segment for left behind."""
    try_lock = locking.try_lock
    replace("memory", try_lock=lambda fd, offset, exclusive: exclusive or try_lock(fd, offset, exclusive))


def attach_without_a_second_look() -> None:
    """One that attaches and does not ask whether the file that it has locked has its name still."""
    replace("memory", same_file=lambda fd, path: True)


def name_before_the_lock() -> None:
    """A creator whose segment can be found before it has locked it."""
    give_name = new_file.give_name

    def give_name_unlocked(file: File, target: Path) -> None:
        lib.mc_lock_drop(file.fd, 0)
        give_name(file, target)
        new_file.try_lock(file.fd, 0, exclusive=False)

    replace("memory", give_name=give_name_unlocked)


BROKEN = {rule.__name__: rule for rule in (sweep_without_asking, attach_without_a_second_look, name_before_the_lock)}


class Race:
    """Workers at a directory that stands for /dev/shm; those that are killed have a successor."""

    def __init__(self, directory: Path, broken: Callable[[], None] | None) -> None:
        self.directory, self.broken, self.random = directory, broken, random.Random()
        self.counts = shared_numbers(WORKERS, len(COUNTS))
        self.faults, self._report = os.pipe()
        self.pids = [self._start(slot) for slot in range(WORKERS)]
        self.killed = 0

    def _start(self, slot: int) -> int:
        return fork(self._work, slot, os.getpid(), self.random.getrandbits(32))

    def _work(self, slot: int, parent: int, seed: int) -> None:
        os.dup2(self._report, 2)  # where a fault's traceback goes
        replace("memory", SHM_DIR=self.directory)
        worker = Worker(self.directory, self.counts[slot], seed)
        replace("memory", sweep_once=worker.sweep)
        dawdle(seed)
        if self.broken is not None:
            self.broken()
        worker.live(parent)

    @property
    def attempts(self) -> int:
        return int(self.counts[:, ATTEMPTS].sum())

    def run(self, attempts: int) -> None:
        """Runs until `attempts` or a fault; kills a process after every fifty or so."""
        following = 0
        while self.attempts < attempts and not self.at_fault(0.0):
            following += self.random.randrange(100)
            while self.attempts < following and not self.at_fault(1e-3):
                pass
            slot = self.random.randrange(WORKERS)
            self._kill(slot)
            self.pids[slot] = self._start(slot)
        for slot in range(WORKERS):
            self._kill(slot)

    def at_fault(self, wait: float) -> bool:
        return bool(select.select([self.faults], [], [], wait)[0])

    def _kill(self, slot: int) -> None:
        try:
            kill(self.pids[slot])
        except AssertionError:
            assert self.at_fault(0.0)
        self.killed += 1

    def told(self) -> str:
        """The faults that the workers reported, which are all dead by now; "" if there are none."""
        os.close(self._report)
        with open(self.faults) as faults:
            return faults.read()


def race_alone(attempts: int, broken: Callable[[], None] | None = None) -> int:
    """Reports a race; 1 when somebody was at fault or something is left. It forks: not beside threads."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="segment-races-", dir="/dev/shm") as folder:
        race = Race(Path(folder), broken)
        race.run(attempts)
        orphans = survey_segments(race.directory, remove=True)
        left = os.listdir(folder)
    faults = race.told()
    counts = dict(zip(COUNTS, race.counts.sum(0).tolist(), strict=True))
    ends = {"orphans": len(orphans), "left": len(left), "faults": faults.count("Traceback")}
    report({"attempts": race.attempts, **counts, "killed": race.killed, **ends, "seconds": time.monotonic() - began})
    sys.stderr.write(faults)
    return int(bool(faults or left))


def child(attempts: int, *broken: str, timeout: float = 300) -> tuple[Counter[str], str]:
    done = python(__file__, attempts, *broken, timeout=timeout)
    counts = counted(done)
    assert done.returncode == bool(done.stderr or counts["left"])
    return counts, done.stderr


def test_no_held_segment_is_swept_and_every_orphan_is() -> None:
    counts, faults = child(2000)
    assert faults == "" and counts["left"] == counts["faults"] == 0, faults
    assert counts["attempts"] >= 2000 and all(counts[name] for name in (*COUNTS, "killed")), counts


@pytest.mark.parametrize("broken", BROKEN)
def test_without_a_rule_a_segment_is_swept_while_it_is_held(broken: str) -> None:
    """The positive control: what asks the kernel, and when, is what keeps a segment there."""
    _, faults = child(PATIENCE, broken)
    assert "Fault: " in faults and "while it was held" in faults, faults


def main(attempts: int) -> int:
    counts, faults = child(attempts, timeout=86_400)
    print(dict(counts), faults, flush=True)
    failed = bool(faults or counts["left"])
    for name in BROKEN:
        _, faults = child(PATIENCE, name)
        print(f"{name}: {faults.splitlines()[-1] if faults else 'not caught'}")
        failed |= not faults
    return failed


if __name__ == "__main__":
    sys.exit(race_alone(int(sys.argv[1]), *(BROKEN[name] for name in sys.argv[2:])))
