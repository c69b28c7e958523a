"""Python processes that use the library are killed at any moment and replaced: whoever lives goes on.

    python tests/support/kills.py spawn|forkserver|fork CYCLES [trust]

It keeps one process of each role, started by that method of multiprocessing: three writers, one of them of many
lanes, one that comes and goes and makes segments of its own, a sampler, and unless it forks a publisher and a
subscriber. Each is killed with SIGKILL, half of them while they start, and now and then all at once. A sampler and a
subscriber in this process live all along: they check every row and all weights that they accept, whose writers are
known. With `trust` they believe whatever they copied, until a row is torn. It reports what it counted; the status is 1
when there was any fault. A process that hangs ends it with a traceback.
"""

import contextlib
import itertools
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
from mapped import Mapped
from processes import children, descriptors, state, sweep, until
from seams import trusting

from marlcore import Field, ReplayBuffer, TransitionSpec
from marlcore.memory import survey_segments, writer_lock
from marlcore.testing.rows import filled

ROWS, WORDS, BATCH = 64, 512, 64
VECTOR = tuple(range(3, 11))
LANES = 3 + len(VECTOR)
PATIENCE_S = 300.0  # of a sampler or a subscriber
STARTING, ATTACHING, WORKING = range(3)
# A process's line of the board; the last two are never reset.
PHASE, PROGRESS, HURRY, READ, TORN = range(5)
FAULTS = ("torn", "fell", "ahead", "kept", "failed", "segments", "descriptors", "processes")


observations = partial(filled, WORDS)


def torn_rows(batch: Any, lanes: int, birth: Any = None) -> int:
    """Rows of a batch that are not as they were written; by the writers of these numbers, if given."""
    ticket, lane = np.divmod(batch.index, lanes)
    birth = batch.policy_version if birth is None else birth
    torn = (batch.obs != observations(lane, ticket, birth)).any(1)
    torn |= (batch.next_obs != observations(lane, ticket + 1, birth)).any(1)
    return int((torn | (batch.action != ticket) | (batch.policy_version != birth)).sum())


class Births:
    """Which writer of each lane wrote a ticket, by the tickets at which they ended."""

    def __init__(self, lanes: int) -> None:
        self.ends: list[list[int]] = [[] for _ in range(lanes)]

    def torn_rows(self, batch: Any) -> int:
        ticket, lane = np.divmod(batch.index, len(self.ends))
        birth = [np.searchsorted(self.ends[at], t, side="right") for at, t in zip(lane, ticket, strict=True)]
        return torn_rows(batch, len(self.ends), np.array(birth))


def make_model() -> Any:
    import torch

    return torch.nn.Linear(256, 256)


def torn_weights(model: Any, subscriber: Any) -> int:
    values = {float(word) for parameter in model.parameters() for word in parameter.detach().aminmax()}
    return int(values != {subscriber.version} or subscriber.extras != {"version": subscriber.version})


def working(line: np.ndarray) -> Iterator[None]:
    """As long as the process lives that started this one; with pauses, in which others get on."""
    parent = os.getppid()  # or the fork server, which ends with it
    assert multiprocessing.parent_process().is_alive()
    line[PHASE] = WORKING
    while os.getppid() == parent:
        yield
        line[PROGRESS] += 1
        if not line[HURRY] and random.random() < 0.2:
            time.sleep(random.random() * 4e-3)


@contextlib.contextmanager
def writing(replay: Any, lane: int, birth: int) -> Iterator[Callable[[], int]]:
    """A function that adds the lane's next row, and returns its ticket."""
    with replay.writer(lane) as writer:
        writer.policy_version = birth
        tickets = itertools.count(Mapped(replay).committed(lane))

        def add_next() -> int:
            ticket = next(tickets)
            assert writer.add(observations(lane, ticket, birth), ticket, 0.0) == ticket
            return ticket

        yield add_next


def add(line: np.ndarray, replay: Any, lanes: tuple[int, ...], birth: int) -> None:
    with writing(replay, *lanes, birth) as add_next:
        for _ in working(line):
            add_next()


def add_batch(line: np.ndarray, replay: Any, lanes: tuple[int, ...], birth: int) -> None:
    (lane,) = lanes
    with replay.writer(lane) as writer:
        writer.policy_version = birth
        ticket = Mapped(replay).committed(lane)
        for _ in working(line):
            tickets = ticket + np.arange(random.randint(1, ROWS))
            assert writer.add_batch(observations(lane, tickets, birth), tickets, np.zeros(len(tickets))) == ticket
            ticket += len(tickets)


def add_vector(line: np.ndarray, replay: Any, lanes: tuple[int, ...], birth: int) -> None:
    """Adds a row to each lane, or to some of them."""
    with replay.vector_writer(lanes) as vector:
        vector.policy_version = birth
        tickets = np.array([Mapped(replay).committed(lane) for lane in range(LANES)])
        rng = np.random.default_rng()
        for _ in working(line):
            some = rng.permutation(lanes)[: rng.integers(1, len(lanes) + 1)]
            obs = observations(some, tickets[some], birth)
            assert (vector.add(obs, tickets[some], np.zeros(len(some)), lanes=some) == tickets[some]).all()
            tickets[some] += 1


def come_and_go(line: np.ndarray, replay: Any, lanes: tuple[int, ...], birth: int) -> None:
    """Attaches, takes the lane, adds, leaves; makes a segment, which another attaches to."""
    name = Path(replay.handle.path).name.split("-")[1]
    for _ in working(line):
        with ReplayBuffer.attach(replay.handle) as attached, writing(attached, *lanes, birth) as add_next:
            add_next()
        with ReplayBuffer.create(spec(), ROWS, name=name) as own, ReplayBuffer.attach(own.handle) as again:
            own.writer().add(observations(0, 0, 0), 0, 0.0)
            assert len(again) == 1


def sample(line: np.ndarray, replay: Any, lanes: tuple[int, ...], birth: int) -> None:
    sampler = replay.sampler(BATCH)
    for _ in working(line):
        line[TORN] += torn_rows(sampler.sample(PATIENCE_S), replay.lanes)
        line[READ] += BATCH


def publish(line: np.ndarray, store: Any, lanes: tuple[int, ...], birth: int) -> None:
    model = make_model()
    with store.publisher(model) as publisher:
        for _ in working(line):
            for parameter in model.parameters():
                parameter.data.fill_(publisher.version + 1)
            publisher.publish(version=publisher.version + 1)


def subscribe(line: np.ndarray, store: Any, lanes: tuple[int, ...], birth: int) -> None:
    model = make_model()
    subscriber = store.subscriber(model)
    for _ in working(line):
        subscriber.wait(newer_than=subscriber.version, timeout=0.1)
        if subscriber.pull(PATIENCE_S):
            line[TORN] += torn_weights(model, subscriber)
            line[READ] += 1


SLOW = sample, publish, subscribe
"""They import so much that others would not get on if they were killed as soon as they work."""


def spec() -> TransitionSpec:
    return TransitionSpec(Field((WORDS,), "uint64"), Field((), "int64"))


def open_board(path: Path) -> np.ndarray:
    """A line of numbers for each process, in a file: it writes them, its parent reads."""
    return np.memmap(path, np.int64, "r+").reshape(-1, 16)


def live(role: Callable[..., None], path: Path, slot: int, kind: Any, handle: Any, *arguments: Any) -> None:
    line = open_board(path)[slot]
    line[PHASE] = ATTACHING
    with kind.attach(handle) as shared:
        role(line, shared, *arguments)


def counters(shared: Any, lanes: tuple[int, ...]) -> np.ndarray:
    """Committed and reserved, int64 [lanes, 2]."""
    mapped = Mapped(shared)
    return np.array([mapped.counters(lane) for lane in lanes]).reshape(-1, 2)


@dataclass
class Role:
    work: Callable[..., None]
    shared: Any
    lanes: tuple[int, ...] = ()  # that it writes to
    startup_s: float = 1.0


@dataclass
class Life:
    """One process, from its start until it is killed."""

    process: Any
    began: float
    late: bool  # it works before it is killed
    doom: float | None
    before: np.ndarray  # its lanes' counters when it was started


class Kills:
    """One process of each role; and a sampler and a subscriber in this one, which are never killed."""

    def __init__(self, method: str, folder: Path, trust: bool) -> None:
        name = f"kills{os.getpid()}"
        self.replay = ReplayBuffer.create(spec(), LANES * ROWS, LANES, name=name)
        with trusting() if trust else contextlib.nullcontext():
            self.sampler = self.replay.sampler(BATCH, seed=0)
        writers = (add, (0,)), (add_batch, (1,)), (come_and_go, (2,)), (add_vector, VECTOR), (sample, ())
        self.roles = [Role(work, self.replay, lanes) for work, lanes in writers]
        self.store = None
        if method != "fork":  # torch does not live through it
            from marlcore import ParameterStore

            self.model = make_model()
            self.store = ParameterStore.create(self.model, extras={"version": ()}, name=name)
            self.subscriber = self.store.subscriber(self.model)
            self.roles += [Role(publish, self.store, (0,)), Role(subscribe, self.store)]
        self.trust = trust
        self.births = Births(LANES)
        self.context = multiprocessing.get_context(method)
        self.path = folder / "board"
        self.path.write_bytes(bytes(128 * len(self.roles)))
        self.board = open_board(self.path)
        self.counts: Counter[str] = Counter()
        self.all = list(range(len(self.roles)))
        self.lives = [self.start(slot) for slot in self.all]

    def start(self, slot: int) -> Life:
        role = self.roles[slot]
        before = counters(role.shared, role.lanes)
        birth = len(self.births.ends[role.lanes[0]]) if role.shared is self.replay and role.lanes else 0
        self.board[slot, :READ] = 0
        arguments = role.work, self.path, slot, type(role.shared), role.shared.handle, role.lanes, birth
        process = self.context.Process(target=live, args=arguments, daemon=True)
        process.start()
        now, late = time.monotonic(), random.random() < (0.8 if role.work in SLOW else 0.5)
        doom = None if late else now + 1.2 * random.random() * role.startup_s
        return Life(process, now, late, doom, before)

    def due(self, slot: int) -> bool:
        """Whether its time has come: while it starts, or a little after it began to work."""
        life, role, now = self.lives[slot], self.roles[slot], time.monotonic()
        if life.doom is None and self.board[slot, PROGRESS]:
            role.startup_s = now - life.began
            life.doom = now + random.random() * (9 * role.startup_s if role.work in SLOW else 0.03)
        assert life.doom is not None or now < life.began + PATIENCE_S, f"{role.work.__name__} hangs"
        return life.doom is not None and now >= life.doom

    def kill(self, slots: list[int]) -> None:
        for slot in slots:
            if self.lives[slot].late and self.roles[slot].lanes and random.random() < 0.3:
                self.stop_inside(slot)
            self.lives[slot].process.kill()
        for slot in slots:
            process = self.lives[slot].process
            process.join()
            self.counts["kills"] += 1
            self.counts["failed"] += process.exitcode != -signal.SIGKILL
            process.close()
            self.examine(slot)

    def stop_inside(self, slot: int) -> None:
        """Tries to have a writer stand still between its two counters, where a kill at random seldom finds it."""
        role, pid = self.roles[slot], self.lives[slot].process.pid
        self.board[slot, HURRY] = 1
        for _ in range(50):
            os.kill(pid, signal.SIGSTOP)
            while state(pid) not in "TZ":
                time.sleep(1e-5)
            committed, reserved = counters(role.shared, role.lanes).T
            if (reserved > committed).any():
                return
            os.kill(pid, signal.SIGCONT)
            time.sleep(1e-3 * random.random())

    def examine(self, slot: int) -> None:
        """What the dead one left."""
        role, before = self.roles[slot], self.lives[slot].before
        phase = ["starting", "attaching", "working"][self.board[slot, PHASE]]
        after = counters(role.shared, role.lanes)
        committed, reserved = after.T
        self.counts["fell"] += int((after < before).sum())
        self.counts["kept"] += sum(Mapped(role.shared).segment.is_locked(writer_lock(lane)) for lane in role.lanes)
        if (reserved > np.maximum(committed, before[:, 1])).any():  # else its predecessor may have reserved that
            phase = "inside"
        if role.shared is self.replay:
            self.counts["ahead"] += role.work is not add_batch and bool((reserved - committed > 1).any())
            for lane, end in zip(role.lanes, committed.tolist(), strict=True):
                self.births.ends[lane].append(end)
        if role.work is come_and_go:
            self.counts["swept"] += sum(map(is_ours, sweep()))
        self.counts[phase] += 1
        self.counts[f"{role.work.__name__}_{phase}"] += 1

    def survive(self) -> None:
        self.counts["torn"] += self.births.torn_rows(self.sampler.sample(PATIENCE_S))
        self.counts["rows"] += BATCH
        if self.store and self.subscriber.pull(PATIENCE_S):
            self.counts["torn"] += torn_weights(self.model, self.subscriber)
            self.counts["weights"] += 1

    def run(self, cycles: int) -> None:
        while self.counts["kills"] < cycles and not (self.trust and self.counts["torn"]):
            self.survive()
            slots = [slot for slot in self.all if self.due(slot)]
            if slots and random.random() < 0.02:
                slots = self.all
            self.kill(slots)
            for slot in slots:
                self.lives[slot] = self.start(slot)
            time.sleep(0.01)
        before = self.board[:, PROGRESS].copy()
        until(lambda: (self.board[:, PROGRESS] > before).all())
        self.kill(self.all)
        for _ in range(20):
            self.survive()
        self.counts["rows_of_the_killed"] = int(self.board[:, READ].sum())
        self.counts["torn"] += int(self.board[:, TORN].sum())
        self.counts["added"] = int(counters(self.replay, tuple(range(LANES)))[:, 0].sum())

    def close(self) -> None:
        self.replay.close()
        if self.store:
            self.store.close()


def is_ours(segment: str) -> bool:
    return segment.startswith(f"marlcore-kills{os.getpid()}-")


def left(helpers: set[int]) -> Counter[str]:
    """What this process, or what it started to help it, has open or running; and segments of this run."""
    sweep()
    return Counter(
        segments=sum(is_ours(file.name) for file in survey_segments()),
        descriptors=len(descriptors()),
        processes=len({child for pid in (os.getpid(), *helpers) for child in children(pid)}),
    )


@contextlib.contextmanager
def helpers(method: str) -> Iterator[set[int]]:
    """multiprocessing's own processes, which stay until the end."""
    resource_tracker.ensure_running()
    pids = {resource_tracker._resource_tracker._pid}
    if method != "forkserver":
        yield pids
        return
    multiprocessing.set_forkserver_preload(["marlcore", "kills"])
    forkserver.ensure_running()
    yield {*pids, forkserver._forkserver._forkserver_pid}
    forkserver._forkserver._stop()


def main(method: str, cycles: int, trust: bool) -> bool:
    """Whether there was a fault."""
    began = time.monotonic()
    with helpers(method) as pids, tempfile.TemporaryDirectory() as folder:
        if method in ("spawn", "forkserver"):
            make_model()  # what torch opens once for good is no leak
        before = left(pids)
        deaths = Kills(method, Path(folder), trust)
        deaths.run(cycles)
        deaths.close()
        counts = deaths.counts
        del deaths
        counts.update(left(pids))
        counts.subtract(before)
    faults = {name: counts.pop(name, 0) for name in FAULTS}
    report({"cycles": cycles, **counts, **faults, "seconds": round(time.monotonic() - began, 1)})
    return any(faults.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["trust"]))
