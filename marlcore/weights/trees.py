"""Weights of JAX and NumPy users: a mapping of arrays, perhaps nested, which is copied to and from a row."""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import repeat
from operator import setitem
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import array_of, is_tensor
from ..checks import brief
from ..errors import LayoutMismatch
from .layout import OWN, RowLayout, TensorSpec

Arrays = dict[str, NDArray[Any]]
ALONE = ""  # the name of a single array


class TreeWeights:
    """Weights given as a mapping of arrays, or as one array. Has the same methods as ModuleWeights.

    The mapping's values may also be mappings, lists, tuples, or None. An array's name is the path to it, joined by ".":
    "layers.0.bias". The mapping is read at each call, so its arrays may be replaced. Their names must match the
    layout's, in any order. With `fill`, rows are copied into the arrays.

    Raises:
        LayoutMismatch: an array is missing or superfluous, or has another shape or dtype.
        TypeError, ValueError: a part is not an array or, with `fill`, cannot be written to.
    """

    device_row = None

    def __init__(self, tree: Any, layout: RowLayout, fill: bool) -> None:
        self.layout = layout
        self.turn = 0  # see `rows`
        self._trees = [tree]
        self._fill = fill
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._dtypes = {name: array.dtype for name, array in self._arrays(tree).items()}
        self._rows = [np.zeros(layout.nbytes, np.uint8)]
        self._places = self.views(self._rows[0])

    @property
    def weights(self) -> Any:
        return self._trees[self.turn]

    @staticmethod
    def specs(tree: Any) -> tuple[TensorSpec, ...]:
        """Returns the specs of a mapping's arrays, in its order. Raises TypeError or ValueError for other values."""
        arrays = _arrays_of(tree, _array)
        return tuple(TensorSpec(name, array.shape, array.dtype.name) for name, array in arrays.items())

    def staged(self, weights: Any = OWN) -> NDArray[np.uint8]:
        """Copies the mapping's current arrays, or `weights`, into a row in host memory, and returns the row."""
        if weights is not OWN and not is_tree(weights):
            raise TypeError(f"weights: expected a mapping of arrays, got {brief(weights)}")
        arrays = self._arrays(self.weights if weights is OWN else weights)
        for name, place in self._places.items():
            place[...] = arrays[name]
        return self._rows[0]

    def rows(self) -> list[NDArray[np.uint8]]:
        """Returns the rows in host memory, one or two, which pulls fill in turn before they call `load`."""
        return self._rows

    def load(self) -> None:
        """Copies the row's weights into the caller's arrays; after an error, nothing was copied."""
        arrays = self._arrays(self.weights)
        filled = [arrays[name] for name in self._places]
        # One C call, in which no signal is handled: an exception between two arrays would leave a mixture of versions.
        put: Callable[[Any, Any, Any], None] = setitem
        deque(map(put, filled, repeat(...), self._places.values()), maxlen=0)

    def views(self, row: NDArray[np.uint8]) -> Arrays:
        """Returns views of a row's arrays, by name."""
        return {
            spec.name: part.view(self._dtypes[spec.name]).reshape(spec.shape) for spec, part in self.layout.parts(row)
        }

    def named(self, views: Arrays) -> Any:
        """Returns `views` as read-only arrays, nested like the caller's mapping."""
        self._arrays(self.weights)  # raises LayoutMismatch if the mapping was changed

        def readable(name: str, _: Any) -> NDArray[Any]:
            view = views[name][...]
            view.flags.writeable = False
            return view

        return _mapped(readable, self.weights)

    def _arrays(self, tree: Any) -> Arrays:
        arrays = _arrays_of(tree, _writable if self._fill else _array)
        for spec in self.layout.tensors:
            array = arrays.get(spec.name)
            known = self._dtypes.get(spec.name)
            fits = array is not None and (array.dtype == known if known else array.dtype.name == spec.dtype)
            if array is None or array.shape != spec.shape or not fits:
                parts = any(name.startswith(f"{spec.name}.") for name in arrays)
                none = "a list or mapping" if parts else "nothing"
                got = none if array is None else f"{array.dtype} {array.shape}"
                raise LayoutMismatch(f"{_label(spec.name)}: expected {spec.dtype} {spec.shape}, got {got}")
        if len(arrays) > len(self.layout.tensors):
            name = next(iter(arrays.keys() - {spec.name for spec in self.layout.tensors}))
            raise LayoutMismatch(f"{_label(name)}: expected no such array, got {arrays[name].dtype}")
        return arrays


class RowWeights(TreeWeights):
    """Read-only arrays by the tensors' names, or one array, in two rows that take turns, so that a pull is one copy.

    Raises TypeError if NumPy lacks a tensor's dtype.
    """

    def __init__(self, layout: RowLayout) -> None:
        for spec in layout.tensors:
            if spec.dtype not in np.sctypeDict:
                raise TypeError(f"{_label(spec.name)}: expected a dtype of NumPy, got {spec.dtype}")
        zeros = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in layout.tensors}
        super().__init__(zeros.get(ALONE, zeros), layout, fill=False)
        self._rows.append(np.zeros(layout.nbytes, np.uint8))
        self._trees = [self.named(self.views(row)) for row in self._rows]

    def load(self) -> None:
        self.turn = 1 - self.turn


class LoadedWeights(RowWeights):
    """Calls an object's method `load` in each pull, with read-only arrays by name."""

    def __init__(self, local: Any, layout: RowLayout, fill: bool) -> None:
        super().__init__(layout)
        self._local = local

    def load(self) -> None:
        super().load()
        self._local.load(self.weights)


def _label(name: str) -> str:
    return f"weights {name}" if name else "weights"


def is_tree(weights: Any) -> bool:
    """Whether the weights are arrays in mappings, lists or tuples, or a single array."""
    return isinstance(weights, (Mapping, list, tuple)) or hasattr(weights, "__array__")


def _arrays_of(tree: Any, array_of: Callable[[str, Any], NDArray[Any]]) -> Arrays:
    arrays: Arrays = {}

    def keep(name: str, leaf: Any) -> None:
        if name in arrays:
            raise ValueError(f"{_label(name)}: expected one array of this name, got two")
        arrays[name] = array_of(name, leaf)

    _mapped(keep, tree)
    return arrays


def _mapped(function: Callable[[str, Any], Any], tree: Any, name: str = "") -> Any:
    prefix = f"{name}." if name else ""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {key: _mapped(function, part, f"{prefix}{key}") for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [_mapped(function, part, f"{prefix}{index}") for index, part in enumerate(tree)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return function(name, tree)


def _array(name: str, leaf: Any) -> NDArray[Any]:
    try:
        array = array_of(leaf.cpu()) if is_tensor(leaf) else np.asarray(leaf)
    except (ValueError, TypeError, RuntimeError) as error:
        raise TypeError(f"{_label(name)}: expected an array, got {brief(leaf)} ({brief(error)})") from None
    if array.dtype.kind in "OSUMmV" and not array.dtype.name.startswith(("bfloat", "float8")):
        raise TypeError(f"{_label(name)}: expected an array of numbers, got {brief(leaf)}")
    if not array.dtype.isnative:
        raise TypeError(f"{_label(name)}: expected native byte order, got {array.dtype}")
    return array


def _writable(name: str, leaf: Any) -> NDArray[Any]:
    if is_tensor(leaf):
        if leaf.device.type != "cpu":
            raise TypeError(f"{_label(name)}: expected a tensor on the CPU to fill, got one on {leaf.device}")
        return _array(name, leaf)
    if not isinstance(leaf, np.ndarray):
        raise TypeError(f"{_label(name)}: expected a NumPy array to fill, got {type(leaf).__name__}")
    if not leaf.flags.writeable:
        raise ValueError(f"{_label(name)}: expected a writable array, got a read-only one")
    return _array(name, leaf)
