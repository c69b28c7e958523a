"""Victims that die at each point of an operation in turn, or whose system calls fail, and those who go on after them.

    python tests/support/crash_points.py kill|fail SCENARIO CORE FOLDER [SABOTAGE]

runs the operation in a forked victim with a core that counts points (csrc/test/crash_points.h): once for each point,
until it comes to its end. After each victim the survivor, attached all along, reads; a successor writes on; nothing is
left. It reports, of "kill", the points of each kind, of "fail" how often each error of each system call led to what.
"""

import ctypes
import errno
import gc
import importlib.util
import itertools
import os
import signal
import socket
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from core import call_names, report
from victims import fork, reap, shared_numbers


def _load_core(path: str) -> ctypes.CDLL:
    """Puts a build of the core in the place of marlcore's; what arms its points."""
    spec = importlib.util.spec_from_file_location("marlcore._core", path)
    sys.modules["marlcore._core"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    library = ctypes.CDLL(path)
    library.mc_points_arm.argtypes = ctypes.c_int64, ctypes.c_int, ctypes.c_void_p
    return library


points = _load_core(sys.argv[3])

from filled import fill, tree, value_of, words  # noqa: E402
from mapped import Mapped  # noqa: E402
from processes import descriptors  # noqa: E402
from relayed import AGE, BOUNDARY, heads, raw  # noqa: E402
from seams import replace  # noqa: E402

from marlcore import (  # noqa: E402
    Field,
    LaneBusy,
    MarlcoreError,
    ParameterStore,
    RateLimiter,
    ReplayBuffer,
    TransitionSpec,
)
from marlcore.cluster import Bookings, DirectLink, Ingest, Relay  # noqa: E402
from marlcore.memory import Event, File, replace_file, survey  # noqa: E402
from marlcore.memory.header import Header  # noqa: E402
from marlcore.testing.rows import filled  # noqa: E402

ERRORS = {  # besides EIO
    "openat": ["EMFILE", "ENOMEM", "EINTR"], "fallocate": ["ENOSPC", "ENOMEM", "EINTR"], "mmap": ["ENOMEM", "EAGAIN"],
    "pwrite64": ["ENOSPC", "EINTR"], "linkat": ["ENOSPC"], "fcntl": ["ENOLCK", "EMFILE", "EINTR"], "futex": ["ENOMEM"],
}  # fmt: skip
CAPACITY, BEFORE = 8, 11  # rows of the lane, and those written to it before the victim comes
ENDED, UNHARMED = 0, 3  # how victims exit: the error came, or there are not so many calls


def names() -> list[str]:
    return [path.name for path in survey.SHM_DIR.glob(f"{survey.PREFIX}*")]


def observations(tickets, spec: TransitionSpec):
    """Named by the ticket and one more, so that memory that was never written holds none."""
    return filled(spec.obs.shape[0], np.asarray(tickets) + 1)


def rows(tickets, spec: TransitionSpec) -> dict[str, Any]:
    tickets = np.asarray(tickets)
    after = {"next_obs": observations(tickets + 1, spec)} if spec.next_obs else {}
    return {"obs": observations(tickets, spec), "action": tickets, "reward": tickets % 7, **after}


def check_rows(batch: Any, spec: TransitionSpec, lanes: int = 1) -> None:
    where = f"of {batch.index.tolist()}"
    for name, value in rows(batch.index, spec).items():
        assert (getattr(batch, name) == value).all(), f"torn or wrong: {name} {where}"
    assert (batch.next_obs == observations(batch.index + lanes, spec)).all(), f"torn or wrong: next_obs {where}"


SMALL = TransitionSpec(Field((5,), "uint64"), Field((), "int64"))
FRAMES = TransitionSpec(Field((40,), "uint64"), Field((), "int64"))  # a column of its own
SHARED = TransitionSpec(Field((40,), "uint64"), Field((), "int64"), next_obs=True)


class Add:
    """A writer adds to a lane that has gone round, with somebody asleep who waits for rows."""

    spec, shared, limiter = SMALL, False, None
    attaches, writes = True, True  # before the first point
    written = 1  # rows by the victim
    final: tuple[int, ...] = ()  # those of them that are boundary rows

    def __init__(self, folder: Path) -> None:
        self.watch(ReplayBuffer.create(self.spec, CAPACITY, name="crash", limiter=self.limiter))
        self.write(range(BEFORE))
        self.look()
        Event(self.mapped.body).prepare(1)

    # the victim

    def prepare(self) -> str:
        """What is done before the first point; the path of a segment that the survivor shall attach to, if any."""
        if self.attaches:
            self.own = ReplayBuffer.attach(self.replay.handle)
        if self.writes:
            self.writer = self.own.writer(shared=self.shared)
            self.ticket = self.mapped.committed()
        return ""

    def act(self) -> None:
        assert self.add(self.ticket) == self.ticket

    def add(self, ticket: int) -> int:
        return self.writer.add(**rows(ticket, self.spec))

    def release(self) -> None:
        self.own.close()
        self.own = self.writer = None

    # the survivor

    def watch(self, replay: ReplayBuffer, seams: tuple[int, ...] = (BEFORE - 1,)) -> None:
        """What is looked at from now on, also when its name is gone; nothing follows the row before a seam."""
        self.replay, self.mapped = replay, Mapped(replay)
        self.other = replay.writer(shared=True) if self.shared else None
        self.seams, self.boundaries = set(seams), set()
        self.sampler = replay.sampler(64, min_size=1, seed=0)

    def meet(self, path: str) -> None:
        """Attaches to what the victim made."""

    def check(self, done: bool) -> None:
        """What survivors and successors find; `done` says that the operation must have come to its end."""
        committed = self.mapped.committed()
        assert committed - BEFORE in ((self.written,) if done else (0, self.written))
        self.boundaries = {ticket for ticket in self.final if ticket < committed}
        self.look()
        for tickets in ([committed], range(committed + 1, committed + 5)):
            self.write(tickets)
            self.look()
        assert self.mapped.lanes.written(0) == committed + 5 - len(self.boundaries)

    def write(self, tickets) -> None:
        """A successor adds these rows; to a shared lane, a writer that was there all along."""
        self.seams.add(self.mapped.committed() - 1)
        writer = self.other or self.replay.writer()
        for ticket in tickets:
            assert writer.add(**rows(ticket, self.spec)) == ticket
        if writer is not self.other:
            writer.close()

    def look(self) -> None:
        """All that can be drawn is drawn, and every row is what was written."""
        committed, reserved = self.mapped.counters().tolist()
        held = range(max(0, reserved - CAPACITY), committed)
        last = {*self.seams, *self.boundaries, committed - 1}
        wanted = set(held) - (set() if self.spec.next_obs else last)
        assert len(self.replay) == len(set(held) - self.boundaries), "torn or wrong: the count of rows"
        drawn: set[int] = set()
        for _ in range(40):
            if drawn == wanted:
                break
            batch = self.sampler.sample()
            drawn.update(batch.index.tolist())
            check_rows(batch, self.spec)
        assert drawn == wanted

    def close(self) -> None:
        self.replay.close()
        del self.replay, self.mapped, self.sampler, self.other


class AddFrame(Add):
    spec = FRAMES


class AddBoundary(AddFrame):
    """The last row of an episode, with the observation behind it."""

    written, final = 2, (BEFORE + 1,)

    def add(self, ticket: int) -> int:
        row = rows(ticket, self.spec)
        return self.writer.add(**row, truncated=True, final_obs=observations(ticket + 1, self.spec))


class AddBatch(AddFrame):
    """Rows on both sides of the lane's end."""

    written = 7

    def add(self, ticket: int) -> int:
        return self.writer.add_batch(**rows(range(ticket, ticket + self.written), self.spec))


class AddVector(Add):
    """A writer of three lanes adds a row to each; that of the second lane is an episode's last."""

    spec, lanes = FRAMES, 3

    def __init__(self, folder: Path) -> None:
        self.watch(ReplayBuffer.create(self.spec, self.lanes * CAPACITY, self.lanes, name="crash"))
        with self.replay.vector_writer() as writer:
            for ticket in range(BEFORE):
                self.vector_add(writer, [ticket] * self.lanes)
        self.look()
        Event(self.mapped.body).prepare(1)

    def vector_add(self, writer: Any, tickets: list[int], last: int | None = None) -> None:
        """Adds the next row of each lane; `last` is the lane whose episode ends."""
        index = np.array(tickets) * self.lanes + np.arange(self.lanes)
        ended = {"truncated": np.arange(self.lanes) == last, "final_obs": observations(index + self.lanes, self.spec)}
        assert writer.add(**rows(index, self.spec), **({} if last is None else ended)).tolist() == tickets

    def prepare(self) -> str:
        self.own = ReplayBuffer.attach(self.replay.handle)
        self.writer = self.own.vector_writer()
        return ""

    def act(self) -> None:
        self.vector_add(self.writer, [BEFORE] * self.lanes, last=1)

    def check(self, done: bool) -> None:
        """The lanes before one have their whole rows, those behind it none."""
        committed = [self.mapped.committed(lane) - BEFORE for lane in range(self.lanes)]
        assert committed in ([[1, 2, 1]] if done else [[0, 0, 0], [1, 0, 0], [1, 2, 0], [1, 2, 1]])
        self.look()
        with self.replay.vector_writer() as writer:
            for more in range(4):
                self.vector_add(writer, [BEFORE + rows + more for rows in committed])
                self.look()
        written = sum(self.mapped.lanes.written(lane) for lane in range(self.lanes))
        assert written == self.lanes * (BEFORE + 4) + sum(committed) - (committed[1] == 2)

    def look(self) -> None:
        for _ in range(4):
            check_rows(self.sampler.sample(), self.spec, self.lanes)


class AddShared(Add):
    spec, shared = SHARED, True


class AddLimited(Add):
    limiter = RateLimiter(samples_per_insert=1, min_size=1, tolerance=1e9)


class Claim(Add):
    written, writes = 0, False

    def act(self) -> None:
        self.writer = self.own.writer()

    def release(self) -> None:
        try:
            self.own.writer()
        except LaneBusy:
            return super().release()
        raise AssertionError("a lane has two writers")


class Attach(Add):
    written, attaches, writes = 0, False, False

    def act(self) -> None:
        self.own = ReplayBuffer.attach(self.replay.handle)


class Close(Add):
    """The creator of a segment closes it, and a writer with it; others are attached."""

    written = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> str:
        super().__init__(self.folder)
        self.writer = self.replay.writer()
        return str(self.replay.handle.path)

    def act(self) -> None:
        self.replay.close()

    def release(self) -> None:
        self.replay.unlink()
        super().close()
        self.writer = None

    def meet(self, path: str) -> None:
        self.watch(ReplayBuffer.attach(path))


class Create(Add):
    """A process sweeps and makes a segment: it is there whole, or not at all."""

    def __init__(self, folder: Path) -> None:
        self.target = folder / "file"

    def prepare(self) -> str:
        survey.sweep_once.cache_clear()
        return ""

    def act(self) -> None:
        self.own = ReplayBuffer.create(self.spec, CAPACITY, name="crash")

    def release(self) -> None:
        assert [file.held for file in survey.survey_segments(survey.SHM_DIR)] == [True]
        super().release()
        assert not names(), "an error left a segment behind"

    def made(self) -> list[Path]:
        return [survey.SHM_DIR / name for name in names()]

    def check(self, done: bool) -> None:
        for path in self.made():
            self.watch(ReplayBuffer.attach(path), seams=())
            assert len(self.replay) == 0
            self.write([0, 1])
            if path == self.target:
                self.replay.unlink()  # no sweep looks there
            super().close()
        assert not self.target.exists()

    def close(self) -> None:
        """All is closed."""


class CreateFile(Create):
    """A process makes a segment in an ordinary file, which stays when the process ends."""

    def act(self) -> None:
        self.own = ReplayBuffer.create(self.spec, CAPACITY, path=self.target)

    def release(self) -> None:
        self.own.unlink()
        Add.release(self)

    def made(self) -> list[Path]:
        return [self.target] if self.target.exists() else []


class Sweep(Add):
    """A process removes what a dead one left, beside what a living one has."""

    written, attaches, writes = 0, False, False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        reap(fork(self.leave_an_orphan))
        assert len(names()) == 2

    def leave_an_orphan(self) -> None:
        orphan = ReplayBuffer.create(self.spec, CAPACITY, name="orphan")
        os._exit(len(orphan))  # while it is held

    def act(self) -> None:
        survey.sweep()

    def release(self) -> None:
        survey.sweep()  # what could not be opened was left to the next one
        assert len(names()) == 1

    def check(self, done: bool) -> None:
        assert len(names()) in ((1,) if done else (1, 2))
        for name in {*names(), Path(self.replay.handle.path).name}:
            ReplayBuffer.attach(survey.SHM_DIR / name).close()
        super().check(done)


class Save(Add):
    """A process saves a replay in place of an earlier save."""

    written, writes, spec = 0, False, FRAMES

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.target = folder / "saves" / "save"
        self.target.parent.mkdir(exist_ok=True)
        self.replay.save(self.target)
        self.write([BEFORE])

    def act(self) -> None:
        self.own.save(self.target)

    def check(self, done: bool) -> None:
        self.find((BEFORE + 1,) if done else (BEFORE, BEFORE + 1))
        self.look()
        self.replay.save(self.target)
        self.find((BEFORE + 1,))
        assert os.listdir(self.target.parent) == ["save"]

    def find(self, committed: tuple[int, ...]) -> None:
        """The save is whole, and of one of these moments."""
        live = self.replay
        with ReplayBuffer.load(self.target) as saved:
            self.watch(saved)
            assert self.mapped.committed() in committed
            self.look()
            del self.sampler
        self.watch(live)


class Draw(Add):
    """A sampler of a limited replay says that it starves, and another draws; then writers are held back as before."""

    limiter, written, writes = RateLimiter(samples_per_insert=1, min_size=1, tolerance=1000), 0, False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.write([BEFORE])  # behind a seam: eight rows in a row are held no more
        self.sampled = self.mapped.sampled

    def prepare(self) -> str:
        super().prepare()
        self.hungry = self.own.sampler(8, min_size=1, n_step=CAPACITY - 1)
        self.fed = self.own.sampler(8, min_size=1, seed=1)
        return ""

    def act(self) -> None:
        assert not self.hungry.can_sample()
        self.fed.sample()

    def release(self) -> None:
        del self.hungry, self.fed
        super().release()

    def check(self, done: bool) -> None:
        assert self.mapped.sampled - self.sampled in ((8,) if done else (0, 8))
        inserted = BEFORE + 1
        with self.replay.writer(timeout=0.0) as writer:
            while not self.limiter.samples_missing(inserted, self.mapped.sampled, 1):
                writer.add(**rows(inserted, self.spec))
                inserted += 1
            try:
                writer.add(**rows(inserted, self.spec))
            except TimeoutError:
                return
        raise AssertionError("a dead sampler starves on")


class Publish:
    """A learner publishes weights, all of which are the version's number."""

    def __init__(self, folder: Path) -> None:
        self.store = ParameterStore.create(tree(), extras={"version": ()}, name="crash")
        self.local = tree()
        self.subscriber = self.store.subscriber(self.local)
        for _ in range(3):
            self.publish_next()
        assert self.pulled() == 3
        Event(Mapped(self.store).body).prepare(1)

    def publish_next(self) -> None:
        weights = tree()
        with self.store.publisher(weights) as publisher:
            fill(weights, publisher.version + 1)
            publisher.publish(version=publisher.version + 1)

    def prepare(self) -> str:
        self.own = ParameterStore.attach(self.store.handle)
        self.publisher = self.own.publisher(fill(tree(), 4))
        return ""

    def act(self) -> None:
        self.publisher.publish(version=4)

    def release(self) -> None:
        self.publisher.close()
        self.own.close()
        self.own = self.publisher = None

    def pulled(self) -> int:
        """The version of the weights after a pull, all of them."""
        self.subscriber.pull()
        version = self.subscriber.version
        assert value_of(words(self.local)) == version == self.subscriber.extras["version"], "torn weights"
        return version

    def check(self, done: bool) -> None:
        version = self.pulled()
        assert version in ((4,) if done else (3, 4))
        self.publish_next()
        assert self.pulled() == version + 1

    def close(self) -> None:
        self.store.close()
        del self.store, self.subscriber


class Ingesting:
    """An ingest takes rows behind a gap in one lane, and some that it has already in another."""

    def __init__(self, folder: Path) -> None:
        self.node, self.home = (ReplayBuffer.create(SMALL, rows, 2, name="crash") for rows in (32, 200))
        self.bookings, self.messages = Bookings.create(2, name="crash"), []
        self.send(BEFORE, BEFORE)
        self.send(0, 2)  # in a message that the victim and its successor take again
        self.repeated = self.messages[-1]
        self.add(20, 3)

    def add(self, *counts: int) -> None:
        for lane, count in enumerate(counts):
            with self.node.writer(lane) as writer:
                for _ in range(count):
                    ticket = self.node._mapped.native.committed(lane)
                    final = {"truncated": True, "final_obs": observations(ticket, SMALL)} if ticket % 5 == 4 else {}
                    writer.add(**rows(ticket, SMALL), **final)

    def send(self, *counts: int) -> None:
        self.add(*counts)
        with Ingest(self.home, self.bookings, [range(2)]) as ingest:
            link = DirectLink(ingest)
            link.send = lambda message: self.messages.append(message.copy()) or DirectLink.send(link, message)
            with Relay(self.node, link) as relay:
                assert relay.drain(60.0)

    def prepare(self) -> str:
        home, node = (ReplayBuffer.attach(each.handle) for each in (self.home, self.node))
        self.own = [home, node, Bookings.attach(self.bookings.handle)]
        self.ingest = Ingest(home, self.own[-1], [range(2)])
        self.relay = Relay(node, DirectLink(self.ingest))
        return ""

    def act(self) -> None:
        assert self.ingest.put(self.repeated)
        assert self.relay.drain(60.0)

    def release(self) -> None:
        for each in (self.relay, self.ingest, *self.own):
            each.close()
        self.own = self.ingest = self.relay = None

    def check(self, done: bool) -> None:
        """The successor completes what is missing: each row once, the lost ones counted, with a seam behind them."""
        if done:
            self.look()
        for count in (0, 3):
            self.send(count, count)
            self.look()

    def look(self) -> None:
        lost = [self.bookings.load(lane).lost for lane in range(2)]
        sent = [self.node._mapped.native.committed(lane) for lane in range(2)]
        held = [len(raw(self.home, lane)) for lane in range(2)]
        assert [n + more for n, more in zip(held, lost, strict=True)] == sent and lost[0] and not lost[1], (held, lost)
        for lane in range(2):
            record, newest = raw(self.home, lane), raw(self.node, lane)[3:]  # a gap ends behind the oldest one held
            np.testing.assert_array_equal(record[-len(newest) :, 16:], newest[:, 16:])
            place = heads(self.home, lane)["place"]
            transitions = (place >> 24) & BOUNDARY == 0
            tickets = np.ascontiguousarray(record[transitions, 16:24]).view(np.int64)[:, 0]
            jumps = np.flatnonzero(np.diff(tickets) > 2) + 1
            ages = (place & AGE)[transitions]
            assert (ages[jumps] == 0).all() and (np.diff(tickets) > 0).all(), "torn or wrong: an order"

    def close(self) -> None:
        for each in (self.node, self.home, self.bookings):
            each.close()
        del self.node, self.home, self.bookings


SCENARIOS = {
    "create": Create, "attach": Attach, "claim": Claim, "add": Add, "add_frame": AddFrame,
    "add_boundary": AddBoundary, "add_batch": AddBatch, "add_vector": AddVector, "add_shared": AddShared,
    "add_limited": AddLimited, "draw": Draw, "publish": Publish, "save": Save, "close": Close, "sweep": Sweep,
    "create_file": CreateFile, "ingesting": Ingesting,
}  # fmt: skip


def named_at_once() -> None:
    """A file has its name before it is whole."""

    def open_named(target: Path, nbytes: int, name: Path | None = None) -> File:
        file = File(target)
        file.open(name or target, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        os.posix_fallocate(file.fd, 0, nbytes)
        return file

    replace("memory", open_nameless=open_named, give_name=lambda file, target: None)


def removed_before_it_is_replaced() -> None:
    """The earlier save makes room for the new one."""
    from marlcore.replay import save

    def remove_and_replace(target: Path, *what: Any) -> None:
        target.unlink(missing_ok=True)
        replace_file(target, *what)

    save.replace_file = remove_and_replace


def keeps_descriptors() -> None:
    """What is read of a file leaves it open."""
    read = Header.read
    Header.read = lambda fd, path: read(os.dup(fd), path)


SABOTAGE = {rule.__name__: rule for rule in (named_at_once, removed_before_it_is_replaced, keeps_descriptors)}


KINDS = {-1: "store", -2: "copy", **call_names()}
passed = shared_numbers(1, 2)[0]  # points, and what the last one was


def run_victim(scenario: Any, at: int, error: int) -> tuple[int, str]:
    """How a victim of point `at` exited, and what it said; the survivor has met it before."""
    ours, theirs = socket.socketpair()

    def victim() -> int:
        ours.close()
        return be_victim(scenario, at, error, theirs)

    with ours:
        pid = fork(victim)
        theirs.close()
        if path := ours.recv(4096).decode().strip():
            scenario.meet(path)
        ours.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: ours.recv(4096), b"")).decode()
    return reap(pid), said


def be_victim(scenario: Any, at: int, error: int, survivor: socket.socket) -> int:
    before, listed = descriptors(), names()
    survivor.send((scenario.prepare() + "\n").encode())
    survivor.recv(1)
    passed[:] = 0
    armed = points.mc_points_arm(at, error, passed.ctypes.data)
    assert armed == 0, os.strerror(-armed)
    came = "nothing"
    try:
        scenario.act()
    except (MarlcoreError, OSError) as raised:
        assert error and "\n" not in str(raised), raised
        came = type(raised).__name__
    points.mc_points_disarm()
    if not error or passed[0] <= at:
        return UNHARMED
    survivor.send(came.encode())
    if came != "nothing":
        gc.collect()
        scenario.act()
    scenario.release()
    gc.collect()
    assert descriptors() == before, f"descriptors: {before} before, now {descriptors()}"
    assert set(names()) <= set(listed), "an error left a segment behind"
    return ENDED


def attack_each_point(make: Any, folder: Path, kill: bool) -> Counter[str]:
    """Kills: the points of each kind. Failures: how often each error of each system call led to which exception."""
    counts: Counter[str] = Counter()
    for at in itertools.count():
        errors = [""] if kill else ["EIO"]
        for error in errors:
            scenario = make(folder)
            code, came = run_victim(scenario, at, getattr(errno, error, 0))
            kind = KINDS[int(passed[1])]
            where = f"{error or 'SIGKILL'} at point {at}, {kind}"
            assert code in (-signal.SIGKILL if kill else ENDED, UNHARMED), f"{where}: the victim ended with {code}"
            finish(scenario, not kill or code == UNHARMED, where)
            if code == UNHARMED:
                return counts
            counts[kind if kill else f"{kind}:{error}:{came}"] += 1
            if error == "EIO":
                errors += ERRORS.get(kind, [])
    raise AssertionError


def finish(scenario: Any, done: bool, where: str) -> None:
    try:
        scenario.check(done)
        scenario.close()
        gc.collect()
        survey.sweep()
        assert not names(), "a segment is left"
    except Exception as error:
        raise AssertionError(f"after {where}: {error!r}") from error


def main() -> None:
    how, name, _, folder, *sabotage = sys.argv[1:]
    replace("memory", SHM_DIR=Path(folder))  # where nobody else makes segments, or sweeps
    replace("memory", sweep=partial(survey.survey_segments, survey.SHM_DIR, remove=True))
    Add(survey.SHM_DIR).close()  # compiles or loads what drawing needs
    if name == "draw":
        first = Draw(survey.SHM_DIR)
        first.prepare()
        first.act()
        first.own.close()
        first.close()
    gc.collect()
    gc.freeze()  # which need not be looked through again and again
    for broken in sabotage:
        SABOTAGE[broken]()
    report(attack_each_point(SCENARIOS[name], Path(folder), how == "kill"))


if __name__ == "__main__":
    main()
