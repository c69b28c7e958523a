"""Scenarios of a replay: operations that victims begin, and what others find if one did not end.

In the victim, a scenario prepares, acts, and releases what it has. A survivor, attached all along, checks what came of
it; a successor writes on.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
from filled import last_of, rows, torn_rows
from mapped import Mapped
from victims import fork, names, reap

from marlcore import Field, LaneBusy, RateLimiter, ReplayBuffer, TransitionSpec
from marlcore.memory import Event, survey

CAPACITY, BEFORE = 8, 11  # rows of a lane, and those written to it before the victim comes
SMALL = TransitionSpec(Field((5,), "uint64"), Field((), "int64"))
FRAMES = TransitionSpec(Field((40,), "uint64"), Field((), "int64"))  # a column of its own
SHARED = TransitionSpec(Field((40,), "uint64"), Field((), "int64"), next_obs=True)


class Add:
    """A writer adds to a lane that has gone round, with somebody asleep who waits for rows."""

    spec, shared, limiter, lanes = SMALL, False, None, 1
    attaches, writes = True, True  # before the first point
    written = 1  # rows by the victim
    final: tuple[int, ...] = ()  # those of them that are boundary rows

    def __init__(self, folder: Path) -> None:
        capacity = self.lanes * CAPACITY
        self.watch(ReplayBuffer.create(self.spec, capacity, self.lanes, name="crash", limiter=self.limiter))
        self.write(range(BEFORE))
        self.look()
        Event(self.mapped.body).prepare(1)

    # the victim

    def prepare(self) -> str:
        """What is done before the first point; the path of a segment that the survivor shall attach to, if any."""
        if self.attaches:
            self.own = ReplayBuffer.attach(self.replay.handle)
        if self.writes:
            self.writer = self.open_writer()
            self.ticket = self.mapped.committed()
        return ""

    def open_writer(self) -> Any:
        return self.own.writer(shared=self.shared)

    def act(self) -> None:
        assert self.add(self.ticket) == self.ticket

    def add(self, ticket: int) -> int:
        return self.writer.add(**rows(self.spec, ticket))

    def release(self) -> None:
        self.own.close()
        self.own = self.writer = None

    # the survivor

    def watch(self, replay: ReplayBuffer, seams: tuple[int, ...] = (BEFORE - 1,)) -> None:
        """Makes this replay the one that is checked; no row follows the row before a seam."""
        self.replay, self.mapped = replay, Mapped(replay)
        self.other = replay.writer(shared=True) if self.shared else None
        self.seams, self.boundaries = set(seams), set()
        self.sampler = replay.sampler(64, min_size=1, seed=0)

    def meet(self, path: str) -> None:
        """Attaches to what the victim made."""

    def check(self, done: bool) -> None:
        """Checks the state that a survivor and a successor find; `done`: the operation must have ended."""
        committed = self.mapped.committed()
        assert committed - BEFORE in ((self.written,) if done else (0, self.written))
        self.boundaries = {ticket for ticket in self.final if ticket < committed}
        self.look()
        for tickets in ([committed], range(committed + 1, committed + 5)):
            self.write(tickets)
            self.look()

    def write(self, tickets: Any) -> None:
        """A successor adds these rows; to a shared lane, a writer that was there all along."""
        self.seams.add(self.mapped.committed() - 1)
        writer = self.other or self.replay.writer()
        for ticket in tickets:
            assert writer.add(**rows(self.spec, ticket)) == ticket
        if writer is not self.other:
            writer.close()

    def look(self) -> None:
        """Every row that may be drawn is drawn, and holds what was written."""
        committed, reserved = self.mapped.counters().tolist()
        held = range(max(0, reserved - CAPACITY), committed)
        last = {*self.seams, *self.boundaries, committed - 1}
        wanted = set(held) - (set() if self.spec.next_obs else last)
        assert len(self.replay) == len(set(held) - self.boundaries), "torn or wrong: the count of rows"
        written = self.mapped.lanes.written(0)
        assert written == committed - len(self.boundaries), "torn or wrong: the count of what was written"
        drawn: set[int] = set()
        for _ in range(40):
            if drawn != wanted:
                drawn.update(self.draw())
        assert drawn == wanted

    def draw(self) -> list[int]:
        batch = self.sampler.sample()
        assert not torn_rows(self.spec, batch, self.lanes), f"torn or wrong: rows of {batch.index.tolist()}"
        return batch.index.tolist()

    def close(self) -> None:
        self.replay.close()
        del self.replay, self.mapped, self.sampler, self.other


class AddFrame(Add):
    spec = FRAMES


class AddBoundary(AddFrame):
    """The last row of an episode, with the observation behind it."""

    written, final = 2, (BEFORE + 1,)

    def add(self, ticket: int) -> int:
        return self.writer.add(**rows(self.spec, ticket), **last_of(self.spec, ticket))


class AddBatch(AddFrame):
    """Rows on both sides of the lane's end."""

    written = 7

    def add(self, ticket: int) -> int:
        return self.writer.add_batch(**rows(self.spec, range(ticket, ticket + self.written)))


class AddWhole(AddBatch):
    """As many rows as the lane has: the last one overwrites the newest before it."""

    written = CAPACITY


class AddVector(Add):
    """A writer of three lanes adds a row to each; that of the second lane is an episode's last."""

    spec, lanes = FRAMES, 3

    def open_writer(self) -> Any:
        return self.own.vector_writer()

    def act(self) -> None:
        self.add_to_each(self.writer, last=1)

    def add_to_each(self, writer: Any, last: int | None = None) -> None:
        """Adds the next row of each lane; `last` is the lane whose episode ends."""
        tickets = self.committed
        index = np.array(tickets) * self.lanes + np.arange(self.lanes)
        ended = last_of(self.spec, index, self.lanes) | {"truncated": np.arange(self.lanes) == last}
        added = writer.add(**rows(self.spec, index, self.lanes), **({} if last is None else ended))
        assert added.tolist() == tickets

    @property
    def committed(self) -> list[int]:
        return [self.mapped.committed(lane) for lane in range(self.lanes)]

    def check(self, done: bool) -> None:
        """Lanes are written in order: all before some lane have the whole rows, the rest have none."""
        added = [count - BEFORE for count in self.committed]
        assert added in ([[1, 2, 1]] if done else [[0, 0, 0], [1, 0, 0], [1, 2, 0], [1, 2, 1]])
        self.look()
        for _ in range(4):
            self.write([0])
            self.look()
        written = sum(self.mapped.lanes.written(lane) for lane in range(self.lanes))
        assert written == self.lanes * (BEFORE + 4) + sum(added) - (added[1] == 2)

    def write(self, tickets: Any) -> None:
        """A successor adds as many rows to each lane."""
        with self.replay.vector_writer() as writer:
            for _ in tickets:
                self.add_to_each(writer)

    def look(self) -> None:
        for _ in range(4):
            self.draw()


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
        """The save is whole, as of one of these moments."""
        live = self.replay
        with ReplayBuffer.load(self.target) as saved:
            self.watch(saved)
            assert self.mapped.committed() in committed
            self.look()
            del self.sampler
        self.watch(live)


class Clear(AddVector):
    """A process clears a replay of three lanes, not for the first time."""

    written, writes = 0, False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.replay.clear()
        self.write(range(5))

    def act(self) -> None:
        self.own.clear()

    def check(self, done: bool) -> None:
        """All rows are hidden from all, or none; then another clear hides all, and the next rows are drawn alone."""
        with ReplayBuffer.attach(self.replay.handle) as newcomer:
            assert len(newcomer) == len(self.replay) in ((0,) if done else (0, 15)), "hidden in part"
        self.replay.clear()
        assert len(self.replay) == 0 and not self.sampler.can_sample()
        first = self.lanes * self.committed[0]
        self.write(range(3))
        assert len(self.replay) == 9 and set(self.draw()) == {*range(first, first + 2 * self.lanes)}


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
                writer.add(**rows(self.spec, inserted))
                inserted += 1
            try:
                writer.add(**rows(self.spec, inserted))
            except TimeoutError:
                return
        raise AssertionError("a dead sampler starves on")


OF_REPLAYS = {
    "create": Create, "attach": Attach, "claim": Claim, "add": Add, "add_frame": AddFrame,
    "add_boundary": AddBoundary, "add_batch": AddBatch, "add_whole": AddWhole, "add_vector": AddVector,
    "add_shared": AddShared, "add_limited": AddLimited, "draw": Draw, "clear": Clear, "save": Save,
    "close": Close, "sweep": Sweep, "create_file": CreateFile,
}  # fmt: skip
