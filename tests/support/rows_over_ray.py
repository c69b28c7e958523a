"""Rows that prove themselves, from a writer's process over Ray to a reader, while the ingest is killed now and then.

    python tests/support/rows_over_ray.py ROWS KILLS queue|replay...

It runs on the cluster of RAY_ADDRESS, else on one of its own. The node has a queue, whose writer waits, or a replay,
whose writer laps. It prints the rows written, delivered, skipped and lost, and the kills.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import numpy as np
from filled import filled, torn

from marlcore import Field, ReplayBuffer, TrajectoryQueue, TransitionSpec
from marlcore.cluster import Bookings, Ingest, RayLink, Relay, start_ingest

LANES, AT_ONCE, BATCH, WORDS = 4, 100, 2000, 5
SPEC = TransitionSpec(Field((WORDS,), "uint64"), Field((), "int64"))


def kind(mode: str):
    return {"queue": TrajectoryQueue, "replay": ReplayBuffer}[mode]


def write(path: str, rows: int, mode: str) -> None:
    """The writer: the rows of a lane are numbered, and named by lane and number."""
    with kind(mode).attach(path) as node:
        writers = [node.writer(lane) for lane in range(LANES)]
        for first in range(0, rows // LANES, AT_ONCE):
            numbers = np.arange(first, first + AT_ONCE)
            for lane, writer in enumerate(writers):
                writer.add_batch(obs=filled(WORDS, lane, numbers), action=numbers, reward=np.zeros(AT_ONCE))


def make(queue, bookings) -> dict[str, Ingest]:
    return {"rows": Ingest(TrajectoryQueue.attach(queue), Bookings.attach(bookings), [range(LANES)])}


def check(batch, newest: np.ndarray) -> None:
    """Checks that every row is whole, in its lane, and behind the row before it."""
    assert not torn(batch.obs, 2).any(), "torn"
    lanes, numbers = batch.obs[:, 0].astype(int), batch.obs[:, 1].astype(int)
    assert (batch.action == numbers).all() and (lanes == batch.index % LANES).all(), "misplaced"
    for lane in range(LANES):
        got = np.concatenate([[newest[lane]], numbers[lanes == lane]])
        assert (np.diff(got) > 0).all(), "twice, or out of order"
        newest[lane] = got[-1]


def carry(rows: int, mode: str, kill_count: int) -> None:
    import ray

    node = kind(mode).create(SPEC, 100_000, LANES, name="node")
    home, bookings = TrajectoryQueue.create(SPEC, 200_000, LANES, name="home"), Bookings.create(LANES)
    ingest = start_ingest(partial(make, home.handle, bookings.handle))
    newest, delivered, kills = np.full(LANES, -1), 0, 0
    writer = subprocess.Popen([sys.executable, __file__, "write", node.handle.path, str(rows), mode])
    with home.reader(BATCH) as reader, Relay(node, RayLink(ingest, "rows"), flush_seconds=0.02).start() as relay:
        kill_at = rows // (kill_count + 1)  # rows that have arrived, so that each ingest takes some
        while writer.poll() is None or not relay.drain(0.0) or len(home) >= BATCH + LANES:
            assert relay.error is None, relay.error
            if relay.stats.rows + relay.stats.gaps > kill_at:
                ray.kill(ingest, no_restart=False)
                kill_at, kills = kill_at + rows // (kill_count + 1), kills + 1
            if len(home) >= BATCH + LANES:
                batch = reader.read(timeout=60.0)
                check(batch, newest)
                delivered += len(batch)
        assert writer.returncode == 0
        skipped, left = int(home.skipped.sum()), len(home)
        lost, gaps = bookings.lost, relay.stats.gaps
        print(f"{rows} written: {delivered} delivered, {skipped} skipped, {left} left, {lost} lost, {kills} kills, "
              f"{relay.stats.rewinds} rewinds, {gaps} gaps seen by the relay")  # fmt: skip
        assert rows == delivered + skipped + left + lost and home.dropped.sum() == 0
        assert mode == "replay" or not lost
    ray.kill(ingest)
    for each in (node, home, bookings):
        each.close()


def main(rows: int, kills: int, *modes: str) -> None:
    import ray

    own = {"address": "local", "num_cpus": 1, "include_dashboard": False, "object_store_memory": 150 << 20}
    ray.init(log_to_driver=False, logging_level="error", **({} if "RAY_ADDRESS" in os.environ else own))
    for mode in modes:
        carry(rows, mode, kills)
    ray.shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
