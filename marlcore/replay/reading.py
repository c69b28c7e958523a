"""Reads what a replay holds, without a sampler: chosen rows, whole episodes, or all rows in order."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..errors import NotHeld
from ..kernels import reading as kernels
from ..kernels.rows import HI, PLACE
from ..memory import BOUNDARY
from ..transitions import Batch, InOrder, LaneView, ReadPlan, Window
from .prioritized import checked_index

Ints = NDArray[np.int64]


class RowReader:
    """Copies chosen transitions or sequences into batches, and validates the copies."""

    def __init__(self, view: LaneView, window: Window) -> None:
        self._view, self._plan = view, ReadPlan(view, window, 1)

    def read(self, index: Ints) -> Batch:
        """Returns the rows that `index`, int64 [n], lists, in its order; leaves out rows that are not held whole."""
        self._view.segment.check_open()
        d = self._plan
        d.resize(_room(len(index)))
        memory, rows = d.memory(), np.arange(len(index))
        while True:
            d.read_windows()
            filled = kernels.read(d.plan, d.columns, memory.address, rows, index)
            lapped = d.lapped(filled)
            if not len(lapped):
                return memory.batch(filled)
            index = np.delete(memory.fields["index"][:filled], lapped)

    def episodes(self) -> Ints:
        """Returns the lane, the first ticket and the length of each episode held whole, int64 [3, n], oldest first."""
        self._view.segment.check_open()
        d, found = self._plan, np.zeros((3, 0), np.int64)
        d.read_windows()
        while (count := kernels.find_episodes(d.plan, found)) > found.shape[1]:
            found = np.zeros((3, count), np.int64)
        found = found[:, :count]
        written_since = d.windows[HI, found[0]] - found[1]
        return found[:, np.argsort(-written_since, kind="stable")]


def read_rows(view: LaneView, window: Window, index: Any, missing: str, kept: dict[Any, RowReader]) -> Batch:
    """Implements `ReplayBuffer.read`; `kept` has the last reader, since making a reader takes longer than a read."""
    if missing not in ("raise", "skip"):
        raise ValueError(f"missing: expected 'raise' or 'skip', got {missing!r}")
    window.check(view.spec, view.geometry.capacity)
    wanted, kind = checked_index(index), (window, view.geometry)
    reader = kept.pop(kind, None) or RowReader(view, window)  # two threads never take the same one
    batch = reader.read(wanted)
    kept.clear()
    if len(wanted) <= _KEPT:
        kept[kind] = reader
    if missing == "raise" and len(batch) < len(wanted):
        lost = wanted[~np.isin(wanted, batch.index)]
        ticket, lane = divmod(int(lost[0]), view.geometry.lanes)
        got = f"{len(lost)} other rows, such as {lost[0]}, ticket {ticket} of lane {lane}"
        record = view.native.record(lane, ticket)
        if record is not None and record.view(np.uint32)[PLACE] >> 24 & BOUNDARY:
            got += ", which holds an episode's final_obs"
        raise NotHeld(f"index: expected rows that {view.segment.path} holds whole, got {got}")
    return batch


def read_episodes(view: LaneView, window: Window) -> Iterator[Batch]:
    """Implements `ReplayBuffer.episodes`."""
    if view.spec.next_obs:
        raise ValueError("episodes: expected a spec without next_obs, since rows with it do not follow one another")
    window.check(view.spec, view.geometry.capacity)
    reader, lanes = RowReader(view, window), view.geometry.lanes
    found = reader.episodes()

    def read() -> Iterator[Batch]:
        for lane, first, length in found.T.tolist():
            batch = reader.read((first + np.arange(length)) * lanes + lane)
            if len(batch) == length:
                yield batch

    return read()


def read_batches(view: LaneView, window: Window, batch_size: int) -> Iterator[Batch]:
    """Implements `ReplayBuffer.batches`."""
    check_whole("batch_size", batch_size)
    window.check(view.spec, view.geometry.capacity)
    rows = InOrder(view, window, int(batch_size))
    plan, begin = rows.plan, np.zeros_like(rows.next)
    plan.read_windows()
    end = plan.windows[HI].copy()
    rows.crowded[:] = 1

    def prepare() -> None:
        np.minimum(plan.windows[HI], end, out=plan.windows[HI])
        rows.next[:] = begin

    def read() -> Iterator[Batch]:
        filled = batch_size
        while filled == batch_size:
            view.segment.check_open()
            memory = plan.memory()
            filled, _, _ = rows.copy_whole(memory, prepare)
            begin[:] = rows.next
            if filled:
                yield memory.batch(filled)

    return read()


_KEPT = 1024  # rows of a read whose memory may stay for the next one


def _room(rows: int) -> int:
    """Returns the size of the memory for a batch, a power of 2 or a multiple of 1,024, so that few sizes serve all."""
    step = min(1024, 1 << max(0, rows - 1).bit_length())
    return max(1, -(-rows // step) * step)
