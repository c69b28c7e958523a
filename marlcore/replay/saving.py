"""Saves a replay while its writers run, and loads it. A save has the format of a replay's segment of memory.

The counters of all lanes are read at one moment; each lane's rows up to its counter are copied, oldest first. In the
save, a lane's counter `reserved` tells the oldest row that no writer overwrote while the lane was copied. The arrays of
a sampler's state follow the lanes, at the offsets that the segment's description lists.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..checks import as_path
from ..errors import SegmentCorrupt, SharedMemoryFull
from ..memory import LINE, LaneGeometry, Put, Segment, replace_file
from ..regular_files import naming
from ..transitions import DURABLE, LaneView, hollow

STATE = "sampler"  # the key of a description that lists the arrays of a sampler's state
UNLIMITED = "unlimited"  # the key that marks a copy without the original's limiter, but with the limiter's slots
_KINDS = "biufc"


class Stateful(Protocol):
    """A sampler with a state to save, such as its priorities."""

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Returns the state as named arrays of booleans and numbers."""


def save_segment(
    view: LaneView, path: str | os.PathLike[str], state: Mapping[str, NDArray[Any]] | None,
    check: Callable[[], None] | None,
) -> None:  # fmt: skip
    """Writes a copy of a live segment to a file, replacing an existing one; see `ReplayBuffer.save`, `replace_file`."""
    segment, target = view.segment, as_path("path", path).absolute()
    if segment.is_at(target):
        raise ValueError(f"path: expected another file than the replay's own, got {target}")
    arrays = {name: _checked_array(name, value) for name, value in (state or {}).items()}
    places, end = place_arrays(arrays, view.geometry.nbytes)
    description = {key: value for key, value in segment.description.items() if key not in (STATE, DURABLE)}
    if state is not None:
        description[STATE] = places

    def fill(put: Put) -> None:
        _put_cut(put, view)
        put_arrays(put, arrays, places)

    earlier = "the earlier save is kept" if target.exists() else "there is no earlier save"
    failure = f"the replay was not saved, {earlier}"
    try:
        with naming(target, failure):
            replace_file(target, description, end, fill, check)
    except SharedMemoryFull as error:
        raise SharedMemoryFull(f"{target}: {failure} ({error})") from None


def copy_segment(view: LaneView, name: str, path: str | os.PathLike[str] | None, limited: bool) -> Segment:
    """Returns a new segment with the rows of a replay, and the sampler's arrays after them; see `ReplayBuffer.load`."""
    segment, end = view.segment, view.geometry.nbytes
    body = segment.body if DURABLE not in segment.description else segment.body[:end]
    arrays_in(segment, end)
    for lane in range(view.geometry.lanes):
        view.native.check(lane)

    def fill(put: Put) -> None:
        _put_cut(put, view)
        put(end, body[end:])

    description = {key: value for key, value in segment.description.items() if key != DURABLE}
    if not limited and description["limiter"] is not None:
        description |= {"limiter": None, UNLIMITED: True}
    return Segment.create(name, description, len(body), path, fill)


def read_state(view: LaneView) -> dict[str, NDArray[Any]] | None:
    """Returns copies of the saved sampler's arrays; None if there are none. Raises SegmentCorrupt."""
    if STATE not in view.segment.description:
        return None
    return {name: array.copy() for name, array in arrays_in(view.segment, view.geometry.nbytes).items()}


def place_arrays(arrays: Mapping[str, NDArray[Any]], end: int) -> tuple[dict[str, dict[str, Any]], int]:
    """Places arrays behind byte `end` of a body; returns their places, for a description, and the last array's end."""
    places: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        offset = -(-end // LINE) * LINE
        places[name] = {"dtype": array.dtype.name, "shape": array.shape, "offset": offset}
        end = offset + array.nbytes
    return places, end


def put_arrays(put: Put, arrays: Mapping[str, NDArray[Any]], places: Mapping[str, Mapping[str, Any]]) -> None:
    for name, array in arrays.items():
        put(places[name]["offset"], array.reshape(-1).view(np.uint8))


def _put_cut(put: Put, view: LaneView) -> None:
    body, lanes, geometry = view.segment.body, view.native, view.geometry
    now = np.zeros((2, lanes.count), np.int64)
    copied, lowest, ok = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.uint8)
    look_again, validate = lanes.windows(*now), lanes.validator(copied, lowest, ok)
    slots = np.zeros((geometry.slots, LINE // 8), np.int64)
    lines = body[geometry.slot_offset(0) : geometry.slot_offset(geometry.slots)]
    slots[:, 0] = lines.view(np.int64).reshape(slots.shape)[:, 0]
    hi, newest = lanes.newest()  # together: a lane may be lapped before a second look
    look_again()
    lo = np.minimum(now[0], hi)
    for lane in range(lanes.count):
        for begin, end in _runs(geometry, lane, int(lo[lane]), int(hi[lane])):
            put(begin, body[begin:end])
        copied[0], lowest[0] = lane, lo[lane]
        if validate(1):  # its fence orders the copy above before the counters read from here on
            look_again()
            lo[lane] = min(now[0, lane], hi[lane])
        if lo[lane] == hi[lane] > 0:  # a lane without rows keeps one without content, for the count of what was written
            lo[lane] -= 1
            row = np.zeros(geometry.stride(0) // 8, np.int64)
            row[0] = hollow(int(newest[lane]))
            put(geometry.record_offset(lane, int(lo[lane])), row.view(np.uint8))
        # committed, reserved: a reader's window is [reserved - capacity, committed).
        counters = np.array([hi[lane], lo[lane] + geometry.capacity], np.int64)
        put(geometry.counters_offset(lane), counters.view(np.uint8))
    put(geometry.slot_offset(0), slots.reshape(-1).view(np.uint8))  # the samplers' counts, without their starving flags


def _runs(geometry: LaneGeometry, lane: int, lo: int, hi: int) -> Iterator[tuple[int, int]]:
    """Yields the body's byte ranges [begin, end) that hold a lane's tickets [lo, hi), oldest first in each column."""
    first, rows = lo % geometry.capacity, hi - lo
    head = min(rows, geometry.capacity - first)
    for column in range(len(geometry.columns)):
        stride = geometry.stride(column)
        base = geometry.column_offset(column) + lane * geometry.rows(column) * stride
        # If a column is stored at intervals, tickets share rows; a row with both ends of the range is copied twice.
        every = geometry.every[column]
        yield base + first // every * stride, base + -(-(first + head) // every) * stride
        if head < rows:
            yield base, base + -(-(rows - head) // every) * stride


def _checked_array(name: Any, value: Any) -> NDArray[Any]:
    if not isinstance(name, str):
        raise TypeError(f"sampler: expected a state whose keys are names, got the key {name!r}")
    array = np.asarray(value, order="C")
    if array.dtype.kind not in _KINDS or not array.dtype.isnative:
        raise TypeError(f"sampler: state {name!r}: expected an array of numbers, got dtype {array.dtype}")
    return array


def arrays_in(segment: Segment, start: int) -> dict[str, NDArray[Any]]:
    """Returns views of the described arrays, each of which lies in the body from `start` on. Raises SegmentCorrupt."""
    described = segment.description.get(STATE, {})
    array_at = partial(_array_at, segment.body, start)
    try:
        return {name: array_at(**place) for name, place in described.items()}
    except (TypeError, ValueError, AttributeError, SyntaxError) as error:  # SyntaxError: a dtype name with a comma
        raise SegmentCorrupt(f"{segment.path}: the saved sampler state is damaged: {error}") from None


def _array_at(body: NDArray[np.uint8], start: int, /, dtype: Any, shape: Any, offset: Any) -> NDArray[Any]:
    numbers = [*shape, offset]
    if not all(type(n) is int and n >= 0 for n in numbers) or len(shape) > 32:
        raise ValueError(f"expected lengths and an offset of at least 0, got {numbers}")
    if not isinstance(dtype, str) or np.dtype(dtype).kind not in _KINDS or not np.dtype(dtype).isnative:
        raise ValueError(f"expected a dtype of numbers, got {dtype!r}")
    longest = math.prod(max(n, 1) for n in shape) * np.dtype(dtype).itemsize  # bounds the lengths of an empty array too
    end = offset + longest if 0 not in shape else max(offset, longest)
    if not start <= offset or not end <= len(body) or offset % LINE:
        raise ValueError(f"expected bytes in {start} to {len(body)}, from a multiple of {LINE}, got {offset} to {end}")
    return np.ndarray(shape, dtype, body, offset)
