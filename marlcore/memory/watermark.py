"""Watermarks: how many rows of a durable segment are on disk, and how far writers may overwrite older ones.

After the lanes, the body of a durable segment has, each from a new page on:

    place 0 | place 1 | words: two of each lane, and one that says whether a write of the file failed

The flusher, one process, writes a mark into the places in turn, and puts it on disk before it writes the next one. So
one of the two places always holds a whole mark, as its checksum shows. A mark has three numbers of each lane:

    WATERMARK   rows below this ticket were on disk before the mark was written
    PROMISED    no writer takes a ticket from here on, unless a later mark or its own pledge on disk allows that
    NEWEST      the first word of the row below the watermark

and the first words of each slot, such as a queue's cursor. Then the flusher stores each lane's PROMISED and WATERMARK
in the lane's two `words`. A writer takes only tickets below the promise in these words. If the flusher is late, the
writer does not wait: it writes its own promise, a pledge, to disk (`mc_lane_pledge` in csrc/lane.c). Only the flusher
writes the words; only the lane's writer writes the pledge. A later mark may promise less only if the lane has no living
writer.

When the machine stops, the disk holds each page with its content of some moment since the page was last put on disk.
Let W be the watermark of the newest whole mark, and H the higher of its promise and of the pledge on disk. No ticket
from H on was ever taken, so no memory of a row in [H - capacity, W) was ever overwritten: whenever its page was written
back, it holds the whole row. All other rows are in doubt. A writer that reserved the tickets below H and was killed
before its commit leaves its lane in exactly this state: recovery.py restores these counters, and every reader and
successor knows what to do with them.

In a queue, neither a mark nor a pledge promises more tickets than the reader had made room for by then. So H - capacity
is at most the ticket that the reader had released, and no row from that ticket on is in doubt.

The page cache lives as long as the kernel. So a mark names the boot of the machine in which it was written: in the same
boot, the page cache has every committed row, whichever processes were killed. Recovery first puts a mark of no boot on
disk, which replaces the pledges; its last store, a mark of the present boot, lets other processes in.
"""

import functools
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import SegmentCorrupt
from .lanes import LaneGeometry
from .native import TICKETS, Words

WATERMARK, PROMISED, NEWEST = range(3)
_HEAD = struct.Struct("<8sQ16sQQ")  # magic, number, boot, lanes, slots
_CHECKSUM = struct.Struct("<I")
_MAGIC = b"mc-mark\0"
_PAGE = 4096
_WORDS = 2  # of each lane: the promise and the watermark, see MC_PROMISED in csrc/api.h

Ints = NDArray[np.int64]


@functools.cache
def boot_id() -> bytes:
    """Returns 16 bytes that differ between boots of the machine."""
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))


@dataclass(frozen=True)
class Mark:
    """What is on disk: `lanes`, int64 [3, lanes], see above; `slots`, int64 [slots, kept], words of each slot."""

    number: int
    boot: bytes
    lanes: Ints
    slots: Ints

    def raw(self) -> bytes:
        head = _HEAD.pack(_MAGIC, self.number, self.boot, self.lanes.shape[1], len(self.slots))
        content = head + self.lanes.tobytes() + self.slots.tobytes()
        return content + _CHECKSUM.pack(zlib.crc32(content))


class Marks:
    """The marks and words in a durable segment's body."""

    def __init__(self, path: Path, body: NDArray[np.uint8], geometry: LaneGeometry) -> None:
        if self.body_bytes(geometry) > len(body):
            raise ValueError(f"body: expected {self.body_bytes(geometry)} bytes of lanes and marks, got {len(body)}")
        self._path, self._lanes, self._slots = path, geometry.lanes, (geometry.slots, geometry.kept)
        first, step = _up_to_page(geometry.nbytes), _place_bytes(geometry)
        self._places = [body[first + place * step :][: _mark_bytes(geometry)] for place in (0, 1)]
        self.words_offset = first + 2 * step
        self._words = Words(body[self.words_offset :])
        self._failure = _WORDS * geometry.lanes

    @staticmethod
    def body_bytes(geometry: LaneGeometry) -> int:
        return _up_to_page(geometry.nbytes) + 2 * _place_bytes(geometry) + 8 * (_WORDS * geometry.lanes + 1)

    @staticmethod
    def first(geometry: LaneGeometry) -> tuple[int, NDArray[np.uint8]]:
        """Returns the offset and the bytes of a new segment's mark: no row is whole, and one lap may be written."""
        lanes = np.zeros((3, geometry.lanes), np.int64)
        lanes[PROMISED] = geometry.capacity
        mark = Mark(0, boot_id(), lanes, np.zeros((geometry.slots, geometry.kept), np.int64))
        return _up_to_page(geometry.nbytes), np.frombuffer(mark.raw(), np.uint8)

    def newest(self) -> Mark:
        """Returns the newest whole mark. Raises SegmentCorrupt if both places are damaged."""
        whole = [mark for mark in map(self._read, (0, 1)) if mark is not None]
        if not whole:
            raise SegmentCorrupt(f"{self._path}: expected a mark of a durable segment, got two damaged ones")
        return max(whole, key=lambda mark: mark.number)

    def _read(self, place: int) -> Mark | None:
        raw = self._places[place].tobytes()
        magic, number, boot, lanes, slots = _HEAD.unpack_from(raw)
        (checksum,) = _CHECKSUM.unpack_from(raw, len(raw) - _CHECKSUM.size)
        of_this = (magic, lanes, slots, number % 2) == (_MAGIC, self._lanes, self._slots[0], place)
        if not of_this or zlib.crc32(raw[: -_CHECKSUM.size]) != checksum:
            return None
        numbers = np.frombuffer(raw[: -_CHECKSUM.size], np.int64, offset=_HEAD.size)
        mark = Mark(number, boot, numbers[: 3 * lanes].reshape(3, lanes), numbers[3 * lanes :].reshape(self._slots))
        whole, promised = mark.lanes[WATERMARK], mark.lanes[PROMISED]
        return mark if ((whole >= 0) & (whole <= promised) & (promised < TICKETS)).all() else None

    def write(self, mark: Mark) -> None:
        """Overwrites the older mark. The caller must have synced the rows and the newer mark; see also recovery.py."""
        self._places[mark.number % 2][:] = np.frombuffer(mark.raw(), np.uint8)

    def publish(self, mark: Mark) -> None:
        """Tells writers and samplers of a mark that is on disk."""
        for word, numbers in enumerate((mark.lanes[PROMISED], mark.lanes[WATERMARK])):
            self._words.store_each(word, _WORDS, np.ascontiguousarray(numbers))

    def promise(self, lane: int, ticket: int) -> None:
        """Publishes a new promise to a lane's later writers."""
        self._words.store(_WORDS * lane, ticket)

    @property
    def failed(self) -> bool:
        """Whether a write of the file has failed since the machine's start; then no later mark can be trusted."""
        return self._words.load(self._failure) != 0

    def fail(self, failed: bool = True) -> None:
        self._words.store(self._failure, int(failed))

    def durable(self) -> Ints:
        """Returns the published watermark of each lane, int64 [lanes]."""
        return np.array([self._words.load(_WORDS * lane + 1) for lane in range(self._lanes)], np.int64)


def _mark_bytes(geometry: LaneGeometry) -> int:
    return _HEAD.size + 8 * (3 * geometry.lanes + geometry.slots * geometry.kept) + _CHECKSUM.size


def _place_bytes(geometry: LaneGeometry) -> int:
    return _up_to_page(_mark_bytes(geometry))


def _up_to_page(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE
