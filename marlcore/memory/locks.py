"""The lock bytes of a segment's file, in a segment of L lanes.

0                  the segment: each process that maps it holds a shared lock, its remover an exclusive one
1 + lane           a lane's writer: exclusive, or shared by all writers of a shared lane; held for life
1 + L + lane       one append to a shared lane
1 + 2 L + slot     a sampler's slot in a replay with a limiter, or (slot 0) a trajectory queue's reader; held for life
"""

SEGMENT_LOCK = 0


def writer_lock(lane: int) -> int:
    return 1 + lane


def add_lock(lanes: int, lane: int) -> int:
    return 1 + lanes + lane


def slot_lock(lanes: int, slot: int) -> int:
    return 1 + 2 * lanes + slot
