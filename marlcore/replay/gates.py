"""Keeping a replay's samplers and writers in step: so many samples for each insert, within a tolerance.

Nobody owns a common counter, which would need a lock. What was inserted follows from the lanes' own counters; each
sampler counts what it drew in a slot of its own, a line of the segment:

    sampled   rows drawn by all who ever had the slot
    starving  1 while its sampler waits for rows that it can draw

The slot's lock is the kernel's, so a dead sampler's slot is free for the next one, and its count goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from ..errors import MarlcoreError, NotEnoughData
from ..memory import (
    LINE,
    ROOM_OFFSET,
    Check,
    Event,
    LaneClaim,
    LaneGeometry,
    NativeLanes,
    Segment,
    Words,
    sleep_until,
    slot_lock,
)
from .limiter import RateLimiter

__all__ = ["SLOTS", "SampleGate", "WriteGate"]

SLOTS = 16
BULK_S = 0.01  # at most, for which one who must wait anyway waits for more than it needs

_SAMPLED, _STARVING = 0, 1
_LINE_WORDS = LINE // 8


class _Side:
    """One side's view of the counters that the limiter looks at."""

    def __init__(self, segment: Segment, lanes: NativeLanes, geometry: LaneGeometry, limiter: RateLimiter) -> None:
        self._segment = segment
        self._lanes = lanes
        self._limiter = limiter
        self._room = Event(segment.body, ROOM_OFFSET)
        self._slots = Words(segment.body[geometry.slot_offset(0) : geometry.slot_offset(SLOTS)])

    def _sampled(self) -> int:
        return self._slots.sum(_SAMPLED, SLOTS, _LINE_WORDS)

    def _slot_lock(self, slot: int) -> int:
        return slot_lock(self._lanes.count, slot)

    def _sleep(
        self, missing: Callable[[int], int], rows: int, bulk: float, event: Event, deadline: float | None, check: Check
    ) -> bool:
        """Whether nothing is missing for so many rows before the deadline.

        It first waits for `bulk` more for a moment, a quarter of the limiter's span: a wake costs the other
        side as much as adding twenty rows does, and a batch often makes room for ten.
        """
        soon = time.monotonic() + BULK_S
        first = soon if deadline is None else min(soon, deadline)
        return sleep_until(partial(missing, rows + int(bulk)), event, first, check) or sleep_until(
            partial(missing, rows), event, deadline, check
        )


class WriteGate(_Side):
    """What a writer passes before it adds."""

    spare_rows = 1  # the newest row tells how many transitions were inserted

    @classmethod
    def of(cls, segment: Segment, lanes: NativeLanes, geometry: LaneGeometry) -> WriteGate | None:
        """The gate of a replay; None when it has no limiter."""
        limiter = RateLimiter.of(segment)
        return None if limiter is None else cls(segment, lanes, geometry, limiter)

    def wait(self, transitions: int, boundaries: int, timeout: float | None, check_open: Callable[[], None]) -> bool:
        """Waits until so many transitions may be added; see Gate."""
        limiter = self._limiter
        if limiter.samples_per_insert * transitions > limiter.tolerance:
            raise ValueError(
                f"tolerance: expected a limiter with at least samples_per_insert * rows = "
                f"{limiter.samples_per_insert * transitions:g} for an add of {transitions}, got {limiter.tolerance:g}"
            )
        if not self._missing(transitions):
            return True
        deadline = None if timeout is None else time.monotonic() + timeout
        bulk = limiter.tolerance / limiter.samples_per_insert / 2
        if not self._sleep(self._missing, transitions, bulk, self._room, deadline, check_open):
            path = self._segment.path
            raise TimeoutError(f"{path}: no sampler made room for {transitions} more rows in {timeout} seconds")
        return True

    def _missing(self, rows: int) -> int:
        """Rows that have to be sampled before so many may be added."""
        sampled = self._sampled()  # first: what others do between the two keeps this writer back, if anything
        missing = self._limiter.samples_missing(self._lanes.inserted(), sampled, rows)
        return 0 if missing and self._any_starves() else missing

    def _any_starves(self) -> bool:
        """Whether a living sampler has too little to draw from; what a dead one said counts no more."""
        if not self._slots.sum(_STARVING, SLOTS, _LINE_WORDS):
            return False
        return any(
            self._slots.load(slot * _LINE_WORDS + _STARVING) and self._segment.is_locked(self._slot_lock(slot))
            for slot in range(SLOTS)
        )


class SampleGate(_Side):
    """What a sampler passes before it draws, and where it counts what it drew; it has a slot while it lives."""

    def __init__(
        self, segment: Segment, lanes: NativeLanes, geometry: LaneGeometry, limiter: RateLimiter, batch: int
    ) -> None:
        if batch > limiter.tolerance:
            raise ValueError(
                f"tolerance: expected a limiter with at least the batch_size {batch}, got {limiter.tolerance:g}"
            )
        super().__init__(segment, lanes, geometry, limiter)
        self._batch = batch
        self._rows = Event(segment.body)
        self._claim, slot = self._take_slot()
        self._at = slot * _LINE_WORDS
        self._slots.store(self._at + _STARVING, 0)

    @classmethod
    def of(cls, segment: Segment, lanes: NativeLanes, geometry: LaneGeometry, batch: int) -> SampleGate | None:
        """The gate of a replay for a sampler of batches of `batch` rows; None when it has no limiter.

        Raises: ValueError: the limiter's tolerance is less than a batch. MarlcoreError: there are 16 samplers.
        """
        limiter = RateLimiter.of(segment)
        return None if limiter is None else cls(segment, lanes, geometry, limiter, batch)

    def _take_slot(self) -> tuple[LaneClaim, int]:
        for slot in range(SLOTS):
            fd = self._segment.lock(self._slot_lock(slot))
            if fd is not None:
                return LaneClaim(fd), slot
        raise MarlcoreError(f"{self._segment.path}: expected at most {SLOTS} samplers of a replay with a limiter")

    def can_sample(self, drawable: bool) -> bool:
        """Whether a batch can be drawn now, by a sampler with or without rows that it can draw."""
        if not self.may_sample():
            return False
        if not drawable:
            self.starve()
        return drawable

    def wait(self, deadline: float | None) -> float:
        """Waits until a batch may be drawn, at most until the deadline; the seconds that it slept.

        Raises: NotEnoughData: there is no deadline and it may not be drawn now. TimeoutError: nor at the deadline.
        """
        if self.may_sample():
            return 0.0
        if deadline is None:
            raise NotEnoughData(self._shortage())
        began = time.monotonic()
        bulk = self._limiter.tolerance / 2
        if not self._sleep(self._missing, self._batch, bulk, self._rows, deadline, self._segment.check_open):
            raise TimeoutError(self._shortage())
        return time.monotonic() - began

    def starve(self) -> None:
        """There is too little to draw from: writers wait no more until a batch was drawn."""
        self._slots.store(self._at + _STARVING, 1)
        self._room.notify()

    def count(self, rows: int) -> None:
        """So many rows were drawn: makes room for writers."""
        self._slots.add(self._at + _SAMPLED, rows)
        self._slots.store(self._at + _STARVING, 0)
        self._room.notify(rows)

    def may_sample(self) -> bool:
        """Whether `wait` would return at once."""
        return self._missing(self._batch) == 0

    @property
    def due(self) -> bool:
        """Whether a batch is due: as many as samples_per_insert says were not drawn yet, with no tolerance."""
        inserted = self._lanes.inserted()
        return inserted >= self._limiter.min_size and self._limiter.balance(inserted, self._sampled()) >= self._batch

    def _missing(self, rows: int) -> int:
        """Transitions that have to be inserted before so many rows may be drawn."""
        inserted = self._lanes.inserted()  # first: what others do between the two keeps this sampler back, if anything
        return self._limiter.inserts_missing(inserted, self._sampled(), rows)

    def _shortage(self) -> str:
        inserted = self._lanes.inserted()
        needed = inserted + self._limiter.inserts_missing(inserted, self._sampled(), self._batch)
        return f"{self._segment.path}: the limiter expects at least {needed} transitions inserted, got {inserted}"
