"""Python processes that use the library are killed at any moment and replaced: the survivors continue.

    python tests/support/kills.py spawn|forkserver|fork CYCLES [trust]

It keeps a process of each role, started by that method of multiprocessing: three writers, of a lane, of many lanes, and
one that comes and goes and makes segments of its own; a sampler, a publisher and a subscriber. Each is killed with
SIGKILL, half of them while they start, and now and then all at once. A sampler and a subscriber in this process are
never killed: they check every row and all weights that they accept. With `trust` the sampler believes whatever it
copied, until a row is torn. The program reports what it counted; its status is 1 if there was any fault. A process that
hangs ends it with a traceback.
"""

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
from core import report
from filled import publish_next, rows, torn_rows, torn_weights, tree
from mapped import Mapped
from processes import descriptors, stop_inside, sweep, until
from seams import trusting

from marlcore import Field, ParameterStore, ReplayBuffer, TransitionSpec
from marlcore.memory import survey_segments, writer_lock

ROWS, BATCH = 64, 64
SPEC = TransitionSpec(Field((512,), "uint64"), Field((), "int64"))
VECTOR = tuple(range(2, 10))
LANES = 2 + len(VECTOR)
PATIENCE_S = 300.0  # of a sampler or a subscriber
PROGRESS, HURRY, READ, TORN = range(4)  # words of a process's line of the board
FAULTS = ("torn", "fell", "ahead", "kept", "failed", "segments", "descriptors")


def working(line: np.ndarray) -> Iterator[None]:
    """Loops until the parent dies, with pauses for other processes."""
    parent = os.getppid()  # or the fork server, which ends with it
    while os.getppid() == parent:
        yield
        line[PROGRESS] += 1
        if not line[HURRY] and random.random() < 0.2:
            time.sleep(random.random() * 4e-3)


def add_next(writer: Any, replay: Any, birth: int) -> None:
    ticket, writer.policy_version = Mapped(replay).committed(writer.lane), birth
    assert writer.add(**rows(SPEC, ticket * LANES + writer.lane, LANES, birth)) == ticket


def add(line: np.ndarray, replay: Any, lanes: tuple[int, ...], birth: int) -> None:
    with replay.writer(*lanes) as writer:
        for _ in working(line):
            add_next(writer, replay, birth)


def add_vector(line: np.ndarray, replay: Any, lanes: tuple[int, ...], birth: int) -> None:
    """Adds a row to each lane, or to some of them."""
    tickets, rng = counters(replay, range(LANES))[:, 0], np.random.default_rng()
    with replay.vector_writer(lanes) as vector:
        vector.policy_version = birth
        for _ in working(line):
            some = rng.permutation(lanes)[: rng.integers(1, len(lanes) + 1)]
            added = vector.add(**rows(SPEC, tickets[some] * LANES + some, LANES, birth), lanes=some)
            assert (added == tickets[some]).all()
            tickets[some] += 1


def come_and_go(line: np.ndarray, replay: Any, lanes: tuple[int, ...], birth: int) -> None:
    """Attaches, takes the lane, adds, leaves; makes a segment, which another attaches to."""
    name = Path(replay.handle.path).name.split("-")[1]
    for _ in working(line):
        with ReplayBuffer.attach(replay.handle) as attached, attached.writer(*lanes) as writer:
            add_next(writer, attached, birth)
        with ReplayBuffer.create(SPEC, ROWS, name=name) as own, ReplayBuffer.attach(own.handle) as again:
            own.writer().add(**rows(SPEC, 0))
            assert len(again) == 1


def sample(line: np.ndarray, replay: Any, lanes: tuple[int, ...], birth: int) -> None:
    sampler = replay.sampler(BATCH)
    for _ in working(line):
        line[TORN] += torn_rows(SPEC, sampler.sample(timeout=PATIENCE_S), LANES)
        line[READ] += BATCH


def publish(line: np.ndarray, store: Any, lanes: tuple[int, ...], birth: int) -> None:
    weights = tree()
    with store.publisher(weights) as publisher:
        for _ in working(line):
            publish_next(publisher, weights)


def subscribe(line: np.ndarray, store: Any, lanes: tuple[int, ...], birth: int) -> None:
    weights = tree()
    subscriber = store.subscriber(weights)
    for _ in working(line):
        if subscriber.wait(newer_than=subscriber.version, timeout=0.1) and subscriber.pull(timeout=PATIENCE_S):
            line[TORN] += torn_weights(weights, subscriber)
            line[READ] += 1


def counters(shared: Any, lanes: Any) -> np.ndarray:
    """Committed and reserved, int64 [lanes, 2]."""
    mapped = Mapped(shared)
    return np.array([mapped.counters(lane) for lane in lanes]).reshape(-1, 2)


def line_of(board: Path, slot: int) -> np.ndarray:
    """The numbers that a process writes into a file, and its parent reads."""
    return np.memmap(board, np.int64, "r+").reshape(-1, 16)[slot]


def live(role: Callable[..., None], board: Path, slot: int, kind: Any, handle: Any, *arguments: Any) -> None:
    with kind.attach(handle) as shared:
        role(line_of(board, slot), shared, *arguments)


@dataclass
class Victim:
    """The process of a role, which is killed and started again."""

    context: Any
    board: Path
    slot: int
    role: Callable[..., None]
    shared: Any
    lanes: tuple[int, ...] = ()  # that it writes to
    startup_s: float = 1.0
    births: int = 0

    def start(self) -> None:
        self.line, self.before = line_of(self.board, self.slot), counters(self.shared, self.lanes)
        self.line[:READ] = 0
        self.births += 1
        arguments = self.role, self.board, self.slot, type(self.shared), self.shared.handle, self.lanes, self.births
        self.process = self.context.Process(target=live, args=arguments, daemon=True)
        self.process.start()
        self.began, self.late = time.monotonic(), self.births // 2 % 2 == 0
        self.doom = None if self.late else self.began + 1.2 * random.random() * self.startup_s

    def is_due(self) -> bool:
        """Whether it is due to be killed: while it starts, or shortly after it began to work."""
        now = time.monotonic()
        if self.doom is None and self.line[PROGRESS]:
            self.startup_s, self.doom = now - self.began, now + 0.03 * random.random()
        assert self.doom is not None or now < self.began + PATIENCE_S, f"{self.role.__name__} hangs"
        return self.doom is not None and now >= self.doom

    def kill(self) -> None:
        if self.late and self.lanes and random.random() < 0.3:
            self.line[HURRY] = 1
            stop_inside(self.process.pid, partial(counters, self.shared, self.lanes), tries=50)
        self.process.kill()

    def bury(self) -> Counter[str]:
        self.process.join()
        after = counters(self.shared, self.lanes)
        committed, reserved = after.T
        inside = (reserved > np.maximum(committed, self.before[:, 1])).any()  # else its predecessor may have reserved
        phase = "inside" if inside else "working" if self.line[PROGRESS] else "starting"
        found = Counter({"kills": 1, phase: 1, f"{self.role.__name__}_{phase}": 1})
        found["failed"] = self.process.exitcode != -signal.SIGKILL
        found["fell"] = int((after < self.before).sum())
        found["ahead"] = int((reserved - committed > 1).any())
        found["kept"] = sum(Mapped(self.shared).segment.is_locked(writer_lock(lane)) for lane in self.lanes)
        self.process.close()
        return found


class Kills:
    """A victim of each role; and a sampler and a subscriber in this process, which are never killed."""

    def __init__(self, method: str, folder: Path, trust: bool) -> None:
        name = f"kills{os.getpid()}"
        self.replay = ReplayBuffer.create(SPEC, LANES * ROWS, LANES, name=name)
        self.store = ParameterStore.create(tree(), extras={"version": ()}, name=name)
        with trusting() if trust else contextlib.nullcontext():
            self.sampler = self.replay.sampler(BATCH, seed=0)
        self.weights, self.trust, self.counts = tree(), trust, Counter[str]()
        self.subscriber = self.store.subscriber(self.weights)
        roles: list[tuple[Any, ...]] = [
            (add, self.replay, (0,)), (come_and_go, self.replay, (1,)), (add_vector, self.replay, VECTOR),
            (sample, self.replay), (publish, self.store, (0,)), (subscribe, self.store),
        ]  # fmt: skip
        board, context = folder / "board", multiprocessing.get_context(method)
        board.write_bytes(bytes(128 * len(roles)))
        self.victims = [Victim(context, board, slot, *role) for slot, role in enumerate(roles)]
        for victim in self.victims:
            victim.start()

    def kill(self, victims: list[Victim]) -> None:
        for victim in victims:
            victim.kill()
        for victim in victims:
            self.counts += victim.bury()
            if victim.role is come_and_go:
                self.counts["swept"] += sum(map(is_ours, sweep()))

    def survive(self) -> None:
        self.counts["torn"] += torn_rows(SPEC, self.sampler.sample(timeout=PATIENCE_S), LANES)
        self.counts["rows"] += BATCH
        if self.subscriber.pull(timeout=PATIENCE_S):
            self.counts["torn"] += torn_weights(self.weights, self.subscriber)
            self.counts["weights"] += 1

    def run(self, cycles: int) -> None:
        while self.counts["kills"] < cycles and not (self.trust and self.counts["torn"]):
            for _ in range(20 if self.trust else 1):
                self.survive()
            due = [victim for victim in self.victims if victim.is_due()]
            if due and random.random() < 0.02:
                due = self.victims
            self.kill(due)
            for victim in due:
                victim.start()
            time.sleep(0.01)
        before = [victim.line[PROGRESS].item() for victim in self.victims]
        until(lambda: all(victim.line[PROGRESS] > then for victim, then in zip(self.victims, before, strict=True)))
        self.kill(self.victims)
        for _ in range(20):
            self.survive()
        lines = np.array([victim.line for victim in self.victims])
        self.counts.update(torn=int(lines[:, TORN].sum()), read_by_the_killed=int(lines[:, READ].sum()))

        self.replay.close()
        self.store.close()


def is_ours(segment: str) -> bool:
    return segment.startswith(f"marlcore-kills{os.getpid()}-")


def left() -> Counter[str]:
    """What this process has open, and segments of this run; it has waited for each process that it started."""
    sweep()
    return Counter(segments=sum(is_ours(file.name) for file in survey_segments()), descriptors=len(descriptors()))


def main(method: str, cycles: int, trust: bool) -> bool:
    began = time.monotonic()
    resource_tracker.ensure_running()  # multiprocessing's own processes stay until the end
    if method == "forkserver":
        multiprocessing.set_forkserver_preload(["marlcore", "kills"])
        forkserver.ensure_running()
    with tempfile.TemporaryDirectory() as folder:
        before = left()
        deaths = Kills(method, Path(folder), trust)
        deaths.run(cycles)
        counts = deaths.counts
        del deaths
        counts.update(left())
        counts.subtract(before)
    faults = {name: counts.pop(name, 0) for name in FAULTS}
    report({"cycles": cycles, **counts, **faults, "seconds": round(time.monotonic() - began, 1)})
    return any(faults.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["trust"]))
