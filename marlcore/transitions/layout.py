"""Describes where a lane's row holds a transition's fields, and how a process has mapped the lanes.

Column 0 holds the records. A record begins with a 16-byte head (`struct mc_row` in csrc/api.h), which ends with the
reward. The rest of a vector reward follows, then the fields of up to INLINE_BYTES each, so that a small transition fits
into one cache line. A larger field, such as a frame, has its own column. A field that is stored at intervals also has
its own column, with one row per interval.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..memory import LaneGeometry, NativeLanes, Segment
from ..spec import Field, TransitionSpec

HEAD_BYTES = 16
REWARD_OFFSET = 12
INLINE_BYTES = 256


@dataclass(frozen=True)
class Place:
    """One stored array: `role` is "obs", "action", "extra" or "next_obs"; `name` is the field's path in it."""

    role: str
    name: str
    field: Field
    column: int
    offset: int

    def views(self, records: NDArray[np.uint8]) -> NDArray[Any]:
        """Returns the field in each of n records, uint8 [n, record bytes], as a writable view [n, *shape]."""
        dtype = np.dtype({"names": ["f"], "formats": [(self.field.numpy, self.field.shape)],
                          "offsets": [self.offset], "itemsize": records.shape[1]})  # fmt: skip
        return records.view(dtype)[:, 0]["f"]


@dataclass(frozen=True)
class RecordLayout:
    """The places of a spec's fields."""

    places: tuple[Place, ...]
    record_bytes: int  # of column 0, a multiple of 8
    columns: tuple[int, ...]  # bytes of a row in each column
    every: tuple[int, ...]  # tickets that share a row of each column

    @classmethod
    def of(cls, spec: TransitionSpec) -> "RecordLayout":
        """Returns the layout of a spec; equal specs have equal layouts, whatever the order of their fields."""
        roles = {"obs": spec.obs_fields, "next_obs": spec.obs_fields if spec.next_obs else {}}
        roles |= {"action": spec.action_fields, "extra": spec.extra_fields}
        fields = [(role, *named) for role, parts in roles.items() for named in sorted(parts.items())]
        inline = [entry for entry in fields if _is_inline(entry[2])]
        offsets, end = _pack([field for _, _, field in inline], REWARD_OFFSET + spec.reward.nbytes)
        places = [Place(*entry, 0, offset) for entry, offset in zip(inline, offsets, strict=True)]
        columns, every = [end], [1]
        for entry in fields:
            if not _is_inline(entry[2]):
                places.append(Place(*entry, len(columns), 0))
                columns.append(entry[2].nbytes)
                every.append(entry[2].every)
        return cls(tuple(places), end, tuple(columns), tuple(every))

    def of_role(self, role: str) -> list[Place]:
        return [place for place in self.places if place.role == role]


@dataclass(frozen=True)
class LaneView:
    """All lanes of a replay or queue, or some consecutive lanes, as this process has them mapped."""

    segment: Segment
    geometry: LaneGeometry
    native: NativeLanes
    layout: RecordLayout
    spec: TransitionSpec

    def of(self, geometry: LaneGeometry) -> "LaneView":
        """Returns a view of other lanes of the same segment, in the same mapping."""
        return replace(self, geometry=geometry, native=geometry.bind(self.segment.body))


def rewards_of(spec: TransitionSpec, records: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Returns the rewards of n records, uint8 [n, record bytes], as a writable view [n] or [n, components]."""
    floats = records.view(np.float32)[:, REWARD_OFFSET // 4 :]
    return floats[:, : spec.reward.shape[0]] if spec.reward.shape else floats[:, 0]


def _is_inline(field: Field) -> bool:
    return field.nbytes <= INLINE_BYTES and field.every == 1


def _pack(fields: list[Field], end: int) -> tuple[list[int], int]:
    """Returns the fields' offsets behind a record's first `end` bytes, and the record's size in bytes.

    The widest items come first, for alignment.
    """
    offsets = [0] * len(fields)
    for i in sorted(range(len(fields)), key=lambda i: -fields[i].numpy.itemsize):
        alignment = min(fields[i].numpy.itemsize, 8)
        end = -(-end // alignment) * alignment
        offsets[i] = end
        end += fields[i].nbytes
    return offsets, -(-end // 8) * 8
