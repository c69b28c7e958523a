"""The reading end of a store: copies the newest weights into a local model, or lends them in place."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_timeout, check_whole
from ..errors import NotEnoughData, SegmentCorrupt
from ..fixed import fixed
from ..memory import Inside, NativeLanes, at_first_use, invalidate_after_fork, one_thread
from .publisher import Weights
from .rows import VersionedRows


@dataclass(eq=False)
class InPlaceView:
    """The newest weights in place, in shared memory; made by `Subscriber.in_place`.

    Attributes:
        version: the weights' version.
        tensors: a module's tensors by name, for `torch.func.functional_call`; or a mapping's arrays, read-only and
            nested like the mapping. They are the publisher's memory: do not write to it, as a BatchNorm in training
            mode would.
        extras: copies of the extras by name, as floats and arrays.
    """

    version: int
    tensors: Mapping[str, Any]
    extras: Mapping[str, Any]
    _whole: Callable[[], bool]

    def valid(self) -> bool:
        """Returns whether all reads so far, also of extras, were of this version; final after the `with` block."""
        return self._whole()


@fixed("version", "extras")
class Subscriber:
    """Keeps a local model up to date, for one thread at a time. Made by `ParameterStore.subscriber`.

    Attributes:
        version: the version of the local model's weights; 0 before the first pull.
        extras: the extras of that version by name: a Python scalar for shape (), otherwise an array; empty before the
            first pull.
    """

    def __init__(self, store: VersionedRows, lanes: NativeLanes, local: Weights) -> None:
        self._store = store
        self._lanes = lanes
        self._local = local
        self._inside: Inside = {}
        self._arrays: list[NDArray[np.uint8]] = []
        self._slots: dict[int, tuple[Any, dict[str, NDArray[Any]]]] = {}
        self.version = 0
        self.extras: Mapping[str, Any] = {}
        invalidate_after_fork(self)

    def forked(self) -> None:
        """Makes the first pull in a forked child attach to the store again; the local model is the child's copy."""
        at_first_use(self._inside, self._store.check_open)

    @property
    def weights(self) -> Any:
        """The local model; without one, read-only arrays of the tensors by name, valid until the next pull."""
        return self._local.weights

    @property
    def newest(self) -> int:
        """The newest published version; 0 before the store's first publish."""
        return self._store._newest()[1]

    @one_thread
    def pull(self, *, timeout: float = 1.0) -> bool:
        """Copies the newest weights into the local model, whole or not at all; returns False if it has them already.

        Do not pull between a forward pass and its backward pass: autograd does not notice that weights changed. Do not
        keep views of a module's tensors (`.data`, `state_dict()`) over a pull: it may move the tensors to another row.

        Args:
            timeout: seconds to keep trying while the publisher overwrites the row being copied.

        Raises:
            TimeoutError: in each attempt, the row was overwritten. LayoutMismatch: a tensor of the local model was
            added or removed, or changed its name, shape or dtype. UsedByTwoThreads: another thread is pulling.
            ValueError: the timeout is not a number, or negative. After any of these, the model is unchanged.
        """
        check_timeout(timeout, or_none=False)
        if self._store.version == self.version:
            return False
        idle = self._idle()
        self._take(idle, self._copy_newest(idle, timeout))
        return True

    @one_thread
    def pull_version(self, version: int) -> bool:
        """Copies this version into the local model, whole or not at all.

        Args:
            version: one of the last published versions; the store holds as many as it has slots.

        Returns: True; False if the version was overwritten or not published yet, and the model is unchanged.

        Raises LayoutMismatch and UsedByTwoThreads as `pull` does.
        """
        check_whole("version", version)
        self._store.check_open()
        idle, ticket = self._idle(), self._store._ticket_of(version)
        if self._local.device_row is not None:
            whole = ticket < self._lanes.committed(0) and self._get(ticket)
        else:
            whole = self._lanes.read(0, ticket, 1, self._arrays[idle]) == 0
        if not whole:
            return False
        self._take(idle, version)
        return True

    def _idle(self) -> int:
        arrays = self._local.rows()
        if arrays is not self._arrays:
            self._readers = [self._lanes.newest_reader(0, array) for array in arrays]
            self._row_extras = [self._local.layout.extra_views(array) for array in arrays]
            self._arrays = arrays  # last, so that the next pull makes all again after an earlier interrupt
        return self._local.turn - 1

    def _take(self, idle: int, version: int) -> None:
        self._local.load()
        if self._local.device_row is not None:
            self._local.device_row.settle()  # for users of other streams
        self.extras = _copied(self._row_extras[idle])
        self.version = version

    def _copy_newest(self, idle: int, timeout: float) -> int:
        read = self._readers[idle] if self._local.device_row is None else self._get_newest
        version = self._store._until_whole(read, timeout)
        if self._store.is_mirror and version > 0:
            version = int(self._local.layout.version_view(self._arrays[idle])[0])
        if version <= 0:
            raise SegmentCorrupt(f"{self._store!r}: the lane's counters are damaged")
        return version

    def _get_newest(self) -> int | None:
        """Does what a function of `_readers` does, for a model on an accelerator."""
        committed = self._lanes.committed(0)
        return committed if committed == 0 or self._get(committed - 1) else None

    def _get(self, ticket: int) -> bool:
        """Copies a ticket's row (its weights to the accelerator); returns False if it was overwritten meanwhile."""
        is_whole, slot = self._store._whole(ticket), self._store.slot_array(ticket % self._store.slots)
        if not is_whole():  # saves a copy while a snapshot's only slot is being written
            return False
        assert self._local.device_row is not None
        self._local.device_row.get(slot)
        end = self._local.layout.tensor_bytes
        self._arrays[0][end:] = slot[end:]
        return is_whole()

    def wait(self, newer_than: int, timeout: float) -> bool:
        """Waits as `ParameterStore.wait` does."""
        return self._store.wait(newer_than, timeout)

    @contextmanager
    def in_place(self) -> Iterator[InPlaceView]:
        """Lends the newest weights without a copy. Discard results computed from them unless `view.valid()` is True.

        Raises NotEnoughData if no version was published yet.
        """
        ticket, version = self._store._newest()
        if version == 0:
            raise NotEnoughData(f"{self._store!r}: nothing was published yet")
        slot = ticket % self._store.slots
        if slot not in self._slots:
            row = self._store.slot_array(slot)
            self._slots[slot] = self._local.views(row), self._local.layout.extra_views(row)
        views, extras = self._slots[slot]
        view = InPlaceView(version, self._local.named(views), _copied(extras), self._store._whole(ticket))
        try:
            yield view
        finally:
            final = view.valid()
            view._whole = lambda: final  # later changes of the slot do not count


def _copied(extras: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: array.copy() if array.ndim else array.item() for name, array in extras.items()}
