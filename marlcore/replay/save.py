"""Saving a replay while its writers run, and loading it; the copy of a live segment is again a segment.

The copy cuts all lanes at one moment: it has no row committed later. Each lane's rows are then copied oldest first.
Rows that a writer overwrote meanwhile are lost to the copy, as they are to a sampler: the copy's `reserved` marks the
oldest whole row. So each lane's rows are one run that ends at the cut, with their original tickets.

A sampler's arrays follow the lanes' bytes; the segment's description has their places.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import SegmentCorrupt, SharedMemoryFull
from ..memory import LINE, LaneGeometry, Put, Segment, replace_file
from ..transitions import LaneView

STATE = "sampler"  # the key of a description that lists the arrays of a sampler's state
_KINDS = "biufc"


class Stateful(Protocol):
    """A sampler with a state to save, such as its priorities."""

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Named arrays of booleans and numbers."""


@dataclass(frozen=True)
class Section:
    """The place of an array in a segment's body."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def end(self) -> int:
        return self.offset + math.prod(self.shape) * np.dtype(self.dtype).itemsize


def save_segment(view: LaneView, path: str | os.PathLike[str], state: Mapping[str, NDArray[Any]] | None) -> None:
    """Writes a copy of a live segment to a file, replacing an existing one; see `ReplayBuffer.save`."""
    segment, target = view.segment, Path(path).absolute()
    if segment.is_at(target):
        raise ValueError(f"path: expected another file than the replay's own, got {target}")
    arrays = {name: _checked_array(name, value) for name, value in (state or {}).items()}
    sections, body_bytes = _lay_out(arrays, view.geometry.nbytes)
    description = {key: value for key, value in segment.description.items() if key != STATE}
    if state is not None:
        description[STATE] = {name: asdict(section) for name, section in sections.items()}

    def fill(put: Put) -> None:
        _put_cut(put, view)
        for name, section in sections.items():
            put(section.offset, arrays[name].reshape(-1).view(np.uint8))

    kept = "the earlier save is kept" if target.exists() else "there is no earlier save"
    try:
        replace_file(target, description, body_bytes, fill)
    except SharedMemoryFull as error:
        raise SharedMemoryFull(f"{target}: the replay was not saved, {kept} ({error})") from None
    except OSError as error:
        if error.errno is None:  # a signal handler's
            raise
        text = f"{error.strerror or error}; the replay was not saved, {kept}"
        raise OSError(error.errno, text, str(target)) from error


def copy_segment(view: LaneView, name: str, path: str | os.PathLike[str] | None) -> Segment:
    """A new segment with the rows of this one, followed by the sampler's arrays; see `ReplayBuffer.load`."""
    segment, end = view.segment, view.geometry.nbytes
    _sections_of(view)
    for lane in range(view.geometry.lanes):
        view.native.check(lane)

    def fill(put: Put) -> None:
        _put_cut(put, view)
        put(end, segment.body[end:])

    return Segment.create(name, segment.description, len(segment.body), path, fill)


def read_state(view: LaneView) -> dict[str, NDArray[Any]] | None:
    """A copy of the sampler's arrays; None without any. Raises: SegmentCorrupt: their description is invalid."""
    if STATE not in view.segment.description:
        return None
    body = view.segment.body
    return {
        name: body[section.offset : section.end].copy().view(section.dtype).reshape(section.shape)
        for name, section in _sections_of(view).items()
    }


def _put_cut(put: Put, view: LaneView) -> None:
    """Copies each lane's rows, and writes counters that mark the whole ones."""
    body, lanes, geometry = view.segment.body, view.native, view.geometry
    (lo, hi), now = np.zeros((2, lanes.count), np.int64), np.zeros((2, lanes.count), np.int64)
    copied, lowest, ok = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.uint8)
    look_again, validate = lanes.windows(*now), lanes.validator(copied, lowest, ok)
    slots = np.zeros((geometry.slots, LINE // 8), np.int64)
    lines = body[geometry.slot_offset(0) : geometry.slot_offset(geometry.slots)]
    slots[:, 0] = lines.view(np.int64).reshape(slots.shape)[:, 0]
    lanes.windows(lo, hi)()
    for lane in range(lanes.count):
        for begin, end in _runs(geometry, lane, int(lo[lane]), int(hi[lane])):
            put(begin, body[begin:end])
        copied[0], lowest[0] = lane, lo[lane]
        if validate(1):  # its fence orders the copy above before the counters read from here on
            look_again()
            lo[lane] = min(now[0, lane], hi[lane])
        # committed, reserved: a reader's window is [reserved - capacity, committed).
        counters = np.array([hi[lane], lo[lane] + geometry.capacity], np.int64)
        put(geometry.counters_offset(lane), counters.view(np.uint8))
    put(geometry.slot_offset(0), slots.reshape(-1).view(np.uint8))  # the samplers' counts, without their starving flags


def _runs(geometry: LaneGeometry, lane: int, lo: int, hi: int) -> Iterator[tuple[int, int]]:
    """The byte ranges [begin, end) of the body with a lane's tickets [lo, hi), oldest first in each column."""
    first, rows = lo % geometry.capacity, hi - lo
    head = min(rows, geometry.capacity - first)
    for column in range(len(geometry.columns)):
        stride = geometry.stride(column)
        base = geometry.column_offset(column) + lane * geometry.rows(column) * stride
        # In a column at intervals tickets share rows, so both ends may lie in one row, which is then copied twice.
        every = geometry.every[column]
        yield base + first // every * stride, base + -(-(first + head) // every) * stride
        if head < rows:
            yield base, base + -(-(rows - head) // every) * stride


def _checked_array(name: Any, value: Any) -> NDArray[Any]:
    if not isinstance(name, str):
        raise TypeError(f"sampler: expected names of its state's arrays, got {name!r}")
    array = np.asarray(value, order="C")
    if array.dtype.kind not in _KINDS or not array.dtype.isnative:
        raise TypeError(f"sampler: state {name!r}: expected an array of numbers, got dtype {array.dtype}")
    return array


def _lay_out(arrays: Mapping[str, NDArray[Any]], end: int) -> tuple[dict[str, Section], int]:
    """Places for the arrays after byte `end`, each starting on its own line; and the end of the last."""
    sections = {}
    for name, array in arrays.items():
        sections[name] = Section(array.dtype.name, array.shape, -(-end // LINE) * LINE)
        end = sections[name].end
    return sections, end


def _sections_of(view: LaneView) -> dict[str, Section]:
    """The described arrays, each checked to lie in the body after the lanes."""
    segment = view.segment
    described = segment.description.get(STATE, {})
    inside = partial(_checked_section, view.geometry.nbytes, len(segment.body))
    try:
        return {name: inside(**plain) for name, plain in described.items()}
    except (TypeError, ValueError, AttributeError, SyntaxError) as error:  # SyntaxError: a dtype name with a comma
        raise SegmentCorrupt(f"{segment.path}: the saved sampler state is damaged: {error}") from None


def _checked_section(start: int, end: int, /, dtype: Any, shape: Any, offset: Any) -> Section:
    numbers = [*shape, offset]
    if not all(type(n) is int and n >= 0 for n in numbers) or len(shape) > 32:
        raise ValueError(f"expected lengths and an offset of at least 0, got {numbers}")
    if not isinstance(dtype, str) or np.dtype(dtype).kind not in _KINDS or not np.dtype(dtype).isnative:
        raise ValueError(f"expected a dtype of numbers, got {dtype!r}")
    section = Section(dtype, tuple(shape), offset)
    longest = Section(dtype, tuple(max(n, 1) for n in shape), 0)  # bounds the other lengths of an empty array too
    if not start <= offset or not max(section.end, longest.end) <= end or offset % LINE:
        raise ValueError(f"expected lines from byte {start} to {end}, got {offset} to {section.end}")
    return section
