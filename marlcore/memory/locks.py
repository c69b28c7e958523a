"""Which byte of a segment's file is the lock of what, in a segment of L lanes.

0                  the segment: held shared by each process that maps it, exclusively by one that removes it
1 + lane           a lane's writer: held exclusively, or shared by all writers of a shared lane
1 + L + lane       one add to a shared lane
1 + 2 L + slot     a slot of a sampler that has a limiter; slot 0 of a trajectory queue is its reader's
"""

from __future__ import annotations

__all__ = ["SEGMENT_LOCK", "add_lock", "slot_lock", "writer_lock"]

SEGMENT_LOCK = 0


def writer_lock(lane: int) -> int:
    return 1 + lane


def add_lock(lanes: int, lane: int) -> int:
    return 1 + lanes + lane


def slot_lock(lanes: int, slot: int) -> int:
    return 1 + 2 * lanes + slot
