"""A writer of all lanes of a replay at once: it stages a step of each lane by one copy per field, then appends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import StaleHandle
from ..memory import BOUNDARY, TRUNCATED, LaneClaim, NativeLanes, NativeWriter, invalidate_after_fork, one_thread
from ..transitions import REWARD_OFFSET, RecordLayout
from .rows import Views, frames_of, view_of
from .steps import Step, only, put

__all__ = ["LanesWriter"]


class LanesWriter:
    """Appends one step to each lane at a time; the newest step stays staged. Only one thread at a time may add.

    Args:
        lanes, layout, claims: of the replay, and the rights to write to its lanes, in lane order.

    Attributes:
        step: views of the newest step, [lanes, *shape]; zeros before the first.
    """

    def __init__(self, lanes: NativeLanes, layout: RecordLayout, claims: Sequence[LaneClaim]) -> None:
        self._claims = claims
        self._forked = False
        self._inside: dict[int, None] = {}  # see guard.py
        records = np.zeros((len(claims), 2, layout.record_bytes), np.uint8)  # of rows and of their boundary rows
        frames = frames_of(layout, len(claims)), frames_of(layout, len(claims))
        self._natives = [NativeWriter(lanes, lane, pair) for lane, pair in enumerate(records)]
        self._keep = [
            native.set_frame(column, frame[lane], bool(final))
            for lane, native in enumerate(self._natives)
            for final in (0, 1)
            for column, frame in enumerate(frames[final], 1)
        ]
        ends = np.zeros(len(claims), np.uint8)

        def views(role: str, final: int) -> Views:
            places = sorted(layout.of_role(role), key=lambda place: place.name)
            return {one.name: view_of(one, records[:, final], frames[final]) for one in places}

        obs, next_obs, action = views("obs", 0), views("obs", 1), views("action", 0)["action"]
        reward = records[:, 0].view(np.float32)[:, REWARD_OFFSET // 4]
        self.step = Step(only(obs), only(next_obs), action, reward, ends)
        self._fields = len(obs)
        self._next_obs = [b""] * self._fields
        self._staged = [*obs.values(), *next_obs.values(), action, reward]
        self._ends: Any = ends.data
        self._add_row = self._natives[0].add_row
        self._raws = [native.raw for native in self._natives]
        invalidate_after_fork(self)

    @one_thread
    def add(self, rows: Sequence[NDArray[Any]], ends: bytes) -> list[int]:
        """Appends one step to each lane; returns their tickets.

        Args:
            rows: arrays [lanes, *shape] of the spec's shapes and dtypes: the observation's fields by name, those of the
                next observation, the action and the reward, which is finite.
            ends: for each lane TERMINATED | BOUNDARY, TRUNCATED | BOUNDARY, or 0 if the episode continues.

        Raises: ClosedError: the replay was closed. StaleHandle: in a forked child. UsedByTwoThreads: see guard.py.
        """
        staged = self._staged
        for k, array in enumerate(rows):
            staged[k][...] = array
        self._next_obs = [array.tobytes() for array in rows[self._fields : 2 * self._fields]]
        self._ends[:] = ends
        tickets = [*map(self._add_row, self._raws, ends)]
        if min(tickets) < 0:
            raise self._failure(min(tickets))
        return tickets

    def gaps(self, obs: Sequence[NDArray[Any]]) -> list[int]:
        """Lanes whose episode continues but whose observations differ, bitwise, from the newest step's next ones.

        Args:
            obs: arrays [lanes, *shape]: the observation's fields by name.
        """
        came = [array.tobytes() for array in obs]
        if came == self._next_obs:
            return []
        pairs = [(one, two, len(one) // len(self._ends)) for one, two in zip(came, self._next_obs, strict=True)]
        return [
            lane
            for lane, end in enumerate(self._ends)
            if not end and any(one[lane * n : lane * n + n] != two[lane * n : lane * n + n] for one, two, n in pairs)
        ]

    @one_thread
    def add_cut_off(self, lane: int) -> int:
        """Appends a lane's newest step again, as a truncated episode of its own; returns its ticket."""
        native = self._natives[lane]
        native.new_episode()
        ticket: int = native.add_row(native.raw, TRUNCATED | BOUNDARY)
        if ticket < 0:
            raise self._failure(ticket)
        return ticket

    def restore(self, step: Step) -> None:
        """Stages a `step` of another process, whose rows these lanes hold; no observation follows it."""
        for staged, saved in zip(self.step, step, strict=True):
            put(staged, saved)

    def close(self) -> None:
        """Releases the lanes; repeated calls are harmless."""
        for native, claim in zip(self._natives, self._claims, strict=True):
            native.close()
            claim.release()

    def forked(self) -> None:
        """In a forked child: the lanes remain the parent's."""
        for native in self._natives:
            native.close()
        self._forked = True

    def _failure(self, code: int) -> Exception:
        if self._forked:
            return StaleHandle("the buffer was made before a fork; its lanes are the parent's")
        return NativeWriter.fail(code)
