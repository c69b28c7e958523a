"""Lanes of transitions in one segment: the common base of the replay and the trajectory queue."""

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ..checks import as_path, brief, check_timeout, check_type, check_whole, is_whole
from ..closing import ClosedAfterError, Closing
from ..errors import LayoutMismatch
from ..kernels.rows import POLICY_VERSION
from ..memory import (
    File,
    Kept,
    LaneGeometry,
    Marks,
    Put,
    Recovered,
    Segment,
    SegmentHandle,
    Shared,
    check_keeps,
    claim,
)
from ..spec import Field, Fields, TransitionSpec
from .durable import DURABLE, Durability, Durable
from .layout import LaneView, RecordLayout
from .raw_rows import RowsGate, RowsReader, RowsWriter
from .vector_writer import VectorWriter
from .writer import Writer
from .writer_base import Gate, VectorGate

MAX_ROWS = 2**32 - 1

T = TypeVar("T", bound="TransitionLanes")
W = TypeVar("W", bound=Closing)


class TransitionLanes(Shared):
    """Base of the replay and the queue: a spec, and lanes of rows with at most one writer each."""

    _spills = False  # see Segment.create
    _kept_words = 1  # of each slot, see `_kept`

    def _understand(self, segment: Segment) -> None:
        self.spec = TransitionSpec.from_dict(segment.description["spec"])
        self.lanes: int = segment.description["lanes"]
        lane_rows = segment.description["lane_rows"]
        whole = all(type(n) is int and n >= 1 for n in (self.lanes, lane_rows))
        if not whole or self._lane_rows(self.spec, self.lanes * lane_rows, self.lanes) != lane_rows:
            raise ValueError(f"lanes, lane_rows: expected values from `create`, got {self.lanes!r}, {lane_rows!r}")
        geometry, layout = self._geometry_of(segment.description), RecordLayout.of(self.spec)
        self.capacity = self.lanes * geometry.capacity
        self._mapped = LaneView(segment, geometry, geometry.bind(segment.body), layout, self.spec)
        self._ends: weakref.WeakSet[Closing] = weakref.WeakSet()  # readers and writers
        every_s = segment.description.get(DURABLE)
        self.durable = None if every_s is None else Durable(every_s)
        self._durability: Durability | None = None
        if self.durable is not None:
            self._durability = Durability(self._mapped, self.durable, self._kept())
        self.recovered: Recovered | None = None if self._durability is None else self._durability.recovered

    @classmethod
    def _lane_rows(cls, spec: TransitionSpec, capacity: int, lanes: int) -> int:
        check_type("spec", spec, TransitionSpec)
        for label, value in (("lanes", lanes), ("capacity", capacity)):
            check_whole(label, value)
        if not lanes <= capacity <= MAX_ROWS:
            raise ValueError(f"capacity: expected from {lanes} rows, one a lane, to {MAX_ROWS}, got {capacity}")
        lane_rows = int(capacity) // int(lanes) // spec.state_every * spec.state_every
        if lane_rows == 0:
            least = f"at least {spec.state_every} rows a lane, one interval of the stored states"
            raise ValueError(f"capacity: expected {least}, got {capacity} in {lanes} lanes")
        return lane_rows

    @classmethod
    def _create(
        cls: type[T],
        spec: TransitionSpec,
        lanes: int,
        lane_rows: int,
        name: str,
        path: str | os.PathLike[str] | None,
        durable: Durable | None = None,
        **described: Any,
    ) -> T:
        check_type("durable", durable, Durable, or_none=True)
        if durable is not None:
            if path is None:
                raise ValueError(f"path: expected an ordinary file for a durable {cls.kind}, got None")
            check_keeps(as_path("path", path).absolute())
            described[DURABLE] = float(durable.every_s)
        description = {"kind": cls.kind, "spec": spec.to_dict(), "lanes": int(lanes), "lane_rows": lane_rows}
        description |= described
        fill = partial(cls._fill, description)
        nbytes = cls._body_bytes(description)
        segment = Segment.create(name, description, nbytes, path, fill, spill=cls._spills, keep=False)
        created = cls(segment)
        try:
            if created._durability is not None:
                created._durability.begin()
            if path is not None:
                segment.keep_name()
        except BaseException:
            with suppress(OSError):  # of the disk that has just failed
                created.close()
            raise
        return created

    @classmethod
    def attach(cls: type[T], handle: SegmentHandle | str | os.PathLike[str], spec: TransitionSpec | None = None) -> T:
        """Attaches to an existing object by its handle or its file's path.

        Raises:
            SegmentNotFound, StaleHandle, SegmentCorrupt: the object is gone, or the path leads to something else.
            LayoutMismatch: `spec` was given, and differs from the spec at creation.
        """
        check_type("spec", spec, TransitionSpec, or_none=True)
        attached = super().attach(handle)
        if spec is not None and spec != attached.spec:
            attached.close()
            raise LayoutMismatch(f"{attached._segment.path}: {spec_difference(attached.spec, spec)}")
        return attached

    def rows_reader(self) -> RowsReader:
        """Returns a reader of raw rows, for sending them elsewhere; a queue then has no other reader."""
        self._segment.check_open()
        return RowsReader(self._mapped)

    def vector_writer(self, lanes: Iterable[int] | None = None, *, timeout: float | None = None) -> VectorWriter:
        """Returns a writer of several lanes, which adds a row to each lane in one call: for vectorised environments.

        It holds each lane exclusively, as `writer` does, so no lane may be shared. In a queue with "wait", a call waits
        until every one of its lanes has room, and only then writes. With "drop_newest", it leaves out the rows whose
        lanes have no room: their tickets are -1, and the next rows of their lanes begin episodes.

        Args:
            lanes: different lane numbers, in the order of the rows; None: every lane.
            timeout: see `writer`.

        Raises:
            LaneBusy: one of the lanes has a living writer; then no lane is held.
            ValueError: a lane does not exist or comes twice, or the timeout is negative.
        """
        numbers = self._checked_lanes(range(self.lanes) if lanes is None else lanes)
        gates = self._gates(numbers)
        gate: VectorGate | None = gates and gates.wait_each
        return self._opened(lambda lock: VectorWriter(self._mapped, numbers, lock, timeout, gate), numbers, timeout)

    def rows_writer(self, lanes: Iterable[int]) -> RowsWriter:
        """Returns a writer of rows from other replays or queues of this spec; the writer holds these lanes.

        Raises LaneBusy if one of the lanes has a living writer, ValueError if a lane does not exist or comes twice.
        """
        numbers = self._checked_lanes(lanes)
        gates = self._gates(numbers)
        gate: RowsGate | None = gates and gates.room_for
        return self._opened(lambda lock: RowsWriter(self._mapped, lock, gate), numbers)

    def close(self) -> None:
        """Closes the writers and the queue's reader that this object made, and releases the memory.

        A segment in /dev/shm disappears when its creator closes it. A durable segment is put on disk a last
        time. Raises the error, if any, that kept earlier rows from the disk.
        """
        try:
            if self._durability is not None:
                self._durability.close()
        finally:
            try:
                for end in list(self._ends):
                    end.close()
            finally:
                super().close()

    @property
    def inserted(self) -> int:
        """Transitions ever added to all lanes."""
        self._segment.check_open()
        return self._mapped.native.inserted()

    def newest_version(self) -> int:
        """Returns the highest `policy_version` of the lanes' newest rows; 0 without rows."""
        self._segment.check_open()
        native = self._mapped.native
        newest = (native.record(lane, native.committed(lane) - 1) for lane in range(self.lanes))
        return max((int(record.view(np.uint32)[POLICY_VERSION]) for record in newest if record is not None), default=0)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._segment.path} capacity={self.capacity} lanes={self.lanes}>"

    @classmethod
    def _geometry_of(cls, description: dict[str, Any]) -> LaneGeometry:
        layout = RecordLayout.of(TransitionSpec.from_dict(description["spec"]))
        lanes, lane_rows = description["lanes"], description["lane_rows"]
        slots, kept = cls._slots(description), cls._kept_words
        return LaneGeometry(lanes, lane_rows, layout.columns, layout.every, slots, kept=kept)

    @classmethod
    def _body_bytes(cls, description: dict[str, Any]) -> int:
        geometry = cls._geometry_of(description)
        return Marks.body_bytes(geometry) if DURABLE in description else geometry.nbytes

    @classmethod
    def _fill(cls, description: dict[str, Any], put: Put) -> None:
        """Writes the words of a new segment's body that are not 0."""
        if DURABLE in description:
            put(*Marks.first(cls._geometry_of(description)))

    @classmethod
    def _slots(cls, description: dict[str, Any]) -> int:
        raise NotImplementedError

    def _kept(self) -> Kept | None:
        """Returns the argument `kept` of `Flushing`; None if a mark needs only the slots' first words."""
        return None

    def _gates(self, lanes: list[int]) -> Any:
        """Returns the gates of a writer of these lanes: an object with `wait`, `wait_each` and `room_for`; or None."""
        raise NotImplementedError

    def _open_writer(self, lane: int, timeout: float | None, shared: bool = False) -> Writer:
        self._segment.check_open()
        if not self._has_lane(lane):
            raise ValueError(f"lane: expected 0 to {self.lanes - 1}, got {lane!r}")
        lane, gates = int(lane), self._gates([int(lane)])
        gate: Gate | None = gates and gates.wait
        return self._opened(
            lambda lock: Writer(self._mapped, lane, lock, shared, timeout, gate), [lane], timeout, shared
        )

    def _opened(
        self, make: Callable[[File], W], lanes: list[int], timeout: float | None = None, shared: bool = False
    ) -> W:
        """Claims these lanes, and returns the writer that `make` makes from the claim."""
        check_timeout(timeout)
        lock = claim(self._segment, self._mapped.native, *lanes, shared=shared)
        with ClosedAfterError(lock):
            writer = make(lock)
        self._ends.add(writer)
        return writer

    def _checked_lanes(self, lanes: Iterable[int]) -> list[int]:
        self._segment.check_open()
        numbers = list(lanes) if isinstance(lanes, Iterable) else []
        if not numbers or not all(map(self._has_lane, numbers)) or len(set(numbers)) < len(numbers):
            raise ValueError(f"lanes: expected different numbers from 0 to {self.lanes - 1}, got {brief(lanes)}")
        return [int(lane) for lane in numbers]

    def _has_lane(self, lane: object) -> bool:
        return is_whole(lane) and 0 <= lane < self.lanes


def spec_difference(has: TransitionSpec, got: TransitionSpec) -> str:
    """Describes the first field in which two specs differ, with both values."""
    ours, theirs = dict(_parts(has)), dict(_parts(got))
    label = next(label for label in ours | theirs if ours.get(label) != theirs.get(label))
    return f"spec {label}: expected {ours.get(label, 'none')}, got {theirs.get(label, 'none')}"


def _parts(spec: TransitionSpec) -> Iterator[tuple[str, str]]:
    for role in ("obs", "action", "extras", "reward"):
        yield from _labelled(role, getattr(spec, role))
    yield "next_obs", str(spec.next_obs)


def _labelled(label: str, form: Fields) -> Iterator[tuple[str, str]]:
    if isinstance(form, Field):
        yield label, form.describe()
        return
    for name, part in form.items():  # not by `leaves`: a dict "a" of a "b" and a Field "a.b" have one path
        yield from _labelled(f"{label}[{name!r}]", part)
