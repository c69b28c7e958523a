"""The driver of a test, on host 0: rows from a queue on host 1, whose writers wait, to a replay here.

    python rows_between_hosts.py ADDRESS [forgets]

Each line on standard input is a command of `Rows`, and is answered in a line of JSON. With `forgets`, an ingest knows
nothing of the one before it, and a replay in the queue's place still has all rows: they must then arrive twice.
"""

import json
import sys
from functools import partial
from threading import Thread
from time import sleep
from typing import Any

import numpy as np
from filled import filled, torn
from processes import until
from ray_nodes import driver
from relayed import raw

from marlcore import Field, ReplayBuffer, TrajectoryQueue, TransitionSpec
from marlcore.cluster import Bookings, Ingest, Leases, RayLink, Relay, start_ingest

LANES, WORDS, CAPACITY = 4, 5, 1_600_000
ROOM = 8000  # rows that wait to be sent
AT_ONCE, PAUSE_S = 50, 0.002  # rows of a lane that are written at once, and the pause before
SPEC = TransitionSpec(Field((WORDS,), "uint64"), Field((), "int64"))


class Sender:
    """A queue on another host, its writer and its relay."""

    def __init__(self, ingest: Any, epoch: int, holds_all: bool) -> None:
        rows = ReplayBuffer.create(SPEC, CAPACITY, LANES) if holds_all else TrajectoryQueue.create(SPEC, ROOM, LANES)
        self._writers = [rows.writer(lane) for lane in range(LANES)]
        self._relay = Relay(rows, RayLink(ingest, "rows"), epoch=epoch, flush_seconds=0.05).start()
        self._written = 0

    def write(self, rows: int) -> None:
        """Begins to write `rows` further rows to each lane; they are numbered, and named by lane and number."""
        first, self._written = self._written, self._written + rows
        Thread(target=self._write, args=(first, self._written), daemon=True).start()

    def _write(self, first: int, end: int) -> None:
        for number in range(first, end, AT_ONCE):
            sleep(PAUSE_S)
            numbers = np.arange(number, min(end, number + AT_ONCE))
            for lane, writer in enumerate(self._writers):
                obs = filled(WORDS, lane, numbers)
                writer.add_batch(obs=obs, action=numbers, reward=np.zeros(len(numbers)))

    def error(self) -> str:
        return repr(self._relay.error)


def make(target: Any, bookings: Any, leases: Any, forgets: bool) -> dict[str, Ingest]:
    known = Bookings.create(LANES) if forgets else Bookings.attach(bookings)
    return {"rows": Ingest(ReplayBuffer.attach(target), known, [range(LANES)], holds=Leases.watch(leases).check)}


class Rows:
    """The home of the rows: a replay and its ingest; and a sender, once it is started."""

    def __init__(self, forgets: bool) -> None:
        self._home, self._bookings = ReplayBuffer.create(SPEC, CAPACITY, LANES, name="home"), Bookings.create(LANES)
        self._leases, self._forgets = Leases.create(1), forgets
        start = partial(make, self._home.handle, self._bookings.handle, self._leases.handle, forgets)
        self._ingest, self._written = start_ingest(start), 0
        self._sender: Any = None
        self._successors = -1  # of the first sender

    def sender(self) -> None:
        """Starts a sender, which replaces the one before."""
        import ray

        there = ray.remote(Sender).options(resources={"host1": 1}, num_cpus=0, max_concurrency=4)
        self._successors += 1
        self._sender = there.remote(self._ingest, self._leases.grant(0), self._forgets)

    def write(self, rows: str) -> None:
        """Has the sender begin to write `rows` rows to each lane."""
        self._written += int(rows)
        self._sender.write.remote(int(rows))

    def arrived(self) -> int:
        return sum(self._home._mapped.native.committed(lane) for lane in range(LANES))

    def await_all(self) -> None:
        """Waits until as many rows have arrived as were written."""
        until(lambda: self.arrived() >= self._written * LANES)

    def faults(self) -> dict[str, int]:
        """Returns what is wrong with the rows here: how many are torn or in a foreign lane, do not follow the row
        before them, or were lost. Each later sender begins anew once.
        """
        misplaced = disordered = 0
        for lane in range(LANES):
            (place,) = self._home._mapped.layout.of_role("obs")
            rows = place.views(raw(self._home, lane))
            misplaced += int((torn(rows, 2) | (rows[:, 0] != lane)).sum())
            numbers = rows[:, 1].astype(np.int64)
            follows = np.diff(numbers, prepend=-1) == 1
            begins_anew = ~follows & (numbers == 0)
            disordered += int((~follows & ~begins_anew).sum()) + max(0, int(begins_anew.sum()) - self._successors)
        found = {"misplaced": misplaced, "disordered": disordered, "lost": self._bookings.lost}
        return {name: count for name, count in found.items() if count}

    def kill(self) -> None:
        """Kills the ingest, which Ray starts again."""
        import ray

        ray.kill(self._ingest, no_restart=False)

    def fence(self) -> int:
        """Ends the sender's lease; returns the number of rows that are here."""
        self._leases.fence(0)
        return self.arrived()

    def error(self) -> str:
        """Returns what ended the sender's relay; "None" while it works."""
        import ray

        return ray.get(self._sender.error.remote())


def main(address: str, forgets: str = "") -> None:
    with driver(address):
        rows = Rows(bool(forgets))
        for line in sys.stdin:
            command, *arguments = line.split()
            print(json.dumps(getattr(rows, command)(*arguments)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
