"""The parameter store: a learner publishes its weights; actors copy the newest, or read them in place.

A store is one lane whose rows are whole models: publishing appends a row, readers use the newest row, and the version
is the lane's committed count. Readers validate every read, whatever the number of slots.

A mirror, such as a store on another node, has rows of its home store, perhaps not all: the version is in the row.
"""

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..checks import brief, check_timeout, check_whole
from ..closing import ClosedAfterError, Closing
from ..errors import ClosedError, LaneBusy, MarlcoreError, NotEnoughData, SegmentCorrupt, TimedOut
from ..memory import (
    Event,
    File,
    LaneGeometry,
    NativeLanes,
    Put,
    Segment,
    Shared,
    Words,
    claim,
    close_when_alone,
    one_thread,
    sleep_until,
)
from ..spec import Field
from .layout import OWN, RowLayout, TensorSpec, extra_field, fitted_extra
from .trees import TreeWeights, tree_specs

if TYPE_CHECKING:
    import torch

    from .modules import ModuleWeights

T = TypeVar("T")
Mode = Literal["snapshot", "double_buffer", "triple_buffer"]
Model: TypeAlias = "torch.nn.Module | Mapping[Any, Any] | Sequence[Any]"  # arrays in mappings, lists and tuples
Weights: TypeAlias = "TreeWeights | ModuleWeights"  # a caller's weights at one end of a store
SLOTS: dict[str, int] = {"snapshot": 1, "double_buffer": 2, "triple_buffer": 3}
_MOST_VERSIONS = 2**61  # half of a lane's largest count, so that as many more can follow
_MOST_SLOTS = 2**32
_LONGEST_PAUSE_S = 1e-3  # between attempts to copy a row that the publisher overwrites


class ParameterStore(Shared):
    """Versions of one model's weights in shared memory: one publisher, any number of subscribers, no locks between.

    Make it with `create` and pass it, or its `handle`, to other processes: unpickling a ParameterStore attaches to the
    same memory. After a fork, attach to the handle.

    A model is a torch module, or a mapping of arrays by name; mappings may nest, and hold lists and tuples. A row holds
    the extras and, in their own dtypes, a mapping's arrays or a module's parameters and buffers: tied tensors once,
    non-persistent buffers too. With n slots, a read is discarded if the n-th publish after it begins before it ends.

    Attributes:
        mode: "snapshot" (1 slot), "double_buffer" (2) or "triple_buffer" (3); or the number of slots.
        slots: versions that the store holds.
        layout: the places of the tensors and extras in a row.
        begins_after: the version that the first publish follows; 0 unless the store continues another one.
        is_mirror: whether its rows and versions are another store's; see `create_mirror`.
    """

    kind = "parameter store"

    def _understand(self, segment: Segment) -> None:
        self.mode: Mode | int = segment.description["mode"]
        self.slots = _slots_of(self.mode)
        self.begins_after: int = segment.description["begins_after"]
        check_whole("begins_after", self.begins_after, 0, _MOST_VERSIONS)
        self.is_mirror: bool = segment.description["is_mirror"] is True
        self.layout = RowLayout.from_dict(segment.description)
        self._geometry = LaneGeometry(1, self.slots, (self.layout.nbytes,))
        self._lanes = self._geometry.bind(segment.body)
        self._event = Event(segment.body)
        self._versions = Words(segment.body[self._geometry.column_offset(0) + self.layout.version_offset :])

    @classmethod
    def create(
        cls,
        model: Model,
        mode: Mode | int = "double_buffer",
        extras: Mapping[str, tuple[int, ...] | Field] | None = None,
        *,
        begins_after: int = 0,
        name: str = "weights",
        path: str | os.PathLike[str] | None = None,
    ) -> "ParameterStore":
        """A new store with room for the model's weights; it has no version yet, and the model is unchanged.

        Args:
            model: defines the tensors of a row: a module on any device, or a mapping of arrays.
            mode: the number of slots, by a name or as a number, for a store of which more versions are read.
            extras: further arrays published with the weights: a shape for float64, or a Field.
            begins_after: the last version of the store that this one continues; the first publish has the next one.
            name: part of the segment's name in /dev/shm: letters, digits, "_" and ".".
            path: an ordinary file for the store.

        Raises:
            ValueError, TypeError: an argument is out of range. SharedMemoryFull: no room for the store.
        """
        slots = _slots_of(mode)
        if extras is not None and not isinstance(extras, Mapping):
            raise TypeError(f"extras: expected a dict of shapes or Fields by name, got {brief(extras)}")
        fields = {key: extra_field(key, extra) for key, extra in (extras or {}).items()}
        layout = RowLayout(_specs_of(model), fields)
        check_whole("begins_after", begins_after, 0, _MOST_VERSIONS)
        described = mode if isinstance(mode, str) else slots
        about = {"mode": described, "begins_after": int(begins_after), "is_mirror": False}
        description = {"kind": cls.kind, **about, **layout.to_dict()}
        geometry = LaneGeometry(1, slots, (layout.nbytes,))

        def fill(put: Put) -> None:
            # committed, reserved: the window of whole rows, [reserved - capacity, committed), is empty.
            counters = np.array([begins_after, begins_after + geometry.capacity], np.int64)
            put(geometry.counters_offset(0), counters.view(np.uint8))

        return cls(Segment.create(name, description, geometry.nbytes, path, fill if begins_after else None))

    @classmethod
    def create_mirror(
        cls,
        description: Mapping[str, Any],
        mode: Mode | int = "double_buffer",
        *,
        name: str = "weights",
        path: str | os.PathLike[str] | None = None,
    ) -> "ParameterStore":
        """A new store, without a version yet, for rows of another one, which it serves under their versions.

        `mirror_writer` writes them; subscribers see a store like any other, in which versions may be missing.

        Args:
            description: the other store's `description`.
            mode: as for `create`, with at least two slots.
            name, path: as for `create`.

        Raises:
            ValueError: an argument is out of range, or not a store's description. SharedMemoryFull: no room for it.
        """
        slots = _slots_of(mode)
        if slots < 2:  # a reader of the version must never meet the row that is being written
            raise ValueError(f"mode: expected at least two slots for a mirror, got {mode!r}")
        try:
            layout = RowLayout.from_dict(dict(description))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"description: expected a parameter store's, got {brief(description)}") from error
        about = {"mode": mode if isinstance(mode, str) else slots, "begins_after": 0, "is_mirror": True}
        body = LaneGeometry(1, slots, (layout.nbytes,)).nbytes
        return cls(Segment.create(name, {"kind": cls.kind, **about, **layout.to_dict()}, body, path))

    @property
    def description(self) -> dict[str, Any]:
        """What `create_mirror` needs, in types of JSON."""
        return {**self._segment.description}

    @property
    def version(self) -> int:
        """The newest published version; 0 before this store's first publish."""
        return self._newest()[1]

    def _newest(self) -> tuple[int, int]:
        """The newest row's ticket and version; version 0 before this store's first publish."""
        self._segment.check_open()
        committed = self._lanes.committed(0)
        if committed <= self.begins_after:
            return committed - 1, 0
        if not self.is_mirror:
            return committed - 1, committed
        while True:  # until no row came meanwhile: while none does, the newest row is not written to
            version = self._version_at(committed - 1)
            before, committed = committed, self._lanes.committed(0)
            if committed == before:
                return committed - 1, version

    def _version_at(self, ticket: int) -> int:
        return self._versions.load(ticket % self.slots * (self.layout.nbytes // 8))

    def _ticket_of(self, version: int) -> int:
        """The only ticket that a version may have; a mirror that lacks it gives the next one, which is to come."""
        if not self.is_mirror:
            return version - 1
        committed = self._lanes.committed(0)
        held = range(max(0, committed - self.slots), committed)
        return next((ticket for ticket in held if self._version_at(ticket) == version), committed)

    def _whole(self, ticket: int) -> Callable[[], bool]:
        """A callable that tells whether everything read so far of a ticket's row was this row."""
        lapped = self._lanes.validator(np.zeros(1, np.int64), np.array([ticket]), np.zeros(1, np.uint8))
        return lambda: lapped(1) == 0

    def copy_newest(self, copy: Callable[[NDArray[np.uint8]], T], timeout: float = 1.0) -> tuple[int, T]:
        """Copies the newest row out of shared memory, whole, for who moves rows and needs no model.

        Args:
            copy: called with the row in place, uint8 [layout.nbytes], read-only; again for the newest row if the
                publisher overwrote it meanwhile. It must not keep the row.
            timeout: seconds to keep trying.

        Returns: the version, and what `copy` returned for it.

        Raises:
            NotEnoughData: no version was published yet. TimeoutError: every attempt was overwritten. ValueError: the
            timeout is no number or negative.
        """
        check_timeout(timeout, or_none=False)

        def attempt() -> tuple[int, T] | None:
            ticket, version = self._newest()
            if version == 0:
                raise NotEnoughData(f"{self!r}: nothing was published yet")
            is_whole, row = self._whole(ticket), self.slot_array(ticket % self.slots)
            row.flags.writeable = False
            copied = copy(row)
            return (version, copied) if is_whole() else None

        return self._until_whole(attempt, timeout)

    def _until_whole(self, attempt: Callable[[], T | None], timeout: float) -> T:
        """What `attempt` returns, again after each None: a read that was lapped. Raises TimeoutError."""
        deadline = monotonic() + timeout
        pause, attempts = 0.0, 1
        while (result := attempt()) is None:
            if not monotonic() < deadline:
                raise TimedOut(
                    f"{self!r}: each of {attempts} reads in {timeout} s was lapped: the publisher overwrites "
                    "the slot before it is copied, or died while it did; give the store more slots "
                    "(triple_buffer) or publish less often"
                )
            sleep(pause)
            pause, attempts = min(2 * pause + 1e-6, _LONGEST_PAUSE_S), attempts + 1
        return result

    def wait(self, newer_than: int, timeout: float) -> bool:
        """Sleeps until the store's version exceeds `newer_than`, at most `timeout` seconds; False if it does not.

        Raises ValueError: the timeout is no number or negative.
        """
        check_timeout(timeout, or_none=False)
        most = 1 if self.is_mirror else newer_than + 1  # one row of a mirror may bring many versions

        def missing() -> int:
            return max(0, min(newer_than + 1 - self.version, most))

        return sleep_until(missing, self._event, monotonic() + timeout, self.check_open)

    def publisher(self, model: Model) -> "Publisher":
        """The publishing end, exclusively for this process until it closes it or dies.

        A module's parameters and buffers become views of one flat tensor; the Parameter objects stay the same. A
        mapping stays as it is. A successor's versions follow the last one.

        Raises:
            LaneBusy: the store has a living publisher. LayoutMismatch: the model has other tensors than the store.
            MarlcoreError: the store is a mirror.
        """
        with ClosedAfterError(claimed := self._claimed(mirror=False)):
            return Publisher(self, self._lanes, _weights_of(model, self.layout, fill=False), claimed)

    def mirror_writer(self) -> "MirrorWriter":
        """The writing end of a mirror, exclusively for this process until it closes it or dies.

        Raises: LaneBusy: the store has a living writer. MarlcoreError: the store is not a mirror.
        """
        return MirrorWriter(self, self._lanes, self._claimed(mirror=True))

    def _claimed(self, mirror: bool) -> File:
        if mirror != self.is_mirror:
            kinds = "one with a publisher", "a mirror"
            raise MarlcoreError(f"{self!r}: expected {kinds[mirror]}, got {kinds[self.is_mirror]}")
        try:
            return claim(self._segment, self._lanes, 0)
        except LaneBusy:
            raise LaneBusy(f"{self._segment.path}: the store has a living publisher") from None

    def subscriber(self, local_model: Model) -> "Subscriber":
        """A reading end that keeps `local_model` up to date; any number may live at once, in any process.

        A module's parameters and buffers become views of one flat tensor; the Parameter objects stay the same. The
        arrays of a mapping must be writable NumPy arrays, which `pull` fills in place.

        Raises:
            LayoutMismatch: the model has other tensors than the store.
            ValueError, TypeError: an array of a mapping is read-only, or is no NumPy array.
        """
        self.check_open()
        local = _weights_of(local_model, self.layout, fill=True)
        return Subscriber(self, self._lanes, local)

    def slot_tensor(self, slot: int) -> "torch.Tensor":
        """`slot_array` as a tensor."""
        import torch

        return torch.from_numpy(self.slot_array(slot))

    def slot_array(self, slot: int) -> NDArray[np.uint8]:
        """A slot's row in shared memory, uint8 [layout.nbytes]; only the publisher writes; reads are unvalidated."""
        self.check_open()
        if not 0 <= slot < self.slots:
            raise ValueError(f"slot: expected 0 to {self.slots - 1}, got {slot!r}")
        start = self._geometry.column_offset(0) + slot * self.layout.nbytes
        return self._segment.body[start : start + self.layout.nbytes]

    def __repr__(self) -> str:
        kind = "mirror" if self.is_mirror else "ParameterStore"
        return f"<{kind} {self._segment.path} mode={self.mode} row={self.layout.nbytes}>"


class Publisher(Closing):
    """The store's only writer; a context manager, for one thread at a time. Use `ParameterStore.publisher`.

    Attributes:
        version: of the store's last publish; 0 if there was none.
    """

    def __init__(self, store: ParameterStore, lanes: NativeLanes, weights: Weights, claimed: File) -> None:
        self._store = store
        self._lanes = lanes
        self._weights = weights
        self._claim = claimed
        self._closed = False
        self._inside: dict[int, None] = {}  # see guard.py
        self.version = store.version
        self._given: dict[str, NDArray[Any]] = {}  # each extra's last value
        self._stage(weights.staged())

    def _stage(self, row: NDArray[np.uint8]) -> None:
        self._extras = self._weights.layout.extra_views(row)
        self._put(self._given)
        self._version_in_row = self._weights.layout.version_view(row)
        self._append = self._lanes.appender(0, row)
        self._row = row  # last: if an interrupt comes earlier, the next publish stages again

    @one_thread
    def publish(self, /, weights: Any = OWN, **extras: Any) -> int:
        """Publishes the model's current weights as one unit.

        For a module on the CPU this is one copy and one atomic store; from an accelerator, a copy to the host comes
        first, on the current stream. Tensors that replaced the module's, by `.to(...)`, `load_state_dict(assign=True)`
        or assignment, are moved into the row and published. Arrays of a mapping are first copied into one row.

        Args:
            weights: for a publisher of a mapping: these arrays instead of those of the mapping that it was made with.
                NumPy's, JAX's, or whatever `np.asarray` takes; on the CPU without a further copy.
            extras: by name; the publisher's first publish gives all, a later one those that changed. NaN is allowed.

        Returns: the version: 1 for the store's first publish, or `begins_after` + 1.

        Raises:
            LayoutMismatch: a tensor of the model was added or removed, or changed its name, shape or dtype.
            ValueError, TypeError: an extra is missing, unknown, of another shape or does not fit its dtype; or
                `weights` hold a part that is no array, or are given to the publisher of a module.
            ClosedError, StaleHandle: the publisher or its store was closed, or this is a forked child.
            UsedByTwoThreads: another thread is publishing.
            After an error, nothing was published and the extras are unchanged.
        """
        self._store.check_open()
        if self._closed:
            raise ClosedError("the publisher was closed")
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
        self._given.update(fitted)
        self._put(fitted)

    def _put(self, fitted: dict[str, NDArray[Any]]) -> None:
        for name, value in fitted.items():
            self._extras[name][...] = value

    def close(self) -> None:
        """Releases the store for a successor, once no other thread publishes; the model stays usable."""
        self._closed = True
        close_when_alone(self._claim, self._inside)


class MirrorWriter(Closing):
    """A mirror's only writer; a context manager, for one thread at a time. Use `ParameterStore.mirror_writer`."""

    def __init__(self, store: ParameterStore, lanes: NativeLanes, claimed: File) -> None:
        self._store = store
        self._lanes = lanes
        self._claim = claimed
        self._inside: dict[int, None] = {}  # see guard.py

    @one_thread
    def put(self, row: NDArray[np.uint8]) -> bool:
        """Publishes a row of the home store, uint8 [layout.nbytes], under its version, as one unit.

        Returns: False if the version is not newer than the newest here: nothing was published.

        Raises:
            ValueError: the row has another size or dtype, or no version. ClosedError: the writer or store was closed.
        """
        if self._claim.fd < 0:
            raise ClosedError("the mirror's writer was closed")
        nbytes, newest = self._store.layout.nbytes, self._store.version
        if not isinstance(row, np.ndarray) or row.dtype != np.uint8 or row.shape != (nbytes,):
            raise ValueError(f"row: expected uint8 ({nbytes},), got {brief(row)}")
        version = int(self._store.layout.version_view(row)[0])
        check_whole("row: version", version, 1, 2 * _MOST_VERSIONS)
        if version > newest:
            self._lanes.appender(0, row)()
        return version > newest

    def close(self) -> None:
        """Releases the mirror for a successor, once no other thread writes."""
        close_when_alone(self._claim, self._inside)


@dataclass(eq=False)
class InPlaceView:
    """The newest weights in place, in shared memory. Use `Subscriber.in_place`.

    Attributes:
        version: of these weights.
        tensors: a module's under all its names for them, for `torch.func.functional_call`; a mapping's read-only
            arrays, nested as it is. They are the publisher's memory: do not write to them (a BatchNorm in training mode
            would).
        extras: by name, floats and arrays, copied.
    """

    version: int
    tensors: Mapping[str, Any]
    extras: Mapping[str, Any]
    _whole: Callable[[], bool]
    _final: bool | None = None

    def valid(self) -> bool:
        """Whether everything read so far, extras included, was this version; after the block, the answer at its end."""
        return self._whole() if self._final is None else self._final

    def end(self) -> None:
        """Fixes the answer: later changes of the slot do not matter."""
        self._final = self.valid()


class Subscriber:
    """Keeps a local model up to date, for one thread at a time. Use `ParameterStore.subscriber`.

    Attributes:
        version: of the local model's weights, 0 before the first pull.
        extras: published with these weights: a float for shape () (the result of `item` for other dtypes), otherwise
            an array; empty before the first pull.
    """

    def __init__(self, store: ParameterStore, lanes: NativeLanes, local: Weights) -> None:
        self._store = store
        self._lanes = lanes
        self._local = local
        self._inside: dict[int, None] = {}  # see guard.py
        self._scratch = local.scratch()
        self._scratch_extras = local.layout.extra_views(self._scratch)
        self._scratch_version = local.layout.version_view(self._scratch)
        self._read_newest = lanes.newest_reader(0, self._scratch)
        self._slots: dict[int, tuple[Any, dict[str, NDArray[Any]]]] = {}
        self.version = 0
        self.extras: Mapping[str, Any] = {}

    @property
    def newest(self) -> int:
        """The newest published version; 0 before the store's first publish."""
        return self._store.version

    @one_thread
    def pull(self, timeout: float = 1.0) -> bool:
        """Copies the newest weights into the local model, whole or not at all; False if none are newer.

        Do not pull between a forward pass and its backward pass: autograd does not notice that weights changed.

        Args:
            timeout: seconds to keep trying while the publisher overwrites the row being copied.

        Raises:
            TimeoutError: every attempt was overwritten. LayoutMismatch: a tensor of the local model was added or
            removed, or changed its name, shape or dtype. UsedByTwoThreads: another thread is pulling. ValueError: the
            timeout is no number or negative. Each leaves the model unchanged.
        """
        check_timeout(timeout, or_none=False)
        if self._store.version == self.version:
            return False
        self._take(self._copy_newest(timeout))
        return True

    @one_thread
    def pull_version(self, version: int) -> bool:
        """Copies this version into the local model, whole or not at all.

        Args:
            version: of the last ones published, as many as the store has slots.

        Returns: False if the store does not hold it: it was overwritten, or is still to come; the model is unchanged.

        Raises: LayoutMismatch, UsedByTwoThreads: as `pull`.
        """
        check_whole("version", version)
        self._store.check_open()
        if self._lanes.read(0, self._store._ticket_of(version), 1, self._scratch) != 0:
            return False
        self._take(version)
        return True

    def _take(self, version: int) -> None:
        self._local.load()
        self.extras = _copied(self._scratch_extras)
        self.version = version

    def _copy_newest(self, timeout: float) -> int:
        """Copies the newest row into the scratch row; returns its version."""

        def attempt() -> int | None:
            committed = self._read_newest()
            return None if committed == -errno.ESTALE else committed

        version = self._store._until_whole(attempt, timeout)
        if self._store.is_mirror and version > 0:
            version = int(self._scratch_version[0])
        if version <= 0:
            raise SegmentCorrupt(f"{self._store!r}: the lane's counters are damaged")
        return version

    def wait(self, newer_than: int, timeout: float) -> bool:
        """As `ParameterStore.wait`."""
        return self._store.wait(newer_than, timeout)

    @contextmanager
    def in_place(self) -> Iterator[InPlaceView]:
        """The newest weights without a copy; call `view.valid()` after reading, and discard the result if it is False.

        Raises: NotEnoughData: no version was published yet.
        """
        ticket, version = self._store._newest()
        if version == 0:
            raise NotEnoughData(f"{self._store!r}: nothing was published yet")
        views, extras = self._slot(ticket % self._store.slots)
        view = InPlaceView(version, self._local.named(views), _copied(extras), self._store._whole(ticket))
        try:
            yield view
        finally:
            view.end()

    def _slot(self, slot: int) -> tuple[Any, dict[str, NDArray[Any]]]:
        if slot not in self._slots:
            row = self._store.slot_array(slot)
            self._slots[slot] = self._local.views(row), self._local.layout.extra_views(row)
        return self._slots[slot]


def _is_tree(model: Any) -> bool:
    """Whether it is a mapping of arrays, not a module. Raises TypeError: it is neither."""
    if isinstance(model, (Mapping, list, tuple)):
        return True
    if hasattr(model, "named_modules"):
        return False
    raise TypeError(f"model: expected a torch module or a mapping of arrays, got {brief(model)}")


def _specs_of(model: Any) -> tuple[TensorSpec, ...]:
    if _is_tree(model):
        return tree_specs(model)
    from .modules import module_specs  # which imports torch

    return module_specs(model)


def _weights_of(model: Any, layout: RowLayout, fill: bool) -> Weights:
    if _is_tree(model):
        return TreeWeights(model, layout, fill)
    from .modules import ModuleWeights

    return ModuleWeights(model, layout)


def _copied(extras: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: array.copy() if array.ndim else array.item() for name, array in extras.items()}


def _slots_of(mode: Any) -> int:
    if isinstance(mode, str) and mode in SLOTS:
        return SLOTS[mode]
    if not isinstance(mode, (int, np.integer)) or isinstance(mode, bool) or not 1 <= mode <= _MOST_SLOTS:
        raise ValueError(f"mode: expected {', '.join(SLOTS)} or a number of slots, got {mode!r}")
    return int(mode)
