"""All processes of a durable queue are killed at once, at any moment: each row is learned from once.

    python tests/support/queue_kills.py FOLDER CYCLES [RULE]

In each cycle three processes attach to the file, the first of them the flusher: two writers, one of them of several
lanes, and a learner. The learner's checkpoint says which row of each lane comes next. It takes each batch's rows for
learned, saves the checkpoint with its reader's state, and commits that. All are killed with SIGKILL. Now and then the
next ones find the file as after a power cut; then this process gives the checkpoint's state to a reader first, and
the rows from then on say that they are new. With a broken RULE the learner finds rows twice, or misses some, which
ends the program; without, it makes the CYCLES, and more until a row was learned and one was cut. It makes ten times the
CYCLES at most. It reports what it counted; its status is 1 if there was any fault.
"""

import itertools
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
from core import report_cycles
from mapped import Mapped
from seams import another_boot, replace
from victims import fork, reap, shared_numbers

from marlcore import Durable, Field, TrajectoryQueue, TransitionSpec
from marlcore.queue import TrajectoryReader
from marlcore.queue.cursor import CommittedCursor, ReadCursor

SPEC = TransitionSpec(Field((), "int64"), Field((), "int64"))  # an episode a row: its lane's part, and its ticket
LANES, ROWS, BATCH = 4, 96, 16
FAULTS = ("lost", "twice", "missed")
LEARNED, TWICE, MISSED = range(3)


class Kills:
    def __init__(self, folder: Path, rule: str) -> None:
        self.path, self.saved = folder / "queue", folder / "checkpoint.npz"
        self.rule, self.counts = rule, Counter[str]()
        TrajectoryQueue.create(SPEC, LANES * ROWS, LANES, path=self.path, durable=Durable(0.01), max_unread=64).close()
        self.told = shared_numbers(1, LANES)[0]  # tickets below these were added
        self.found = shared_numbers(1, 3)[0]
        self.lives = np.zeros((1, LANES), np.int64)  # the lanes' first tickets since each power cut
        if rule == "no_state":
            TrajectoryReader.commit = lambda reader, state=None, commit=TrajectoryReader.commit: (
                commit(reader, state) if reader.stats.read else None
            )
        if rule == "released_by_reading":
            CommittedCursor.move, CommittedCursor.release = ReadCursor.move, ReadCursor.release

    def life_of(self, tickets: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """The life of the machine in which a row was added, if it is there: the last that began at or below it."""
        return (self.lives[:, lanes] <= tickets).cumsum(0).argmax(0)

    def add(self, lanes: np.ndarray) -> None:
        queue = TrajectoryQueue.attach(self.path)
        self.told[lanes] = [Mapped(queue).committed(lane) for lane in lanes]
        with queue.vector_writer(lanes) as vector:
            for _ in itertools.count():
                tickets, ends = self.told[lanes].copy(), np.ones(len(lanes), np.bool_)
                life = np.full(len(lanes), len(self.lives) - 1)
                vector.add(life, tickets, np.zeros(len(lanes), np.float32), ends, ~ends)
                self.told[lanes] += 1

    def learn(self) -> None:
        queue = TrajectoryQueue.attach(self.path)
        reader, following = queue.reader(BATCH), self.following(queue)
        for number in itertools.count():
            batch = reader.read(timeout=60.0)
            tickets, lanes = np.divmod(batch.index, LANES)
            for ticket, lane in zip(tickets, lanes, strict=True):
                self.found[TWICE] += int(ticket < following[lane])
                self.found[MISSED] += int(ticket > following[lane])
                following[lane] = ticket + 1
            assert (batch.action == tickets).all()
            self.found[TWICE] += int((batch.obs < self.life_of(tickets, lanes)).sum())
            self.found[LEARNED] += len(batch)
            if self.rule == "commit_before_saving":
                reader.commit()
            if number % 3 == 0 or reader.commit_due:
                self.save(reader, following)

    def save(self, reader: TrajectoryReader, following: np.ndarray) -> None:
        state, whole = reader.state_dict(), self.saved.with_suffix(".new.npz")
        np.savez(whole, following=following, **state)
        os.replace(whole, self.saved)
        reader.commit(state)

    def following(self, queue: TrajectoryQueue) -> np.ndarray:
        """Gives the checkpoint's state to the queue's next reader; returns each lane's row that it is to get first."""
        if not self.saved.exists():
            return np.zeros(LANES, np.int64)
        saved = np.load(self.saved)
        reader = next(iter(queue._ends))
        assert isinstance(reader, TrajectoryReader)
        try:
            reader.commit({name: saved[name] for name in reader.state_dict()})
        except ValueError:  # the queue knows a later one
            self.found[MISSED] += 1
        return saved["following"].copy()

    def cycle(self, number: int) -> None:
        roles = [partial(self.add, np.array([0])), partial(self.add, np.arange(1, LANES)), self.learn]
        random.shuffle(roles)
        victims = [fork(role) for role in roles]
        time.sleep(random.random() * 0.1)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        assert [reap(pid) for pid in victims] == [-signal.SIGKILL] * len(victims)
        self.counts["kills"] += len(victims)
        if number % 10 == 9:
            self.cut()
        else:
            with TrajectoryQueue.attach(self.path) as queue:
                committed = np.array([Mapped(queue).committed(lane) for lane in range(LANES)])
                self.counts["lost"] += int((committed < self.told).sum())

    def cut(self) -> None:
        """The machine stops: newer rows than the watermark are gone, and the checkpoint may have learned from them."""
        replace("memory", **another_boot())
        with TrajectoryQueue.attach(self.path) as queue, queue.reader(BATCH) as reader:
            self.told[:] = [Mapped(queue).committed(lane) for lane in range(LANES)]
            self.lives = np.concatenate([np.minimum(self.lives, self.told), self.told[None]])
            following = np.minimum(self.following(queue), self.told)
            self.save(reader, following)
            assert queue.recovered is not None
            self.counts["cuts"] += queue.recovered.cut


def warm() -> None:
    """Loads what reading needs: else each learner that is forked loads it anew."""
    with TrajectoryQueue.create(SPEC, ROWS) as queue, queue.writer() as writer, queue.reader(1) as reader:
        for _ in range(2):
            writer.add(0, 0, 0.0, True)
        reader.read()


def main() -> int:
    _, folder, cycles, *rule = sys.argv
    logging.disable()  # of what is recovered
    replace("transitions", check_keeps=lambda directory: None)
    kills = Kills(Path(folder), *rule or [""])
    for number in range(1, 10 * int(cycles) + 1):
        kills.cycle(number)
        seen = kills.found[TWICE:].any() if rule else kills.found[LEARNED] and kills.counts["cuts"]
        if seen and (rule or number >= int(cycles)):
            break
    counts = kills.counts
    counts["learned"], counts["twice"], counts["missed"] = kills.found.tolist()
    return report_cycles(counts, FAULTS, str(number))


if __name__ == "__main__":
    warm()
    sys.exit(main())
