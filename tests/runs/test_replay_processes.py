"""Writers flat out in processes of their own, killed and replaced, lap samplers of every kind: each row is checked.

Every frame is named by its ticket, its episode with the lane and the writer that it is of, and its place in the
episode; a row's other fields follow from these. How an episode goes follows from its number. So the batch alone shows
whether a row is torn, or reaches across an episode's boundary, a seam or the write head; only where a writer was killed
must be known besides. The suite samples a few hundred thousand rows;

    python tests/long.py replay_processes 10000000

samples at least as many as it says, and ends with what was found in them.
"""

import os
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import victims
from filled import filled, torn
from mapped import Mapped
from processes import stop_inside, until
from seams import trusting

from marlcore import Field, Prioritized, ReplayBuffer, Sequence, TransitionSpec

LANES, ROWS, EVERY, GAMMA = 2, 96, 4, 0.5  # returns of whole rewards are exact
FAULTS = ("torn", "boundary", "seam", "head", "wrong")  # frames or rows
OPTIONS = {"alpha": 0.6, "beta": 0.4, "epsilon": 0.01, "initial": "priority"}
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "stack": {"stack": 4},
    "n_step": {"n_step": 5},
    "stack, n_step": {"stack": 3, "n_step": 3, "pad": "zero"},
    "prioritized": {"prioritized": Prioritized(**OPTIONS)},
    "all but sequences": {"stack": 4, "n_step": 3, "prioritized": Prioritized(**OPTIONS)},
    "sequence": {"sequence": Sequence(8, 2, 4)},
    "sequence, stack, n_step": {"sequence": Sequence(6, 1, 4), "stack": 2, "n_step": 2, "pad": "zero"},
    "different": {"replace": False, "stack": 2},
    "whole episodes": {"sequence": Sequence(24, whole=True), "min_size": 1},
    "all": {"sequence": Sequence(8, 4, 4), "stack": 4, "n_step": 3, "prioritized": Prioritized(**OPTIONS)},
}


def rewards(ticket):
    return (ticket * 40_503 >> 4) % 16 - 5


def returns(ticket, ahead, n):
    """The return of `ahead` rewards from the ticket's on, at most n."""
    steps = np.arange(n)
    return (rewards(ticket[..., None] + steps) * GAMMA**steps * (steps < ahead[..., None])).sum(-1)


def priorities(ticket):
    return (1 + ticket * 2_654_435 % 61) / 8


def lengths(episode):
    return 1 + (episode & 0xFFFFFFFF) * 7 % 23


def endings(episode):
    """0 terminated, 1 terminated with a final_obs, 2 truncated, 3 nothing: the next row begins another one."""
    ending = (episode & 0xFFFFFFFF) % 4
    batched = (episode >> 48) % 2 == 1  # a batch has no final_obs for a terminated row
    return ending - (batched & (ending == 1))


def write_episode(writer, ticket, episode, words):
    """Writes row by row in even lanes and in one batch in odd lanes; returns the number of rows."""
    length, ending = int(lengths(episode)), int(endings(episode))
    places = np.arange(length + 1)
    tickets = ticket + places
    obs = filled(words, tickets, episode, places)
    state, priority = obs[:, ::-1].copy(), priorities(tickets).astype(np.float32)
    reward, last = rewards(tickets).astype(np.float32), places == length - 1
    if writer.lane % 2:
        rows = slice(length)
        writer.add_batch(
            obs[rows], tickets[rows], reward[rows], last[rows] & (ending == 0), last[rows] & (ending == 2),
            obs[length:] if ending == 2 else None, episode=np.full(length, episode), priority=priority[rows],
            state=state[rows],
        )  # fmt: skip
    else:
        for i in range(length):
            final = obs[length] if i == length - 1 and ending in (1, 2) else None
            writer.add(
                obs[i], tickets[i], reward[i], last[i] and ending < 2, last[i] and ending == 2, final,
                episode=episode, priority=priority[i], state=state[i],
            )  # fmt: skip
    if ending == 3:
        writer.new_episode()
    return length + (ending in (1, 2))


def write(handle: Any, lane: int, number: int, words: int) -> None:
    """What a writer's process does, for as long as its parent lives."""
    parent = os.getppid()
    with ReplayBuffer.attach(handle) as replay, replay.writer(lane) as writer:
        writer.policy_version = number
        ticket, episode = Mapped(replay).committed(lane), lane << 48 | number << 32
        while os.getppid() == parent:
            ticket += write_episode(writer, ticket, episode, words)
            episode += 1


@dataclass
class Written:
    """The end of each writer's tickets in each lane; for a living writer, a number beyond reach."""

    ends: np.ndarray  # int64 [lanes, writers]

    def length(self, ticket: np.ndarray, lane: np.ndarray, episode: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Rows of the episode that were or will be written, final_obs not counted."""
        writer = np.minimum(episode >> 32 & 0xFFFF, self.ends.shape[1] - 1)
        return np.minimum(lengths(episode), self.ends[lane, writer] - (ticket - place))


class Check:
    """Compares the batches of one kind of sampler, and counts what is wrong with them."""

    def __init__(self, options: dict[str, Any], written: Written) -> None:
        self.stack, self.n_step = options.get("stack", 1), options.get("n_step", 1)
        self.repeat = options.get("pad", "repeat") == "repeat"
        self.sequence, self.different = options.get("sequence"), not options.get("replace", True)
        self.written = written
        self.found: Counter[str] = Counter()
        self.rows = 0

    def batch(self, batch: Any) -> None:
        ticket, lane = (part[:, None] for part in np.divmod(batch.index, LANES))
        if self.different:
            self.found["wrong"] += len(batch) - len({*batch.index.tolist()})
        obs, next_obs = self.places(batch.obs, True), self.places(batch.next_obs, True)
        episode, place = (obs[:, 0, -1, word].astype(np.int64)[:, None] for word in (1, 2))
        length = self.written.length(ticket, lane, episode, place)
        ending, n = endings(episode), self.n_step
        open_end = (ending == 3) | (length < lengths(episode))  # nothing says how it would have gone on
        step = np.arange(obs.shape[1])
        steps = np.clip(length - place - n * open_end, 0, len(step))
        real = step < steps
        self.rows += int(real.sum())
        self.found["seam"] += int((steps == 0).sum())

        ahead = np.where(open_end, n, np.minimum(n, length - place - step))  # rows of the n-step return
        last = real & ~open_end & (place + step + n >= length)
        terminated, truncated = last & (ending < 2), last & (ending == 2)
        back = np.arange(self.stack)[::-1]
        values = [
            (batch.reward, returns(ticket + step, ahead, n)),
            (batch.discount, ~terminated * GAMMA ** np.maximum(ahead, 0)),
            (batch.terminated, terminated),
            (batch.truncated, truncated),
            (batch.valid, (place + step)[..., None] >= back),
        ]
        self.values("wrong", real, [(self.places(got), expected) for got, expected in values])
        fields = [
            (batch.action, ticket + step),
            (batch.extras["episode"], episode),
            (batch.extras["priority"], priorities(ticket + step)),
            (batch.policy_version, episode >> 32 & 0xFFFF),
        ]
        self.values("torn", real, [(self.places(got), expected) for got, expected in fields])
        self.found["torn"] += int((episode >> 48 != lane).sum())
        if self.sequence:
            self.sequences(batch, ticket, episode, place, real)
        self.frames(obs, ticket, episode, place, step[:, None] - back, real[..., None])
        known = real & ~(terminated & (ending == 0))  # behind a terminated row nothing need be
        self.frames(next_obs, ticket, episode, place, (step + ahead)[..., None] - back, known[..., None])

    def places(self, array: np.ndarray, stacked: bool = False) -> np.ndarray:
        """With the axes [batch, place of the sequence] and, of frames, [stack]."""
        array = array if self.sequence else array[:, None]
        return array[:, :, None] if stacked and self.stack == 1 else array

    def sequences(self, batch: Any, ticket, episode, place, real: np.ndarray) -> None:
        """Counts wrong masks and first steps, and torn states at a sequence's first step."""
        learned = np.arange(real.shape[1]) >= np.where(place > 0, self.sequence.burn_in, 0)
        self.found["wrong"] += int((batch.mask != (real & learned)).any(1).sum())
        self.found["wrong"] += int((place % (self.sequence.period or 2**20) != 0).sum())
        state = filled(batch.obs.shape[-1], ticket[:, 0], episode[:, 0], place[:, 0])[:, ::-1] * (place > 0)
        self.found["torn"] += int((batch.extras["state"] != state).any(1).sum())

    def values(self, fault: str, real: np.ndarray, pairs: list[tuple[np.ndarray, Any]]) -> None:
        """Counts rows where a value is not as expected, or behind the end not zero."""
        for got, expected in pairs:
            wrong = got != expected * (real if got.ndim == 2 else real[..., None])
            self.found[fault] += int(wrong.any(tuple(range(1, got.ndim))).sum()) if wrong.any() else 0

    def frames(self, got, ticket, episode, place, ahead, meant) -> None:
        """Checks frames [batch, step, stack] that are meant, `ahead` rows after the sequence's first."""
        ticket, episode, place = (part[..., None] for part in (ticket, episode, place))
        there = np.maximum(ahead, -place)  # before an episode's first row is padding
        expected = filled(got.shape[-1], ticket + there, episode, place + there)
        if not self.repeat:
            expected[place + ahead < 0] = 0
        wrong = meant & (got != expected).any(-1)
        if wrong.any():
            ticket, episode = (np.broadcast_to(part, wrong.shape)[wrong] for part in (ticket + ahead, episode))
            self.classify(got[wrong], ticket, episode)

    def classify(self, got: np.ndarray, ticket: np.ndarray, episode: np.ndarray) -> None:
        """Counts what wrong frames are in place of this ticket, in this episode."""
        found_ticket, found_episode = got[:, :2].astype(np.int64).T
        unlike = torn(got, 3)
        laps = found_ticket - ticket
        head = ~unlike & (laps != 0) & (laps % ROWS == 0)
        other = ~unlike & ~head & (found_episode != episode)
        replaced = found_episode >> 32 != episode >> 32
        seam = other & (replaced | (endings(np.minimum(found_episode, episode)) == 3))
        boundary = other & ~seam
        kinds = {"torn": unlike, "head": head, "seam": seam, "boundary": boundary, "wrong": ~unlike & ~head & ~other}
        self.found.update({name: int(rows.sum()) for name, rows in kinds.items()})


class Masses:
    """The priorities that determine a sampler's weights: the actors', until the sampler updates them."""

    def __init__(self) -> None:
        self.ticket, self.priority = np.full(LANES * ROWS, -1), np.zeros(LANES * ROWS)

    def wrong_weights(self, batch: Any) -> int:
        ticket, leaf = self.leaves(batch.index)
        priority = np.where(self.ticket[leaf] == ticket, self.priority[leaf], priorities(ticket))
        mass = (priority + OPTIONS["epsilon"]) ** OPTIONS["alpha"]
        return int((~np.isclose(batch.weight, (mass.min() / mass) ** OPTIONS["beta"], rtol=1e-5)).sum())

    def update(self, index: np.ndarray, priority: np.ndarray) -> None:
        ticket, leaf = self.leaves(index)
        order = np.argsort(ticket, kind="stable")  # a row, and later the one in its place, may be in one batch
        self.ticket[leaf[order]], self.priority[leaf[order]] = ticket[order], priority[order]

    def leaves(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return index // LANES, index % LANES * ROWS + index // LANES % ROWS


class Writers:
    """One process for each lane, which is killed and replaced now and then."""

    def __init__(self, replay: ReplayBuffer, words: int, deaths: int) -> None:
        self.replay, self.words = replay, words
        self.written = Written(np.full((LANES, deaths + 2), 2**60))
        self.born = [0] * LANES
        self.kills = self.inside = 0
        self.lives = [self.succeed(lane) for lane in range(LANES)]

    def succeed(self, lane: int) -> tuple[int, int]:
        began = Mapped(self.replay).committed(lane)
        pid = victims.fork(write, self.replay.handle, lane, self.born[lane], self.words)
        self.born[lane] += 1
        return pid, began

    def kill(self, lane: int, inside: bool = False) -> None:
        pid, began = self.lives[lane]
        counters = Mapped(self.replay).counters(lane)
        until(lambda: counters[0] > began)
        if inside:
            stop_inside(pid, lambda: counters[None])
        victims.kill(pid)
        committed, reserved = counters
        self.written.ends[lane, self.born[lane] - 1] = committed
        self.kills += 1
        self.inside += int(reserved > committed)

    def replace(self, lane: int) -> None:
        self.kill(lane, inside=True)
        self.lives[lane] = self.succeed(lane)


class Samplers:
    """One of each kind, all of one replay, and the checks of their batches."""

    def __init__(self, replay: ReplayBuffer, kinds: list[str], batch_size: int, written: Written) -> None:
        self.samplers = [replay.sampler(batch_size, gamma=GAMMA, seed=0, **KINDS[kind]) for kind in kinds]
        self.checks = [Check(KINDS[kind], written) for kind in kinds]
        self.replay, self.reading, self.reads = replay, Check({}, written), 0
        self.masses = [Masses() if sampler.prioritized else None for sampler in self.samplers]
        self.rng = np.random.default_rng(0)

    def sample(self) -> None:
        for sampler, check, masses in zip(self.samplers, self.checks, self.masses, strict=True):
            batch = sampler.sample(timeout=600)
            check.batch(batch)
            if masses:
                check.found["wrong"] += masses.wrong_weights(batch)
                priority = self.rng.random(len(batch))
                sampler.update_priorities(batch.index, priority)
                masses.update(batch.index, priority)

    def read(self) -> None:
        """Reads all that is held, in batches and in episodes, in the order of writing; and then its rows again."""
        for verb in (partial(self.replay.batches, 64), self.replay.episodes):
            for batch in verb(gamma=GAMMA):
                again = self.replay.read(batch.index, gamma=GAMMA, missing="skip")
                for read in (batch, again):
                    self.reading.batch(read)
                    lanes = [read.index[read.index % LANES == lane] for lane in range(LANES)]
                    self.reading.found["wrong"] += sum(int((np.diff(tickets) <= 0).sum()) for tickets in lanes)
                self.reads += 1

    @property
    def rows(self) -> int:
        return sum(check.rows for check in self.checks)

    @property
    def lapped(self) -> int:
        return sum(sampler.stats.lapped for sampler in self.samplers)

    @property
    def found(self) -> Counter[str]:
        return sum((check.found for check in (*self.checks, self.reading)), Counter())


@dataclass
class Outcome:
    rows: int
    found: Counter[str]
    laps: int
    lapped: int
    kills: int
    inside: int

    def __str__(self) -> str:
        faults = ", ".join(f"{self.found[name]} {name}" for name in FAULTS)
        lives = f"{self.kills} writers killed, {self.inside} of them inside an add"
        return f"{self.rows} rows, {faults}; {self.laps} laps, {self.lapped} draws lapped, {lives}"


def sample_live(kinds, words, batch_size, rows, deaths=0, until=None) -> Outcome:
    """At least so many rows, and one that was lapped, while so many writers are replaced; or, all of it believed, until
    there is a fault.
    """
    extras = {"episode": Field((), "int64"), "priority": Field(), "state": Field((words,), "uint64", every=EVERY)}
    spec = TransitionSpec(Field((words,), "uint64"), Field((), "int64"), extras)
    with ReplayBuffer.create(spec, LANES * ROWS, LANES) as replay:
        writers = Writers(replay, words, deaths)
        with trusting() if until else nullcontext():
            samplers = Samplers(replay, kinds, batch_size, writers.written)
        while (samplers.rows < rows or not samplers.lapped) and not samplers.found[until]:
            samplers.sample()
            if not until:
                samplers.read()
            if writers.kills < deaths and samplers.rows * (deaths + 1) > rows * (writers.kills + 1):
                writers.replace(writers.kills % LANES)
        for lane in range(LANES):
            writers.kill(lane)
        for _ in range(10):  # what they left, perhaps inside an add, is whole too
            samplers.sample()
        samplers.read()
        assert samplers.reads > 10
        laps = sum(map(Mapped(replay).committed, range(LANES))) // ROWS
        return Outcome(samplers.rows, samplers.found, laps, samplers.lapped, writers.kills, writers.inside)


@pytest.mark.parametrize(
    ("words", "rows"),
    [pytest.param(12, 100_000, id="in the record", marks=pytest.mark.long), pytest.param(48, 20_000, id="in columns")],
)
def test_no_row_is_torn_or_reaches_across_an_edge(words, rows):
    outcome = sample_live(list(KINDS), words, batch_size=64, rows=rows, deaths=2)
    assert not +outcome.found, str(outcome)
    assert outcome.rows >= rows
    assert outcome.inside >= 2
    assert outcome.laps > 0
    assert outcome.lapped > 0


@pytest.mark.long
@pytest.mark.parametrize("fault", ["torn", "head"])
def test_without_validation_torn_and_lapped_rows_are_seen(fault):
    """The control: the same check, with the validator made to accept everything."""
    outcome = sample_live(["stack"], 512, batch_size=64, rows=2_000_000, until=fault)
    assert outcome.found[fault] > 0


def main(rows: int) -> bool:
    total = Counter()
    for words in (12, 48):
        outcome = sample_live(list(KINDS), words, batch_size=128, rows=rows // 2, deaths=20)  # of 192 rows
        print(f"{words} words a frame: {outcome}", flush=True)
        total += outcome.found
    print(f"{total.total()} faults")
    return total.total() > 0
