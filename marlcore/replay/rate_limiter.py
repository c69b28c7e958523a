"""The rate limiter keeps the samples per insert within a band: samplers and writers wait at its gates.

No counter is shared between writers, since that would need a lock. The inserts follow from the lanes' own counters.
Each sampler counts the rows it drew in its own slot, a line of the segment:

    sampled   rows drawn by all samplers that ever had the slot
    starving  1 while its sampler waits for rows that it can draw

A sampler holds its slot by a lock that the kernel frees when the sampler dies. The next holder continues the count.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeAlias

from ..checks import deadline_of
from ..declared import Number, Whole, check_declared
from ..errors import MarlcoreError, NotEnoughData, TimedOut
from ..memory import LINE, ROOM_OFFSET, Check, Event, Segment, Words, sleep_until, slot_lock
from ..transitions import LaneView, share_of

SHARE = Number(above=0, high=1)
SLOTS = 16
BULK_S = 0.01  # longest extra wait, for more rows than needed, of a side that must wait anyway

# A share of the samples per insert: a number, or a function of the transitions inserted from now on (negative: before)
Share: TypeAlias = float | Callable[[float], float]

_SAMPLED, _STARVING = 0, 1
_LINE_WORDS = LINE // 8


@dataclass(frozen=True)
class RateLimiter:
    """Makes samplers and writers wait for each other, so that each row is sampled a given number of times on average.

    Let `inserted` be the transitions ever written to all lanes (without boundary rows), `sampled` the rows ever
    returned by all samplers, and balance = samples_per_insert * (inserted - min_size) - sampled. Then

    - a sampler waits while inserted < min_size, or while its batch would take the balance below -lead;
    - a writer waits while inserted >= min_size and its rows would take the balance above tolerance, unless a living
      sampler has found too few rows to draw (given its min_size, stack and n_step) since its last batch.

    Each side reads the counters and then acts, without a lock: with W writers and S samplers active at once, W - 1
    adds and S - 1 batches may exceed the tolerance. Without a sampler, writers wait for ever or until their timeout,
    and log a warning after some seconds. A thread that both adds and samples gives its writer a timeout of 0, and
    samples when an add is refused. This is Reverb's SampleToInsertRatio (Cassirer et al., 2021, arXiv:2102.04736,
    section 3.2) without a server.

    Attributes:
        samples_per_insert: average number of samples of each row, above 0.
        min_size: transitions inserted before the first sample, at least 1.
        tolerance: allowed deviation of the balance in rows; at least every sampler's batch_size, and at least
            samples_per_insert times the transitions of every add, or samplers and writers may wait for each other.
        lead: rows by which samplers may be ahead, at least 0; None: the tolerance. With 0, samplers only draw what is
            due. The tolerance and the lead together must be at least the sum of a sampler's batch_size and of
            samples_per_insert times the transitions of an add, or samplers and writers may wait for each other.
    """

    samples_per_insert: Annotated[float, Number(above=0)]
    min_size: Annotated[int, Whole(1)]
    tolerance: Annotated[float, Number(above=0)]
    lead: Annotated[float | None, Number(0)] = None

    def __post_init__(self) -> None:
        check_declared(self)
        if self.tolerance < self.samples_per_insert:
            least = f"samples_per_insert = {self.samples_per_insert:g}, or no row could ever be added"
            raise ValueError(f"tolerance: expected at least {least}, got {self.tolerance:g}")

    def inserts_missing(self, inserted: int, sampled: int, batch: float) -> int:
        """Returns how many transitions writers must still insert before a sampler may draw `batch` rows."""
        if inserted < self.min_size:
            return self.min_size - inserted
        lead = self.tolerance if self.lead is None else self.lead
        over = -lead - self.balance(inserted, sampled + batch)
        return max(1, math.ceil(over / self.samples_per_insert)) if over > 0 else 0

    def samples_missing(self, inserted: int, sampled: int, rows: float) -> int:
        """Returns how many rows samplers must still draw before a writer may add `rows` transitions."""
        if inserted < self.min_size:
            return 0
        over = self.balance(inserted + rows, sampled) - self.tolerance
        return max(1, math.ceil(over)) if over > 0 else 0

    def rows_allowed(self, inserted: int, sampled: int) -> int:
        """Returns the most transitions that a writer may add now."""
        return math.floor((self.tolerance + sampled) / self.samples_per_insert) + self.min_size - inserted

    def balance(self, inserted: float, sampled: float) -> float:
        """Returns how many rows samplers are behind; negative if they are ahead."""
        return self.samples_per_insert * (inserted - self.min_size) - sampled

    @classmethod
    def of(cls, segment: Segment) -> "RateLimiter | None":
        """Returns the limiter in the description of a replay's segment; None if there is none."""
        plain = segment.description["limiter"]
        return None if plain is None else cls(**plain)


class _Side:
    """The part that the gates of writers and of samplers share: it reads the limiter's counters, and sleeps."""

    def __init__(self, view: LaneView, limiter: RateLimiter) -> None:
        self._segment = view.segment
        self._lanes = view.native
        self._limiter = limiter
        self._room = Event(view.segment.body, ROOM_OFFSET)
        first, end = view.geometry.slot_offset(0), view.geometry.slot_offset(SLOTS)
        self._slots = Words(view.segment.body[first:end])
        self._sampled, self._starving = (self._slots.summer(word, SLOTS, _LINE_WORDS) for word in (_SAMPLED, _STARVING))

    def _missing(self, rows: float) -> int:
        """Returns how many rows the other side must insert or draw before `rows` rows may pass this gate."""
        raise NotImplementedError

    def _sleep(
        self, rows: float, bulk: float, event: Event, deadline: float | None, check: Check,
        alone: Callable[[], str] | None = None,
    ) -> bool:  # fmt: skip
        """Waits until `rows` rows may pass the gate; returns False if the deadline comes before that.

        At first, for at most BULK_S, waits until `rows` + `bulk` may pass. So the other side wakes this process
        less often: a wake-up costs the time of adding twenty rows, but a batch often makes room for only ten.
        """
        soon = time.monotonic() + BULK_S
        first = soon if deadline is None else min(soon, deadline)
        more, enough = partial(self._missing, rows + int(bulk)), partial(self._missing, rows)
        return sleep_until(more, event, first, check) or sleep_until(enough, event, deadline, check, alone)


class WriteGate(_Side):
    """The gate that the writer of one lane, or of several, passes before each add."""

    def wait(self, transitions: int, boundaries: int, timeout: float | None, check_open: Check) -> bool:
        """Waits until the transitions may be added, and returns True; boundary rows do not count.

        Raises: ValueError: the add exceeds the tolerance. TimeoutError: no sampler made room in time.
        """
        limiter, least = self._limiter, self._limiter.samples_per_insert * transitions
        if least > limiter.tolerance:
            expected = f"at least samples_per_insert * rows = {least:g} for an add of {transitions} rows"
            raise ValueError(f"tolerance: expected {expected}, got a limiter with {limiter.tolerance:g}")
        if not self._missing(transitions):
            return True
        bulk = limiter.tolerance / limiter.samples_per_insert / 2
        if not self._sleep(transitions, bulk, self._room, deadline_of(timeout), check_open, self._alone):
            path = self._segment.path
            raise TimedOut(f"{path}: no sampler made room for {transitions} more rows in {timeout} seconds")
        return True

    def wait_each(self, which: Any, boundaries: Any, timeout: float | None, check_open: Check) -> bool:
        limiter, rows = self._limiter, len(which)
        if limiter.samples_per_insert * rows > limiter.tolerance or self._missing(rows):
            self.wait(rows, 0, timeout, check_open)
        return False

    def room_for(self, lanes: Any, wanted: Any) -> Any:
        """Returns how many of the wanted rows each lane may add now; earlier lanes go first."""
        sampled = self._sampled()
        room = self._limiter.rows_allowed(self._lanes.inserted(), sampled)
        return share_of(room, wanted) if room < wanted.sum() and not self._any_starves() else wanted

    def _missing(self, rows: float) -> int:
        sampled = self._sampled()  # read first: changes between the two loads can only delay this writer
        missing = self._limiter.samples_missing(self._lanes.inserted(), sampled, rows)
        return 0 if missing and self._any_starves() else missing

    def _alone(self) -> str:
        if any(self._segment.is_locked(slot_lock(self._lanes.count, slot)) for slot in range(SLOTS)):
            return ""
        return f"{self._segment.path}: by the limiter, a writer waits for a sampler, and no process has a sampler"

    def _any_starves(self) -> bool:
        """Whether a living sampler has too few rows to draw; the flag of a dead sampler does not count."""
        if not self._starving():
            return False
        starving = (slot for slot in range(SLOTS) if self._slots.load(slot * _LINE_WORDS + _STARVING))
        return any(self._segment.is_locked(slot_lock(self._lanes.count, slot)) for slot in starving)


class SampleGate(_Side):
    """The gate that a sampler or a mixture passes before each batch; its slot counts the rows drawn.

    If a batch cost more rows than `most`, samplers and writers might wait for each other. `rows` are a batch's rows.
    """

    @classmethod
    def of(cls, view: LaneView, batch: int) -> "SampleGate | None":
        """Returns the gate of a replay, or None if it has no limiter. Raises ValueError if the batch is too large."""
        limiter = RateLimiter.of(view.segment)
        return None if limiter is None else cls(view.of(view.geometry.whole), limiter, batch)  # which counts all lanes

    def __init__(self, view: LaneView, limiter: RateLimiter, batch: int) -> None:
        self._lead = limiter.tolerance if limiter.lead is None else limiter.lead
        self._batch, self.most = batch, limiter.tolerance + self._lead - limiter.samples_per_insert
        super().__init__(view, limiter)
        self._check(batch)
        self._weight = 1.0  # how many rows a drawn row costs
        self._rest = 0.0  # the part of a row that is not yet counted
        self._share: Callable[[float], float] | None = None  # the share, if it is a function
        self._priced = (-1, 0)  # the rows drawn before, and those of the batch, for which `_share` last set `_weight`
        self._rows = Event(view.segment.body)
        self.take_slot()

    def _check(self, rows: int) -> None:
        """Raises ValueError if the limiter never allows a batch of `rows` rows."""
        tolerance, ratio = self._limiter.tolerance, self._limiter.samples_per_insert
        if rows > tolerance:
            least = f"at least the batch_size {rows}"
            raise ValueError(f"tolerance: expected {least}, got a limiter with {tolerance:g}")
        if rows > self.most:
            least = f"at least batch_size + samples_per_insert - lead = {rows + ratio - self._lead:g}"
            expected = f"{least}, or samplers and writers would both wait"
            raise ValueError(f"tolerance: expected {expected}, got a limiter with {tolerance:g}")

    def take_slot(self) -> None:
        """Takes a slot for this process. Raises MarlcoreError if other samplers have them all."""
        for slot in range(SLOTS):
            lock = self._segment.lock(slot_lock(self._lanes.count, slot))
            if lock is not None:
                self._claim, self._at = lock, slot * _LINE_WORDS
                self._slots.store(self._at + _STARVING, 0)
                return
        raise MarlcoreError(f"{self._segment.path}: expected at most {SLOTS} samplers of a replay with a limiter")

    def limit_to(self, share: Share) -> None:
        if callable(share):
            self._share, self._priced = share, (-1, 0)
        else:
            self._weigh(1.0 / SHARE("limit_to", share), self._batch)
            self._share = None

    def _weigh(self, weight: float, rows: int) -> float:
        if rows * weight > self.most:
            least = "at least batch_size / (tolerance + lead - samples_per_insert)"
            expected = f"{least}, or samplers and writers would both wait"
            raise ValueError(f"limit_to: expected {expected}, got {1.0 / weight:g}")
        self._weight = weight
        return rows * weight

    def _price(self, rows: int) -> float:
        """Returns how many rows a batch costs, by the shares of the inserts that make it due; see `limit_to`."""
        if rows > self._batch:
            self._check(rows)
        if self._share is None or (priced := (self._sampled(), rows)) == self._priced:
            return self._weigh(self._weight, rows)
        ratio = self._limiter.samples_per_insert
        paid = self._limiter.min_size + (priced[0] + self._rest) / ratio
        ahead = paid - self._lanes.inserted()
        left, whole = rows / ratio, 0
        while (share := SHARE("limit_to", self._share(ahead + whole))) < left and whole * ratio <= self.most:
            left -= share
            whole += 1
        cost = self._weigh((whole + left / share) * ratio / rows, rows)
        self._priced = priced
        return cost

    def wait(self, rows: int, deadline: float | None) -> float:
        """Waits until a batch may be drawn, and returns the seconds slept. Raises as `Sampler.sample` does."""
        self._segment.check_open()
        if self.may_sample(rows):
            return 0.0
        if deadline is None:
            raise NotEnoughData(self._shortage(rows))
        began = time.monotonic()
        bulk = self._limiter.tolerance / 2
        if not self._sleep(self._price(rows), bulk, self._rows, deadline, self._segment.check_open):
            raise TimedOut(self._shortage(rows))
        return time.monotonic() - began

    def starve(self) -> None:
        """Lets all writers pass until the next batch is drawn, since there are too few rows to draw."""
        self._slots.store(self._at + _STARVING, 1)
        self._room.notify()

    def count(self, rows: int) -> None:
        """Counts `rows` drawn rows, which makes room for writers."""
        if self._weight != 1.0:
            weighted = rows * self._weight + self._rest
            rows = int(weighted)
            self._rest = weighted - rows
        self._slots.add(self._at + _SAMPLED, rows)
        self._slots.store(self._at + _STARVING, 0)
        self._room.notify(rows)

    def may_sample(self, rows: int) -> bool:
        """Whether `wait` would return at once."""
        return self._missing(self._price(rows)) == 0

    @property
    def due(self) -> bool:
        """Whether a batch is due by samples_per_insert alone, without the tolerance."""
        self._segment.check_open()
        cost = self._batch * self._weight if self._share is None else self._price(self._batch)
        inserted = self._lanes.inserted()
        return inserted >= self._limiter.min_size and self._limiter.balance(inserted, self._sampled()) >= cost

    def _missing(self, rows: float) -> int:
        inserted = self._lanes.inserted()  # read first: changes between the two loads can only delay this sampler
        return self._limiter.inserts_missing(inserted, self._sampled(), rows)

    def _shortage(self, rows: int) -> str:
        inserted = self._lanes.inserted()
        needed = inserted + self._limiter.inserts_missing(inserted, self._sampled(), self._price(rows))
        return f"{self._segment.path}: the limiter expects at least {needed} transitions inserted, got {inserted}"


def attach_anew(gates: Sequence[SampleGate | None], *check_open: Check) -> None:
    """Makes a sampler usable in a forked child: attaches to its replays, and takes slots at their limiters."""
    for check in check_open:
        check()
    for gate in filter(None, gates):
        gate.take_slot()


def limit_all(gates: Sequence[SampleGate | None], share: Share) -> None:
    """Limits all gates to a share, or none of them if one is None or refuses it. Raises as `Sampler.limit_to` does."""
    if None in gates:
        raise ValueError("limit_to: expected a replay with a limiter, got one without")
    for gate in sorted(filter(None, gates), key=lambda gate: gate.most):  # if any refuses the share, the first does
        gate.limit_to(share)
