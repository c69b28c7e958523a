"""A named sampler's state, kept in a file beside a durable replay.

The sampler's own thread takes the state while it draws, at most every `every_s` seconds; a second thread writes it, so
that drawing never waits for the disk. The file replaces the earlier one whole. The state knows only rows below the
watermark, which no power cut takes from the replay: otherwise later rows with the same tickets would get the priorities
of rows that were lost.
"""

import re
import threading
import time
from contextlib import closing, suppress
from glob import escape
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..checks import brief
from ..closing import ClosedAfterError, Closing
from ..errors import LaneBusy, SegmentNotFound, UsedByTwoThreads
from ..memory import File, Inside, Put, Segment, name_lock, one_thread, replace_file
from ..transitions import Durability, LaneView
from .row_sampler import RowSampler
from .saving import STATE, arrays_in, place_arrays, put_arrays

State = dict[str, NDArray[Any]]
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_AT, _SUFFIX = "@", ".sampler"  # the former is in no sampler's name
_KIND, _OF, _PRIORITIES = "sampler_state", "of", "masses"


class KeptState(Closing):
    """Writes the state of the sampler `rows` at intervals and at `close`; the sampler uses the same guard."""

    def __init__(self, name: str, view: LaneView, durability: Durability, rows: RowSampler) -> None:
        """Restores the state that an earlier sampler of this name left.

        Raises:
            ValueError: the name is too long or has forbidden characters, or the earlier sampler had other options.
            LaneBusy: a living process has a sampler of this name.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"name: expected at most 100 letters, digits, '_', '.' and '-', got {brief(name)}")
        replay = durability.path
        self._segment, self._path = view.segment, replay.with_name(f"{replay.name}{_AT}{name}{_SUFFIX}")
        self._every_s, self._marks = durability.options.every_s, durability.marks
        self._rows = rows
        self._inside: Inside = {}
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._due = time.monotonic() + self._every_s
        claim = view.segment.lock(name_lock(view.geometry, name))
        if claim is None:
            raise LaneBusy(f"{view.segment.path}: the sampler {name!r} is in use, here or in another process")
        self._claim: File = claim
        with ClosedAfterError(claim):
            self._restore()

    def _restore(self) -> None:
        try:
            segment = Segment.attach(self._path, writable=False)
        except SegmentNotFound:
            return
        with closing(segment):
            if segment.description.get(_OF) != self._segment.nonce:  # of a replay that had this path before
                return
            segment.verify()
            state = {name: array.copy() for name, array in arrays_in(segment, 0).items()}
        if _PRIORITIES in state and _PRIORITIES not in self._rows.state_dict():  # the next save would drop them
            expected = "a prioritized sampler, like the last sampler of this name"
            raise ValueError(f"{self._path}: expected {expected}, got a uniform sampler")
        try:
            self._rows.load_state_dict(state)
        except ValueError as error:
            raise ValueError(f"{self._path}: {error}; remove the file to begin anew") from None

    def look(self) -> None:
        """Begins to write the state if it is time to, and the earlier write has ended. Raises that write's error."""
        if time.monotonic() < self._due or (self._thread is not None and self._thread.is_alive()):
            return
        if self._claim.fd < 0:  # in a forked child
            return
        self._raise_error()
        self._due = time.monotonic() + self._every_s
        state = self._rows.state_below(self._marks.durable())
        self._thread = threading.Thread(target=self._try_to_write, args=(state,), name="marlcore-state", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Writes the last state, unless another thread is drawing, and gives the name back. Raises a write's error."""
        if self._claim.fd < 0:
            return
        with ClosedAfterError(self._claim):
            if self._thread is not None:
                self._thread.join()
            self._raise_error()
            with suppress(UsedByTwoThreads):  # the earlier state stays
                self._write(self._last_state())
        self._claim.close()

    @one_thread
    def _last_state(self) -> State:
        return self._rows.state_below(self._marks.durable())

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _try_to_write(self, state: State) -> None:
        try:
            self._write(state)
        except Exception as error:
            self._error = error

    def _write(self, state: State) -> None:
        if not self._segment.is_at(self._segment.path):  # the replay was unlinked
            return
        places, end = place_arrays(state, 0)
        description = {"kind": _KIND, _OF: self._segment.nonce, STATE: places}

        def fill(put: Put) -> None:
            put_arrays(put, state, places)

        replace_file(self._path, description, end, fill)


def unlink_states(replay: Path) -> None:
    """Removes the files of the samplers of the replay at this path."""
    for file in replay.parent.glob(f"{escape(replay.name)}{_AT}*{_SUFFIX}"):
        # Otherwise it belongs to a replay of a longer name.
        if file.name.count(_AT) == replay.name.count(_AT) + 1:
            file.unlink(missing_ok=True)
