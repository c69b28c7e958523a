"""The writing ends of a store: a learner's publisher, and the writer of a mirror."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..checks import brief, check_whole
from ..closing import Closing
from ..errors import ClosedError, StaleHandle
from ..fixed import fixed
from ..memory import File, Inside, NativeLanes, close_when_alone, one_thread
from .layout import MOST_VERSIONS, OWN, fitted_extra
from .rows import VersionedRows
from .trees import TreeWeights

if TYPE_CHECKING:
    from .modules import ModuleWeights

Weights: TypeAlias = "TreeWeights | ModuleWeights"  # a caller's weights at one end of a store


@fixed("version")
class Publisher(Closing):
    """A store's only writer; a context manager, for one thread at a time. Made by `ParameterStore.publisher`.

    Attributes:
        version: the version of the store's last publish; 0 before the first.
    """

    def __init__(self, store: VersionedRows, lanes: NativeLanes, weights: Weights, claimed: File) -> None:
        self._store = store
        self._lanes = lanes
        self._weights = weights
        self._claim = claimed
        self._closed = False
        self._inside: Inside = {}
        self.version = store.version
        self._given: dict[str, NDArray[Any]] = {}  # by name: the last value of each extra
        self._stage(weights.staged())

    def _stage(self, row: NDArray[np.uint8]) -> None:
        self._extras = self._weights.layout.extra_views(row)
        self._put(self._given)
        self._version_in_row = self._weights.layout.version_view(row)
        self._append = self._appender(row)
        self._row = row  # last, so that the next publish stages again after an earlier interrupt

    def _appender(self, row: NDArray[np.uint8]) -> Callable[[], None]:
        device_row, store = self._weights.device_row, self._store
        if device_row is None:
            return self._lanes.appender(0, row)
        begin, finish = self._lanes.appender_in_steps(0, row, store.layout.tensor_bytes)

        def append() -> None:
            ticket = begin()
            device_row.put(store.slot_array(ticket % store.slots))
            finish(ticket)

        return append

    @one_thread
    def publish(self, /, weights: Any = OWN, **extras: Any) -> int:
        """Publishes the model's current weights as one unit.

        For a module this is one copy and one atomic store. On an accelerator, the copy follows the work in its current
        stream, and is complete when the call returns. Tensors that replaced the module's, by `.to(...)`,
        `load_state_dict(assign=True)` or assignment, are moved into the row and published. Arrays of a mapping are
        first copied into one row.

        Args:
            weights: arrays to publish instead of the publisher's own mapping (not for a module): NumPy's, JAX's, or any
                that `np.asarray` takes. Arrays on the CPU are copied only once, into the row.
            extras: values by name; all of them at the publisher's first publish, later only those that changed. NaN is
                allowed.

        Returns: the new version; the store's first version is `begins_after` + 1, so 1 by default.

        Raises:
            LayoutMismatch: a tensor of the model was added or removed, or changed its name, shape or dtype.
            ValueError, TypeError: an extra is missing, unknown, of another shape or does not fit its dtype; or
                `weights` have a part that is not an array, or are given to the publisher of a module.
            ClosedError, StaleHandle: the publisher or its store was closed, or this is a forked child.
            UsedByTwoThreads: another thread is publishing.
            After an error, nothing was published and the extras are unchanged. If it interrupted the copy from an
            accelerator, the store lacks its oldest version (with one slot, its only one) until the next publish.
        """
        self._store.check_open()
        if self._closed:
            raise ClosedError("the publisher was closed")
        if self._claim.fd < 0:
            raise StaleHandle("the publisher was made before this process was forked, and belongs to its parent")
        row = self._weights.staged(weights)
        if row is not self._row:
            self._stage(row)
        if extras or len(self._given) < len(self._extras):
            self._take(extras)
        self._version_in_row[0] = max(self.version, self._store.begins_after) + 1
        self._append()
        self.version = self._lanes.committed(0)
        return self.version

    def _take(self, extras: dict[str, Any]) -> None:
        fields = self._weights.layout.extras
        if len(self._given) < len(fields) or not extras.keys() <= fields.keys():
            unknown = sorted(extras.keys() - fields.keys())
            missing = sorted(fields.keys() - self._given.keys() - extras.keys())
            if unknown or missing:
                raise ValueError(f"extras: expected {sorted(fields)}, got unknown {unknown}, missing {missing}")
        fitted = {name: fitted_extra(name, value, fields[name]) for name, value in extras.items()}
        self._given.update({name: value.copy() for name, value in fitted.items()})  # callers may change theirs
        self._put(fitted)

    def _put(self, fitted: dict[str, NDArray[Any]]) -> None:
        for name, value in fitted.items():
            self._extras[name][...] = value

    def close(self) -> None:
        """Waits until no other thread publishes, then frees the store for another publisher; the model stays usable.

        In a signal handler, the store is free once the `publish` that it interrupts has ended.
        """
        self._closed = True
        close_when_alone(self._claim, self._inside)


class MirrorWriter(Closing):
    """A mirror's only writer; a context manager, for one thread at a time. Made by `ParameterStore.mirror_writer`."""

    def __init__(self, store: VersionedRows, lanes: NativeLanes, claimed: File) -> None:
        self._store = store
        self._lanes = lanes
        self._claim = claimed
        self._inside: Inside = {}

    @one_thread
    def put(self, row: NDArray[np.uint8]) -> bool:
        """Publishes a row of the home store, uint8 [layout.nbytes], under the version in the row, as one unit.

        Returns: True; False if the mirror already has this version or a newer one, and the row was not published.

        Raises:
            ValueError: the row has another size or dtype, or no version. ClosedError: the writer or store was closed.
        """
        if self._claim.fd < 0:
            raise ClosedError("the mirror's writer was closed")
        nbytes, newest = self._store.layout.nbytes, self._store.version
        if not isinstance(row, np.ndarray) or row.dtype != np.uint8 or row.shape != (nbytes,):
            raise ValueError(f"row: expected uint8 ({nbytes},), got {brief(row)}")
        version = int(self._store.layout.version_view(row)[0])
        check_whole("row: version", version, 1, 2 * MOST_VERSIONS)
        if version > newest:
            self._lanes.appender(0, row)()
        return version > newest

    def close(self) -> None:
        """Waits until no other thread writes, then frees the mirror for another writer."""
        close_when_alone(self._claim, self._inside)
