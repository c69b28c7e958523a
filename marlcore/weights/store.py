"""The parameter store: a learner publishes its weights; actors copy the newest, or read them in place.

A store is one lane whose rows are whole models: publishing appends a row, readers use the newest row, and the version
is the lane's committed count. Readers validate every read, whatever the number of slots.

A mirror is a copy of a store, its home store, for example on another node. It may lack some of the home store's rows,
so each row holds its version.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..checks import brief, check_whole
from ..closing import ClosedAfterError
from ..errors import LaneBusy, MarlcoreError
from ..fixed import fixed
from ..memory import File, LaneGeometry, Put, Segment, claim
from ..spec import Field
from .layout import MOST_VERSIONS, RowLayout, extra_field
from .publisher import MirrorWriter, Publisher
from .rows import Mode, VersionedRows, slots_of
from .subscriber import Subscriber
from .trees import LoadedWeights, RowWeights, TreeWeights, is_tree

if TYPE_CHECKING:
    import torch

# Arrays or tensors, alone or in mappings, lists and tuples
Model: TypeAlias = "torch.nn.Module | Mapping[Any, Any] | Sequence[Any] | NDArray[Any] | torch.Tensor"


@fixed()
class ParameterStore(VersionedRows):
    """Versions of one model's weights in shared memory: one publisher, any number of subscribers, no locks.

    Make it with `create` and pass it, or its `handle`, to other processes: an unpickled ParameterStore attaches to the
    same memory, as does a forked child's at its first use.

    A model is a torch module, a mapping of arrays by name, or one array. Mappings may nest, and hold lists and tuples;
    their arrays may be tensors, such as some of a module's parameters. A module wrapped by torch.compile or
    DistributedDataParallel is stored like the module inside. A row holds the extras and, in their own dtypes, a
    mapping's arrays or a module's parameters and buffers: tied tensors once, non-persistent buffers, too. With n slots,
    a read that has not ended when the n-th later publish begins is discarded.

    Attributes:
        mode: "snapshot" (1 slot), "double_buffer" (2) or "triple_buffer" (3); or the number of slots.
        slots: versions that the store holds.
        layout: the places of the tensors and extras in a row.
        begins_after: the version before this store's first version; 0 unless it continues another store's versions.
        is_mirror: whether its rows and versions come from another store; see `create_mirror`.
    """

    _keep = "keep the weights by the model's state_dict or arrays"

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
        """Creates a store with room for the model's weights. The store has no version yet; the model is unchanged.

        Args:
            model: defines the tensors of a row: a module on any device, or arrays.
            mode: the number of slots, as a name or as a number; more slots keep more old versions readable.
            extras: further arrays published with the weights: a shape for float64, or a Field.
            begins_after: the last version of the store that this one continues; the first publish gets the next
                version.
            name: part of the segment's name in /dev/shm: letters, digits, "_" and ".".
            path: an ordinary file that holds the store, instead of a file in /dev/shm.

        Raises:
            ValueError, TypeError: an argument is out of range. SharedMemoryFull: there is no room for the store.
        """
        if extras is not None and not isinstance(extras, Mapping):
            raise TypeError(f"extras: expected a dict of shapes or Fields by name, got {brief(extras)}")
        fields = {key: extra_field(key, extra) for key, extra in (extras or {}).items()}
        layout = RowLayout(_kind_of(model).specs(model), fields)
        check_whole("begins_after", begins_after, 0, MOST_VERSIONS)
        return cls._create(layout, mode, name, path, begins_after=int(begins_after), is_mirror=False)

    @classmethod
    def create_mirror(
        cls,
        description: Mapping[str, Any],
        mode: Mode | int = "double_buffer",
        *,
        name: str = "weights",
        path: str | os.PathLike[str] | None = None,
    ) -> "ParameterStore":
        """Creates an empty store for copies of another store's rows, which keep their versions.

        `mirror_writer` writes the rows. Subscribers use a mirror like any other store, but it may lack versions.

        Args:
            description: the other store's `description`.
            mode: as for `create`, with at least two slots.
            name, path: as for `create`.

        Raises:
            ValueError: an argument is out of range, or `description` is not a store's. SharedMemoryFull: no room for
                the mirror.
        """
        if slots_of(mode) < 2:  # otherwise a version could be read from a row that is being written
            raise ValueError(f"mode: expected at least two slots for a mirror, got {mode!r}")
        try:
            layout = RowLayout.from_dict(dict(description))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"description: expected the description of a store, got {brief(description)}") from error
        return cls._create(layout, mode, name, path, begins_after=0, is_mirror=True)

    @classmethod
    def _create(
        cls, layout: RowLayout, mode: Any, name: str, path: Any, begins_after: int, is_mirror: bool
    ) -> "ParameterStore":
        geometry = LaneGeometry(1, slots_of(mode), (layout.nbytes,))
        about = {"mode": mode if isinstance(mode, str) else int(mode), "begins_after": begins_after}
        description = {"kind": cls.kind, **about, "is_mirror": is_mirror, **layout.to_dict()}

        def fill(put: Put) -> None:
            # committed and reserved, such that the window of whole rows, [reserved - capacity, committed), is empty
            counters = np.array([begins_after, begins_after + geometry.capacity], np.int64)
            put(geometry.counters_offset(0), counters.view(np.uint8))

        return cls(Segment.create(name, description, geometry.nbytes, path, fill if begins_after else None))

    def publisher(self, model: Model) -> Publisher:
        """Returns the publisher, which this process holds exclusively until it closes the publisher or dies.

        A module's parameters and buffers become views of one flat tensor; the Parameter objects stay the same. A
        mapping stays unchanged. Later publishers continue the version numbers.

        Raises:
            LaneBusy: the store has a living publisher. LayoutMismatch: the model has other tensors than the store.
            MarlcoreError: the store is a mirror.
        """
        with ClosedAfterError(claimed := self._claimed(mirror=False)):
            return Publisher(self, self._lanes, _kind_of(model)(model, self.layout, fill=False), claimed)

    def mirror_writer(self) -> MirrorWriter:
        """Returns a mirror's writer, which this process holds exclusively until it closes the writer or dies.

        Raises LaneBusy if the store has a living writer, MarlcoreError if the store is not a mirror.
        """
        return MirrorWriter(self, self._lanes, self._claimed(mirror=True))

    def _claimed(self, mirror: bool) -> File:
        if mirror != self.is_mirror:
            kinds = "a store with a publisher", "a mirror"
            raise MarlcoreError(f"{self!r}: expected {kinds[mirror]}, got {kinds[self.is_mirror]}")
        try:
            return claim(self._segment, self._lanes, 0)
        except LaneBusy:
            raise LaneBusy(f"{self._segment.path}: the store has a living publisher") from None

    def subscriber(self, local_model: "Model | None" = None) -> Subscriber:
        """Returns a subscriber that keeps `local_model` up to date; any number may live at once, in any process.

        A module's parameters and buffers become views of one flat tensor; the Parameter objects stay the same. The
        arrays of a mapping must be writable NumPy arrays or tensors on the CPU, which `pull` fills in place. For any
        other object, each pull calls the object's method `load(arrays)` with all arrays by name, which change only in
        the next pull. Without a model, the subscriber has its own arrays, `weights`.

        Raises:
            LayoutMismatch: the model has other tensors than the store.
            ValueError, TypeError: an array of a mapping is read-only or not a NumPy array, or NumPy lacks a dtype.
        """
        self.check_open()
        if local_model is None:
            return Subscriber(self, self._lanes, RowWeights(self.layout))
        return Subscriber(self, self._lanes, _kind_of(local_model, loads=True)(local_model, self.layout, fill=True))


def _kind_of(model: Any, loads: bool = False) -> Any:
    if is_tree(model):
        return TreeWeights
    if loads and hasattr(model, "load") and not hasattr(model, "named_modules"):
        return LoadedWeights
    if not hasattr(model, "named_modules"):
        raise TypeError(f"model: expected a torch module or a mapping of arrays, got {brief(model)}")
    from .modules import ModuleWeights  # imports torch

    return ModuleWeights
