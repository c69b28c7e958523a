"""Power cuts of a model machine that runs the real code: a page is on its disk as it was at some moment.

    python tests/support/power_cuts.py CORE FOLDER CUTS [SABOTAGE]

Between any two stores of the core (see csrc/test/power_cuts.c), and inside each step of the flusher and of recovery,
the kernel may write pages back, in any order and in any state; whatever was synced is on the disk; and the machine may
stop. Each time the disk's content is attached under another boot: every row that is held must have the bytes that its
writer gave it, and all rows below the watermark that the flusher published must be accounted for; a queue must hold
each of them that the reader's last state on disk does not know. The next life of the machine begins with one of these
disks, and while a process recovers a replay, a second one comes, which writes if it may. The program reports what it
counted; its status is 1 if a row was wrong.
"""

import ctypes
import importlib.util
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

spec = importlib.util.spec_from_file_location("marlcore._core", sys.argv[1])
sys.modules["marlcore._core"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)  # before anything loads marlcore's own core

from core import report  # noqa: E402
from filled import last_of, rows  # noqa: E402
from mapped import Mapped  # noqa: E402
from seams import replace  # noqa: E402

from marlcore import Durable, Field, RateLimiter, ReplayBuffer, TrajectoryQueue, TransitionSpec  # noqa: E402
from marlcore.errors import MarlcoreError, NotEnoughData, SegmentCorrupt  # noqa: E402
from marlcore.memory import File, flusher, recovery, watermark  # noqa: E402
from marlcore.queue.cursor import CursorLines  # noqa: E402

PAGE = 4096
SPECS = [  # rows that share a page or lie across two, and rows with a frame in pages of their own
    (TransitionSpec(Field((9,), "uint64"), Field((), "int64")), 2 * 150, 2),
    (TransitionSpec(Field((700,), "uint64"), Field((), "int64")), 3 * 8, 3),
]
CUTS_PER_LIFE = 40
Told = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)


@dataclass
class Cut:
    """The disk when the machine stopped, and what the flusher had published by then."""

    disk: np.ndarray
    published: list[int]
    state: dict[str, np.ndarray] | None  # of a queue's reader, on disk beside it


@dataclass
class Machine:
    """The page cache of one file: `memory` is what processes see, `disk` is what a power cut leaves."""

    path: Path
    rng: random.Random
    chance: float  # of a cut at a point
    cuts: list[Cut] = field(default_factory=list)
    syncs: bool = True

    def __post_init__(self) -> None:
        self.memory = np.memmap(self.path, np.uint8, "r+")
        self.disk = self.memory.copy()
        self.pages = self.memory.size // PAGE
        self.replay: Any = None
        self.enter: Callable[[], None] = int
        self.state: dict[str, np.ndarray] | None = None
        self.busy = False

    def write_back(self, pages: int) -> None:
        for page in self.rng.choices(range(self.pages), k=pages):
            self.disk[page * PAGE :][:PAGE] = self.memory[page * PAGE :][:PAGE]

    def point(self, chance: float | None = None) -> None:
        """Anything may happen to pages here; perhaps it is the last moment of the machine."""
        if self.rng.random() < 0.2:
            self.write_back(self.rng.randrange(1, 6))
        if self.rng.random() < (chance or self.chance) and len(self.cuts) < CUTS_PER_LIFE:
            published = [] if self.replay is None else self.replay._durability.marks.durable().tolist()
            self.cuts.append(Cut(self.disk.copy(), published, self.state))

    def sync(self) -> None:
        self.enter()
        if not self.syncs:
            return
        self.write_back(self.rng.randrange(2 * self.pages))
        self.point(chance=0.1)  # what the order of rows and marks is for
        self.disk[:] = self.memory

    def told(self, address: int | None, nbytes: int) -> None:
        """Called at each point of the core, and for what it puts on disk."""
        if address is None:
            self.point()
            if not self.busy and self.replay is not None and self.rng.random() < 0.01:
                self.flush()
        elif self.syncs:
            body = self.replay._segment.body
            at = address - body.ctypes.data + self.memory.size - body.size
            self.disk[at // PAGE * PAGE : -(-(at + nbytes) // PAGE) * PAGE] = self.memory[
                at // PAGE * PAGE : -(-(at + nbytes) // PAGE) * PAGE
            ]

    def flush(self) -> None:
        if self.replay._durability._flushing is None:  # of the second process
            return
        self.busy = True
        self.replay._durability._flushing.flush()
        self.busy = False


class NoThread:
    """Stands for the flusher's thread: the machine calls `flush` itself."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def close(self) -> None:
        pass


class Waits(Exception):
    """Comes in place of a pause of the second process."""


def wait(seconds: float) -> NoReturn:
    raise Waits


class Lives:
    """Lives of the machine, each of which begins with a disk that an earlier one left."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng, self.counts, self.folder = random.Random(seed), Counter[str](), folder
        self.machine: Machine | None = None
        self.boot = 0
        replace("memory", Flusher=NoThread, check_keeps=lambda directory: None, boot_id=self.boot_id)
        replace("transitions", Flusher=NoThread, check_keeps=lambda directory: None)
        recovery.time = SimpleNamespace(sleep=wait)
        File.sync = lambda file: self.machine and self.machine.sync()
        write = watermark.Marks.write
        watermark.Marks.write = lambda marks, mark: self.write_torn(write, marks, mark)
        self.callback = Told(self.told)
        ctypes.CDLL(sys.argv[1]).mc_points_tell(self.callback)

    def boot_id(self) -> bytes:
        return self.boot.to_bytes(16, "little")

    def told(self, address: int | None, nbytes: int) -> None:
        if self.machine is not None:
            self.machine.told(address, nbytes)

    def write_torn(self, write: Any, marks: Any, mark: Any) -> None:
        """Writes a mark in two parts, between which pages may be written back."""
        place = marks._places[mark.number % 2]
        before = place.copy()
        write(marks, mark)
        whole, cut = place.copy(), self.rng.randrange(len(place))
        parts = slice(cut, None) if self.rng.random() < 0.5 else slice(0, cut)
        place[parts] = before[parts]
        if self.machine is not None:
            for _ in range(5):
                self.machine.write_back(self.machine.pages)
                self.machine.point(chance=0.1)
        place[:] = whole

    @property
    def faults(self) -> bool:
        return any(self.counts[name] for name in FAULTS)

    def run(self, cuts: int, until_fault: bool) -> None:
        while self.counts["cuts"] < cuts and not (until_fault and self.faults):
            self.kind = self.rng.choice([ReplayBuffer, TrajectoryQueue])
            self.lineage(*self.rng.choice(SPECS))

    def lineage(self, spec: TransitionSpec, capacity: int, lanes: int) -> None:
        path, flusher._LEAST_AHEAD = self.folder / "replay", self.rng.choice([2, 1024])
        limited = self.kind is ReplayBuffer and self.rng.random() < 0.3
        options: dict[str, Any] = {"limiter": RateLimiter(1.0, 1, 1e6)} if limited else {}
        self.kind.create(spec, capacity, lanes, path=path, durable=Durable(1.0), **options).close()
        self.boot, self.state = self.boot + 1, None
        truth: list[list[bytes]] = [[] for _ in range(lanes)]
        for life in range(1, 6):
            disk, whole = self.live(path, spec, truth, life)
            path.write_bytes(disk.tobytes())
            truth = [written[:count] for written, count in zip(truth, whole, strict=True)]
        path.unlink()

    def live(self, path: Path, spec: TransitionSpec, truth: list[list[bytes]], life: int) -> tuple[Any, list[int]]:
        """Recovers and writes until the machine stops; returns the disk of one cut, and each lane's watermark there."""
        self.machine = machine = Machine(path, self.rng, self.rng.choice([0.003, 0.02]))
        machine.state = self.state
        if self.kind is ReplayBuffer:  # to a queue, no process adds before the reader's state was given
            machine.enter = lambda: self.enter(path, machine, spec, truth, life)
        with self.kind.attach(path) as replay:
            machine.enter, machine.replay = int, replay
            self.hollow(replay, truth)
            if self.state is not None:
                with replay.reader(1) as reader:
                    reader.commit(self.state)
            self.write(replay, machine, spec, truth, life)
            machine.point()
            self.machine = None
        machine.cuts = machine.cuts or [Cut(machine.disk.copy(), [0] * len(truth), machine.state)]
        chosen = self.rng.choice(machine.cuts)
        self.state = chosen.state
        for cut in machine.cuts:
            whole = self.check(path, cut, truth)
            if cut is chosen:
                watermarks = whole
        return chosen.disk, watermarks

    def enter(self, path: Path, machine: Machine, spec: TransitionSpec, truth: list[list[bytes]], life: int) -> None:
        with suppress(Waits), self.kind.attach(path) as machine.replay:
            self.hollow(machine.replay, truth)
            self.write(machine.replay, machine, spec, truth, life)

    def hollow(self, replay: Any, truth: list[list[bytes]]) -> None:
        """Expects as a lane's last row the one that recovery puts there if no written row was whole."""
        for lane, written in enumerate(truth):
            if written and Mapped(replay).counters(lane)[1] == len(written) - 1 + replay.capacity // replay.lanes:
                written[-1] = row_bytes(Mapped(replay), lane, len(written) - 1)

    def write(self, replay: Any, machine: Machine, spec: TransitionSpec, truth: list[list[bytes]], life: int) -> None:
        """Adds rows to all lanes, alone and in batches, through one writer after another."""
        mapped, lanes = Mapped(replay), replay.lanes
        for _ in range(self.rng.randrange(1, 8)):
            lane = self.rng.randrange(lanes)
            with replay.writer(lane, timeout=0.0) as writer:
                writer.policy_version = life
                for _ in range(self.rng.randrange(60)):
                    ticket = len(truth[lane])
                    if self.kind is TrajectoryQueue and self.rng.random() < 0.2:
                        self.consume(replay, machine)
                    if self.kind is TrajectoryQueue and self.room(replay, lane) < 2:
                        break
                    ends = last_of(spec, ticket * lanes + lane) if self.rng.random() < 0.1 else {}
                    assert writer.add(**rows(spec, ticket * lanes + lane, lanes, life), **ends) == ticket
                    truth[lane] += [row_bytes(mapped, lane, ticket + i) for i in range(1 + bool(ends))]
                    if self.rng.random() < 0.03:
                        machine.flush()
            if self.rng.random() < 0.3:  # when no writer lives
                machine.flush()

    def consume(self, queue: Any, machine: Machine) -> None:
        """Reads what there is of some lanes, and perhaps commits it behind a state on disk."""
        with queue.reader(1) as reader:
            with suppress(NotEnoughData):
                for _ in range(self.rng.randrange(40)):
                    reader.read()
            if self.rng.random() < 0.7:
                machine.state = reader.state_dict()
                machine.point()
                reader.commit()

    def room(self, queue: Any, lane: int) -> int:
        return queue._lines.room(lane) - Mapped(queue).committed(lane)

    def withheld(self, queue: Any, cut: Cut) -> int:
        """Counts the lanes that lack rows below the watermark which the state on disk does not know."""
        position = np.zeros(queue.lanes, np.int64) if cut.state is None else cut.state["cursor"][0]
        counters = np.array([Mapped(queue).counters(lane) for lane in range(queue.lanes)])
        lowest = counters[:, 1] - queue.capacity // queue.lanes
        return int((lowest > np.minimum(position, counters[:, 0])).sum())

    def check(self, path: Path, cut: Cut, truth: list[list[bytes]]) -> list[int]:
        """Attaches to what a cut left; returns each lane's watermark. Counts rows that are not as they were written."""
        left = path.with_name("left")
        left.write_bytes(cut.disk.tobytes())
        left.chmod(0o600)
        self.boot += 1
        self.counts["cuts"] += 1
        whole = [0] * len(truth)
        try:
            with self.kind.attach(left) as replay:
                if self.kind is TrajectoryQueue:
                    self.counts["withheld"] += self.withheld(replay, cut)
                mapped, capacity = Mapped(replay), replay.capacity // replay.lanes
                for lane, written in enumerate(truth):
                    whole[lane], reserved = mapped.counters(lane).tolist()
                    lowest = max(0, reserved - capacity)
                    hollow = whole[lane] and reserved == whole[lane] - 1 + capacity
                    got = [row_bytes(mapped, lane, ticket) for ticket in range(lowest, whole[lane] - bool(hollow))]
                    self.counts["torn"] += sum(a != b for a, b in zip(got, written[lowest:], strict=False))
                    self.counts["torn"] += len(got) > len(written[lowest:])
                    self.counts["rows"] += len(got)
                    self.counts["lost"] += bool(cut.published) and whole[lane] < cut.published[lane]
                if replay.recovered is not None:
                    self.counts["cut"] += replay.recovered.cut
                    self.counts["overwritten"] += replay.recovered.overwritten
        except SegmentCorrupt:
            self.counts["corrupt"] += 1
        left.unlink()
        return whole


def row_bytes(mapped: Mapped, lane: int, ticket: int) -> bytes:
    """A row in all columns, as it is in memory."""
    columns = range(len(mapped.geometry.columns))
    return b"".join(mapped.column(k, lane)[ticket % mapped.geometry.capacity].tobytes() for k in columns)


# ---- rules broken ----


def marks_before_rows() -> None:
    def flush(self: Any) -> None:
        mark = self._next(self._last or self._marks.newest())
        if mark is not self._last:
            self._marks.write(mark)
            self._held.sync()
            self._marks.publish(mark)
            self._last = mark

    flusher.Flushing.flush = flush


def promises_before_the_disk() -> None:
    write = watermark.Marks.write
    watermark.Marks.write = lambda marks, mark: (marks.publish(mark), write(marks, mark))


def one_place() -> None:
    following = flusher.Flushing._next

    def next_mark(self: Any, before: Any) -> Any:
        mark = following(self, before)
        return mark if mark is before else watermark.Mark(before.number + 2, mark.boot, mark.lanes, mark.slots)

    flusher.Flushing._next = next_mark


def no_checksum() -> None:
    watermark.zlib.crc32 = lambda raw: 0


def no_boot() -> None:
    replace("memory", boot_id=lambda: bytes(16))


def no_promise() -> None:
    from marlcore.memory import NativeLanes

    NativeLanes.withhold = lambda *arguments: None


def pledges_forgotten() -> None:
    recovery._PLEDGED = 6


def pledges_in_memory_alone() -> None:
    Machine.told = lambda self, address, nbytes, told=Machine.told: told(self, None, 0)


def enters_before_the_end() -> None:
    recovery.Mark = lambda number, boot, *rest: watermark.Mark(number, recovery.boot_id(), *rest)


def lowers_beside_writers() -> None:
    flusher.is_locked = lambda fd, offset: False


def pledges_beyond_room() -> None:
    CursorLines.room = lambda lines, lane: lines.released(lane) + lines._lane_rows


def promises_beyond_room() -> None:
    kept = CursorLines.kept
    CursorLines.kept = lambda lines: (kept(lines)[0], kept(lines)[1] + lines._lane_rows)


RULES = (
    marks_before_rows, promises_before_the_disk, one_place, no_checksum, no_boot, no_promise, pledges_forgotten,
    pledges_in_memory_alone, enters_before_the_end, lowers_beside_writers, pledges_beyond_room, promises_beyond_room,
)  # fmt: skip
FAULTS = ("torn", "lost", "corrupt", "failed", "withheld")


def main() -> int:
    _, _, folder, cuts, *sabotage = sys.argv
    logging.disable()  # of what is recovered
    lives = Lives(Path(folder), seed=7)  # which shows each broken rule soon
    for rule in RULES:
        if rule.__name__ in sabotage:
            rule()
    try:
        lives.run(int(cuts), until_fault=bool(sabotage))
    except (AssertionError, MarlcoreError):
        if not sabotage:
            raise
        lives.counts["failed"] += 1
    report({**{name: lives.counts[name] for name in FAULTS}, **lives.counts})
    return int(lives.faults)


if __name__ == "__main__":
    sys.exit(main())
