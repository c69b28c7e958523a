"""A message of rows: one array of bytes, so that a transport neither pickles nor copies its parts.

    head: MAGIC, seat, epoch, number of spans, bytes of rows, whether the rows are compressed (int64 each)
    spans, int64 [n, 4]: lane of the sender, after, first ticket, number of rows; see mc_span in csrc/api.h
    rows: the spans' rows, one span after another; see csrc/rows.c

The sender has sent or lost every row before the ticket `after`. So the ingest can tell gaps from missing messages.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..lazy import missing

MAGIC = int.from_bytes(b"mc-rows1", "little")
HEAD_WORDS = 6
SPAN_WORDS = 4

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Compress = Literal["lz4"] | None


@dataclass(frozen=True)
class Message:
    """A parsed message; `rows` are the bytes of the spans' rows, perhaps compressed."""

    seat: int
    epoch: int
    spans: Ints
    rows: Bytes
    row_bytes: int
    compressed: bool

    @classmethod
    def of(cls, message: Bytes) -> "Message":
        """Parses an array of bytes. Raises ValueError if the array is not a message."""
        if message.dtype != np.uint8 or message.ndim != 1 or len(message) < 8 * HEAD_WORDS:
            raise ValueError(f"message: expected bytes, uint8 [n], got {message.dtype} {message.shape}")
        if message.ctypes.data % 8:
            message = message.copy()
        magic, seat, epoch, count, row_bytes, compressed = message[: 8 * HEAD_WORDS].view(np.int64).tolist()
        begin = rows_offset(count)
        if magic != MAGIC or count < 0 or begin > len(message):
            raise ValueError(f"message: expected a message of a relay, got {len(message)} other bytes")
        spans = message[8 * HEAD_WORDS : begin].view(np.int64).reshape(count, SPAN_WORDS)
        return cls(seat, epoch, spans, message[begin:], row_bytes, bool(compressed))

    def plain_rows(self) -> Bytes:
        """Returns the decompressed bytes of the rows. Raises ValueError if their number is not the head's."""
        rows = self.rows
        if self.compressed:
            rows = np.frombuffer(codec().decompress(rows.data, uncompressed_size=self.row_bytes), np.uint8)
        if len(rows) != self.row_bytes:
            raise ValueError(f"message: expected {self.row_bytes} bytes of rows, got {len(rows)}")
        return rows


def rows_offset(spans: int) -> int:
    """Returns the offset in bytes of a message's rows, which follow the head and the spans."""
    return 8 * (HEAD_WORDS + SPAN_WORDS * spans)


def seal(message: Bytes, seat: int, epoch: int, spans: Ints, row_bytes: int, compress: Compress = None) -> Bytes:
    """Writes head and spans in front of the rows in `message`; returns the used part, or a compressed copy of it."""
    begin = rows_offset(len(spans))
    head = [MAGIC, seat, epoch, len(spans), row_bytes, int(compress is not None)]
    message[: 8 * HEAD_WORDS].view(np.int64)[:] = head
    message[8 * HEAD_WORDS : begin].view(np.int64)[:] = spans.reshape(-1)
    whole = message[: begin + row_bytes]
    if compress is None:
        return whole
    packed = codec().compress(whole[begin:].data, store_size=False)
    return np.concatenate([whole[:begin], np.frombuffer(packed, np.uint8)])


def codec() -> Any:
    """Returns the module lz4.block. Raises ModuleNotFoundError if lz4 is not installed."""
    try:
        import lz4.block
    except ModuleNotFoundError as error:
        raise missing('compress="lz4"', error) from None
    return lz4.block
