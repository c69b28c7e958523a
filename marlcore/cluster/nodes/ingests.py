"""Makes the ingests of a run, in the process that receives the rows. Apart, so that this process imports no runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...cluster import Bookings, Ingest, Leases
from ...memory import SegmentHandle
from ...queue import TrajectoryQueue
from ...replay import ReplayBuffer

Target = tuple[type[ReplayBuffer] | type[TrajectoryQueue], SegmentHandle, SegmentHandle, Sequence[Sequence[int]]]


def make_ingests(targets: Mapping[str, Target], leases: SegmentHandle, follows: bool) -> dict[str, Ingest]:
    """Makes each policy's ingest, in the process that receives the rows; for `leases` and `follows` see `serve`."""
    table = Leases.watch(leases)
    holds = table.allows if follows else table.check
    return {
        name: Ingest(kind.attach(transitions), Bookings.attach(bookings), seats, holds=holds)
        for name, (kind, transitions, bookings, seats) in targets.items()
    }
