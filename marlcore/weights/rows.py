"""The rows of a store and their versions, which writers and readers share."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..checks import check_timeout, check_whole
from ..errors import NotEnoughData, TimedOut
from ..memory import Event, LaneGeometry, Segment, Shared, Words, sleep_until
from .layout import MOST_VERSIONS, RowLayout

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Mode = Literal["snapshot", "double_buffer", "triple_buffer"]
SLOTS: dict[str, int] = {"snapshot": 1, "double_buffer": 2, "triple_buffer": 3}
_MOST_SLOTS = 2**32
_LONGEST_PAUSE_S = 1e-3  # between attempts to copy a row that the publisher keeps overwriting


class VersionedRows(Shared):
    """A lane whose rows are whole models. A row's version is its number, or in a mirror the version in the row."""

    kind = "parameter store"
    _attaches_anew = True

    def _understand(self, segment: Segment) -> None:
        self.mode: Mode | int = segment.description["mode"]
        self.slots = slots_of(self.mode)
        self.begins_after: int = segment.description["begins_after"]
        check_whole("begins_after", self.begins_after, 0, MOST_VERSIONS)
        self.is_mirror: bool = segment.description["is_mirror"] is True
        self.layout = RowLayout.from_dict(segment.description)
        self._geometry = LaneGeometry(1, self.slots, (self.layout.nbytes,))
        self._lanes = self._geometry.bind(segment.body)
        self._event = Event(segment.body)
        self._versions = Words(segment.body[self._geometry.column_offset(0) + self.layout.version_offset :])

    @property
    def description(self) -> dict[str, Any]:
        """The store's description for `create_mirror`: a dict of JSON types."""
        return {**self._segment.description}

    @property
    def version(self) -> int:
        """The newest published version; 0 before this store's first publish."""
        return self._newest()[1]

    def _newest(self) -> tuple[int, int]:
        """Returns the newest row's ticket and version; the version is 0 before this store's first publish."""
        self._segment.check_open()
        committed = self._lanes.committed(0)
        if committed <= self.begins_after:
            return committed - 1, 0
        if not self.is_mirror:
            return committed - 1, committed
        while True:  # repeats if a row was committed meanwhile; only then the row that was read may be overwritten
            version = self._version_at(committed - 1)
            previous, committed = committed, self._lanes.committed(0)
            if committed == previous:
                return committed - 1, version

    def _version_at(self, ticket: int) -> int:
        return self._versions.load(ticket % self.slots * (self.layout.nbytes // 8))

    def _ticket_of(self, version: int) -> int:
        """Returns the ticket of a version; the next ticket if a mirror lacks the version."""
        if not self.is_mirror:
            return version - 1
        committed = self._lanes.committed(0)
        held = range(max(0, committed - self.slots), committed)
        return next((ticket for ticket in held if self._version_at(ticket) == version), committed)

    def _whole(self, ticket: int) -> Callable[[], bool]:
        """Returns a function that returns whether a ticket's row is still whole, so all reads so far are valid."""
        lapped = self._lanes.validator(np.zeros(1, np.int64), np.array([ticket]), np.zeros(1, np.uint8))
        return lambda: lapped(1) == 0

    def copy_newest(self, copy: Callable[[NDArray[np.uint8]], T], timeout: float = 1.0) -> tuple[int, T]:
        """Copies the newest row out of shared memory, whole, for a caller that moves rows and needs no model.

        Args:
            copy: a function of the row in shared memory, uint8 [layout.nbytes], read-only, which it must not keep. It
                is called again, with the newest row, if the publisher overwrote the row during the call.
            timeout: seconds to keep trying.

        Returns: the version, and the result of `copy`.

        Raises:
            NotEnoughData: no version was published yet. TimeoutError: in each attempt, the row was overwritten.
            ValueError: the timeout is not a number, or negative.
        """
        check_timeout(timeout, or_none=False)

        def attempt() -> tuple[int, T] | None:
            ticket, version = self._newest()
            if version == 0:
                raise NotEnoughData(f"{self!r}: nothing was published yet")
            copied = self._copy_of(ticket, copy)
            return None if copied is None else (version, copied)

        return self._until_whole(attempt, timeout)

    def copy_next(self, newer_than: int, copy: Callable[[NDArray[np.uint8]], T]) -> tuple[int, T] | None:
        """Copies the oldest version after `newer_than` that the store still holds; not for mirrors.

        `copy` is as for `copy_newest`, and must not return None.

        Returns: the version, and the result of `copy`; or None if the store holds no later version.
        """
        newest = self.version
        for version in range(max(newer_than, self.begins_after, newest - self.slots) + 1, newest + 1):
            copied = self._copy_of(self._ticket_of(version), copy)
            if copied is not None:
                return version, copied
        return None

    def _copy_of(self, ticket: int, copy: Callable[[NDArray[np.uint8]], T]) -> T | None:
        is_whole, row = self._whole(ticket), self.slot_array(ticket % self.slots)
        row.flags.writeable = False
        copied = copy(row)
        return copied if is_whole() else None

    def _until_whole(self, attempt: Callable[[], T | None], timeout: float) -> T:
        """Calls `attempt` until it returns a result; None means that the row was overwritten. Raises TimeoutError."""
        deadline = monotonic() + timeout
        pause, attempts = 0.0, 1
        while (result := attempt()) is None:
            if not monotonic() < deadline:
                raise TimedOut(
                    f"{self!r}: each of {attempts} reads in {timeout} s was lapped: the publisher overwrites "
                    "the slot before it is copied, or died during a publish; give the store more slots "
                    "(triple_buffer) or publish less often"
                )
            sleep(pause)
            pause, attempts = min(2 * pause + 1e-6, _LONGEST_PAUSE_S), attempts + 1
        return result

    def wait(self, newer_than: int, timeout: float) -> bool:
        """Sleeps until the store's version exceeds `newer_than`, at most `timeout` seconds; returns whether it does.

        Raises ValueError if the timeout is not a number, or negative.
        """
        check_timeout(timeout, or_none=False)
        most = 1 if self.is_mirror else newer_than + 1  # one row of a mirror may bring many versions

        def missing() -> int:
            return max(0, min(newer_than + 1 - self.version, most))

        return sleep_until(missing, self._event, monotonic() + timeout, self.check_open)

    def slot_tensor(self, slot: int) -> "torch.Tensor":
        """Returns `slot_array` as a tensor."""
        import torch

        return torch.from_numpy(self.slot_array(slot))

    def slot_array(self, slot: int) -> NDArray[np.uint8]:
        """Returns a slot's row in shared memory, uint8 [layout.nbytes], perhaps torn; only the publisher may write."""
        self.check_open()
        if not 0 <= slot < self.slots:
            raise ValueError(f"slot: expected 0 to {self.slots - 1}, got {slot!r}")
        start = self._geometry.column_offset(0) + slot * self.layout.nbytes
        return self._segment.body[start : start + self.layout.nbytes]

    def __repr__(self) -> str:
        kind = "mirror" if self.is_mirror else "ParameterStore"
        return f"<{kind} {self._segment.path} mode={self.mode} row={self.layout.nbytes}>"


def slots_of(mode: Any) -> int:
    if isinstance(mode, str) and mode in SLOTS:
        return SLOTS[mode]
    if not isinstance(mode, (int, np.integer)) or isinstance(mode, bool) or not 1 <= mode <= _MOST_SLOTS:
        raise ValueError(f"mode: expected {', '.join(SLOTS)} or a number of slots, got {mode!r}")
    return int(mode)
