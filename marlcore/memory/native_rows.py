"""Binds the C core's raw rows: it reads spans of lanes into a message, and appends parts of spans to other lanes."""

import numpy as np

from .native import Bytes, Ints, NativeLanes, checked, lib, pointer_to

# Words of a span and of a part: see csrc/api.h
LANE, AFTER, FIRST, ROWS = range(4)
PART_LANE, OFFSET, SPAN_ROWS, SKIP, TAKE, SEAM = range(6)
_SPANS, _PARTS = "struct mc_span[]", "struct mc_part[]"


class NativeRows:
    """Reads raw rows out of lanes, and appends raw rows to them; `spans` are int64 [n, 4], `parts` int64 [n, 6]."""

    def __init__(self, lanes: NativeLanes) -> None:
        self._lanes = lanes

    def place(self, spans: Ints, room: int) -> tuple[Ints, int]:
        """Returns the offset of each span's bytes, int64 [n], and their total. Raises ValueError: it exceeds `room`."""
        offsets = np.empty(len(spans), np.int64)
        at = pointer_to(offsets, "int64_t[]")
        total = int(lib.mc_spans_place(self._lanes.raw, len(spans), pointer_to(spans, _SPANS), room, at))
        if total < 0:
            raise ValueError(f"spans: expected rows of at most {room} bytes, got more")
        return offsets, total

    def read(self, spans: Ints, dest: Bytes) -> int:
        """Copies the spans' rows into `dest`, which has room for them; returns the number of bytes.

        It sets the row count of each span whose rows were lapped to 0.
        """
        raw = pointer_to(spans, _SPANS)
        return checked(lib.mc_spans_read(self._lanes.raw, len(spans), raw, pointer_to(dest)))

    def append(self, parts: Ints, source: Bytes) -> None:
        """Appends parts of the spans in `source`, each part whole. The caller holds the lanes' locks."""
        raw = pointer_to(parts, _PARTS)
        checked(lib.mc_parts_append(self._lanes.raw, len(parts), raw, pointer_to(source)))

    def committed(self) -> Ints:
        """Returns the number of rows committed to each lane since its creation, int64 [lanes]."""
        lo, hi = np.zeros((2, self._lanes.count), np.int64)
        self._lanes.windows(lo, hi)()
        return hi
