"""The .npz files of cpprb's `save_transitions`, read without executing what they contain."""

import os
import pickle
import zlib
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ...checks import brief
from ..ring import Rows

File = str | os.PathLike[str] | IO[bytes]

_VERSION = 1
_MODULES = {"numpy", "numpy.core.multiarray", "numpy._core.multiarray"}
_ALLOWED: dict[str, Any] = {  # what a pickled array or scalar of NumPy consists of
    "ndarray": np.ndarray,
    "dtype": np.dtype,
    "_reconstruct": np.zeros(0).__reduce__()[0],
    "scalar": np.float64(0).__reduce__()[0],
}


def save(file: File, values: Rows, summed: bool) -> None:
    content: Any = {"safe": True, "version": _VERSION, "data": values, "Nstep": summed, "cache": None, "next_of": None}
    np.savez_compressed(file, **content)


def load(file: File) -> tuple[Rows, bool]:
    """Each field of the transitions, [n, *shape], and whether they are returns of n steps."""
    try:
        with ZipFile(file) as archive:
            parts = {name: _read(archive, name) for name in ("version", "safe", "data", "Nstep", "cache", "next_of")}
        if parts["version"].item() != _VERSION:
            raise ValueError(f"version {parts['version'].item()!r}")
        values = {str(name): np.asarray(array) for name, array in parts["data"].item().items()}
        if not parts["safe"].item():
            _expand(values, parts["next_of"], parts["cache"].item() or {})
        return values, bool(parts["Nstep"].item())
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, EOFError,
            pickle.UnpicklingError, BadZipFile, zlib.error) as error:  # fmt: skip
        raise ValueError(f"file: expected transitions saved in cpprb's format of version 1 ({brief(error)})") from None


def _expand(values: Rows, next_of: NDArray[Any], cache: dict[int, Rows]) -> None:
    """Adds what cpprb left out of rows as they lie in its ring: next values, and those at the bounds of episodes."""
    names = [] if next_of.dtype == object and next_of.item() is None else next_of.ravel().tolist()
    values.update({f"next_{name}": np.roll(values[name], -1, axis=0) for name in names})
    for row, kept in cache.items():
        for name, value in kept.items():
            values[name][row] = value


def _read(archive: ZipFile, name: str) -> NDArray[Any]:
    with archive.open(f"{name}.npy") as file:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        if not read(file)[2].hasobject:
            file.seek(0)
            return npy.read_array(file, allow_pickle=False)
        return np.asarray(_ArraysAlone(file).load())


class _ArraysAlone(pickle.Unpickler):
    """Unpickles arrays in lists and dicts, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if module not in _MODULES or name not in _ALLOWED:
            raise pickle.UnpicklingError(f"it contains {module}.{name}")
        return _ALLOWED[name]
