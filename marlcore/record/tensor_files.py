"""Checkpoints in torch's format without torch: nested dicts of numbers, and of tensors as NumPy arrays.

An archive holds a pickle, `data.pkl`, in which each tensor is a call of `torch._utils._rebuild_tensor_v2`, and the
bytes of each tensor, `data/<key>`. A pickle with any other call is refused.
"""

import io
import pickle
import sys
from collections import OrderedDict
from collections.abc import Mapping
from math import prod
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

_STORAGES = {  # torch's classes, by dtype
    "float32": "FloatStorage", "float64": "DoubleStorage", "float16": "HalfStorage", "int64": "LongStorage",
    "int32": "IntStorage", "int16": "ShortStorage", "int8": "CharStorage", "uint8": "ByteStorage",
    "bool": "BoolStorage",
}  # fmt: skip
_DTYPES = {name: np.dtype(dtype) for dtype, name in _STORAGES.items()}
_REBUILD = "torch._utils", "_rebuild_tensor_v2"
_ORDERED = "collections", "OrderedDict"
_FILE = "archive/{}"


def dumped(state: Mapping[str, Any]) -> bytes:
    """Returns a state as a file that `torch.load` reads. Raises KeyError if torch lacks an array's dtype."""
    data, tensors = io.BytesIO(), list[NDArray[Any]]()
    pickled = pickle.PROTO + b"\x02" + _pickled(state, tensors) + pickle.STOP
    with ZipFile(data, "w") as archive:
        archive.writestr(_FILE.format("data.pkl"), pickled)
        archive.writestr(_FILE.format("byteorder"), sys.byteorder)
        for key, array in enumerate(tensors):
            archive.writestr(_FILE.format(f"data/{key}"), array.tobytes())
        archive.writestr(_FILE.format("version"), "3\n")
    return data.getvalue()


def _pickled(value: Any, tensors: list[NDArray[Any]]) -> bytes:
    """Returns the pickled value, and appends its arrays to `tensors`."""
    if isinstance(value, Mapping):
        items = (_pickled(part, tensors) for item in value.items() for part in item)
        return pickle.EMPTY_DICT + pickle.MARK + b"".join(items) + pickle.SETITEMS
    if not isinstance(value, np.ndarray):
        return pickle.dumps(value, 2)[2:-1]  # without the protocol and the stop
    tensors.append(value)
    storage = _global("torch", _STORAGES[value.dtype.name])
    place = [_plain("storage"), storage, *map(_plain, (str(len(tensors) - 1), "cpu", value.size))]
    strides = tuple(prod(value.shape[axis + 1 :]) for axis in range(value.ndim))
    hooks = _global(*_ORDERED) + pickle.EMPTY_TUPLE + pickle.REDUCE
    given = [_tuple(place) + pickle.BINPERSID, *map(_plain, (0, value.shape, strides, False)), hooks]
    return _global(*_REBUILD) + _tuple(given) + pickle.REDUCE


def _plain(value: Any) -> bytes:
    return _pickled(value, [])


def _tuple(parts: list[bytes]) -> bytes:
    return pickle.MARK + b"".join(parts) + pickle.TUPLE


def _global(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def loaded(archive: ZipFile) -> Any:
    """Returns the state in an archive, with arrays for tensors. Raises UnpicklingError, KeyError, ValueError."""
    folder = archive.namelist()[0].partition("/")[0]
    return _Unpickler(archive, folder).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, archive: ZipFile, folder: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{folder}/data.pkl")))
        self._archive, self._folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        known: dict[tuple[str, str], Any] = {_REBUILD: _rebuilt, _ORDERED: OrderedDict}
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"expected tensors on the CPU, got {module}.{name}")
        return known[module, name]

    def persistent_load(self, place: Any) -> NDArray[Any]:
        _, dtype, key, *_ = place
        return np.frombuffer(bytearray(self._archive.read(f"{self._folder}/data/{key}")), dtype)


def _rebuilt(storage: NDArray[Any], offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> Any:
    array = storage[offset : offset + prod(shape)].reshape(shape)
    for extent, step, stride in zip(shape, strides, array.strides, strict=True):
        if array.size and extent > 1 and step * array.itemsize != stride:
            raise ValueError(f"expected contiguous tensors, got strides {strides} of shape {shape}")
    return array
