"""Relays and ingests for tests: raw rows of lanes, and links that lose, repeat and delay messages."""

from __future__ import annotations

import random
from concurrent.futures import Future

import numpy as np
from mapped import Mapped

from marlcore import Field, ReplayBuffer, TransitionSpec
from marlcore.cluster import Bookings, DirectLink, Ingest, Relay
from marlcore.errors import LinkLost

SMALL = TransitionSpec(Field((3,), "int64"), Field((), "int64"))
FRAMES = TransitionSpec(Field((45, 9), "uint8"), Field((), "int64"), extras={"n": Field((), "float32")})
STATES = TransitionSpec(
    Field((3,), "int64"), Field((), "int64"), extras={"state": Field((300,), "float32", every=4), "f": Field((70,))}
)
HEAD = np.dtype([("ordinal", "u4"), ("place", "u4"), ("version", "u4"), ("reward", "f4")])
AGE, BOUNDARY = 0xFFFFFF, 4


def row(spec: TransitionSpec, number: int) -> dict:
    """Returns a transition whose values all follow from its number."""
    field = spec.obs
    values = {"obs": np.full(field.shape, number % 251, field.numpy), "action": number, "reward": float(number)}
    return values | {
        name: np.full(extra.shape, number % 1000, extra.numpy)
        for name, extra in spec.extras.items()
        if extra.every == 1 or number % 2  # a state is read where it is stored alone
    }


def add_some(replay, lane: int, first: int, count: int, seed: int = 0) -> int:
    """Writes `count` rows in episodes of random lengths and ends; returns the number after the last row."""
    chance, spec = random.Random(seed + 1000 * first + lane), replay.spec
    with replay.writer(lane=lane) as writer:
        for number in range(first, first + count):
            writer.policy_version = number // 7
            values = {name: row(spec, number | 1)[name] for name in spec.extras} | row(spec, number)
            end = chance.choice([None] * 8 + ["terminated", "truncated", "both"])
            final = {"final_obs": values["obs"]} if end in ("truncated", "both") or chance.random() < 0.5 else {}
            ends = {end: True} if end in ("terminated", "truncated") else {"truncated": True} if end else {}
            writer.add(**values, **ends, **(final if end else {}))
    return first + count


def raw(lanes, lane: int) -> np.ndarray:
    """Returns the records of the rows that a lane holds, uint8 [n, record bytes], oldest first."""
    view = lanes._mapped
    lo, hi = np.zeros((2, lanes.lanes), np.int64)
    view.native.windows(lo, hi)()
    records = np.zeros((int(hi[lane] - lo[lane]), view.layout.record_bytes), np.uint8)
    assert not len(records) or view.native.read(lane, int(lo[lane]), len(records), records) == 0
    return records


def heads(lanes, lane: int) -> np.ndarray:
    return np.ascontiguousarray(raw(lanes, lane)[:, : HEAD.itemsize]).view(HEAD)[:, 0]


def columns_of(lanes, lane: int) -> list[np.ndarray]:
    mapped = Mapped(lanes)
    return [mapped.column(k, lane) for k in range(len(mapped.geometry.columns))]


class Home:
    """A replay at home with its bookings and an ingest, which can be replaced."""

    def __init__(self, spec: TransitionSpec = SMALL, capacity: int = 1000, seats=(range(2),), target=None, **options):
        lanes = 1 + max(lane for seat in seats for lane in seat)
        self.target = ReplayBuffer.create(spec, capacity, lanes, name="home") if target is None else target
        self.bookings = Bookings.create(self.target.lanes)
        self.seats, self.options = seats, options
        self.ingest = Ingest(self.target, self.bookings, seats, **options)

    def replace(self) -> None:
        """Replaces the ingest, as after its death: the new one knows only the shared memory."""
        self.ingest.close()
        self.ingest = Ingest(self.target, self.bookings, self.seats, **self.options)

    def relay(self, source, link=None, **options) -> Relay:
        return Relay(source, link or DirectLink(self.ingest), **options)

    def close(self) -> None:
        self.ingest.close()
        self.bookings.close()
        self.target.close()


class BadLink:
    """A link that loses, repeats and delays messages and answers by chance, and sometimes replaces the ingest."""

    def __init__(self, home: Home, seed: int, bad: float = 0.3) -> None:
        self.home, self.bad, self.chance = home, bad, random.Random(seed)
        self.late: list[np.ndarray] = []

    def open(self, *what):
        self._maybe_lose()
        return self.home.ingest.open(*what)

    def send(self, message: np.ndarray) -> Future[bool]:
        self._maybe_lose()
        answer: Future[bool] = Future()
        self.late.append(message.copy())
        if self.chance.random() < self.bad:  # delayed, and perhaps lost
            answer.set_exception(LinkLost("lost on the way"))
            return answer
        self.chance.shuffle(self.late) if self.chance.random() < self.bad else None
        taken = [self.home.ingest.put(late) for late in self.late]
        self.late = [late for late in self.late if self.chance.random() < self.bad]
        answer.set_result(all(taken))
        return answer

    def _maybe_lose(self) -> None:
        if self.chance.random() < self.bad / 3:
            self.home.replace()
        if self.chance.random() < self.bad / 2:
            raise LinkLost("no way there")
