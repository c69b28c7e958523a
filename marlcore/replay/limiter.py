"""The rate limiter: how often samplers draw a row for each insert; gates.py makes both sides wait for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from ..declared import Number, Whole, check_declared
from ..memory import Segment


@dataclass(frozen=True)
class RateLimiter:
    """Makes samplers wait for writers and writers for samplers, to hold the average number of samples of each row.

    With `inserted` the transitions ever written to all lanes (without boundary rows), `sampled` the rows ever returned
    by all samplers, and balance = samples_per_insert * (inserted - min_size) - sampled:

    - a sampler waits while inserted < min_size, or while its batch would take the balance below -lead;
    - a writer waits while inserted >= min_size and its rows would take the balance above tolerance, unless a living
      sampler found too few rows that it can draw (for its own min_size, its stack, its n steps) since its last batch.

    Each side reads the counters and then acts, without a lock: with W writers and S samplers active at once, W - 1
    adds and S - 1 batches may exceed the tolerance. Without a sampler, writers wait for ever or for their timeout: a
    thread that both adds and samples gives its writer a timeout of 0, and samples when an add is refused. This is
    Reverb's SampleToInsertRatio (Cassirer et al., 2021, arXiv:2102.04736, section 3.2) without a server.

    Attributes:
        samples_per_insert: average number of samples of each row, above 0.
        min_size: transitions inserted before the first sample, at least 1.
        tolerance: allowed deviation of the balance in rows; at least every sampler's batch_size, and at least
            samples_per_insert times the transitions of every add, so that both sides never wait at once.
        lead: rows by which samplers may be ahead, at least 0; None: the tolerance. With 0, samplers only draw what is
            due, and the tolerance must be at least the sum of these two.
    """

    samples_per_insert: Annotated[float, Number(above=0)]
    min_size: Annotated[int, Whole(1)]
    tolerance: Annotated[float, Number(above=0)]
    lead: Annotated[float | None, Number(0)] = None

    def __post_init__(self) -> None:
        check_declared(self)
        if self.tolerance < self.samples_per_insert:
            raise ValueError(
                f"tolerance: expected at least samples_per_insert = {self.samples_per_insert:g}, since no row could "
                f"ever be added, got {self.tolerance:g}"
            )

    def inserts_missing(self, inserted: int, sampled: int, batch: int) -> int:
        """Transitions that writers must insert before a sampler may draw `batch` rows; 0 if it may draw now."""
        if inserted < self.min_size:
            return self.min_size - inserted
        lead = self.tolerance if self.lead is None else self.lead
        over = -lead - self.balance(inserted, sampled + batch)
        return max(1, math.ceil(over / self.samples_per_insert)) if over > 0 else 0

    def samples_missing(self, inserted: int, sampled: int, rows: int) -> int:
        """Rows that samplers must draw before a writer may add `rows` transitions; 0 if it may add now."""
        over = self.balance(inserted + rows, sampled) - self.tolerance
        return 0 if inserted < self.min_size or over <= 0 else max(1, math.ceil(over))

    def balance(self, inserted: int, sampled: int) -> float:
        """Rows by which samplers are behind; negative if they are ahead."""
        return self.samples_per_insert * (inserted - self.min_size) - sampled

    @classmethod
    def of(cls, segment: Segment) -> RateLimiter | None:
        """The limiter of a replay, from its description."""
        plain = segment.description["limiter"]
        return None if plain is None else cls(**plain)
