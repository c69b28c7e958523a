"""Makes the ingests of a run, in the process that receives the rows. Apart, so that this process imports no runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from ...cluster import Bookings, Ingest, Leases
from ...memory import SegmentHandle
from ...queue import TrajectoryQueue
from ...replay import ReplayBuffer

Target = tuple[type[ReplayBuffer] | type[TrajectoryQueue], SegmentHandle, SegmentHandle, Sequence[Sequence[int]]]


def make_ingests(targets: Mapping[str, Target], leases: SegmentHandle, follows: bool) -> dict[str, Ingest]:
    """Makes each policy's ingest, in the process that receives the rows; for `leases` and `follows` see `serve`.

    If this raises, it has released what it had taken, and may be called again.
    """
    ingests = {}
    with ExitStack() as stack:
        table = stack.enter_context(Leases.watch(leases))
        holds = table.allows if follows else table.check
        for name, (kind, transitions, bookings, seats) in targets.items():
            target = kind.attach(transitions)
            stack.callback(target.close)
            booked = stack.enter_context(Bookings.attach(bookings))
            ingests[name] = stack.enter_context(Ingest(target, booked, seats, holds=holds))
        stack.pop_all()
    return ingests
