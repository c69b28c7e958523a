"""The .npz files of cpprb's `save_transitions`, read without executing what they contain."""

import os
import pickle
from contextlib import nullcontext
from typing import IO, Any, cast
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from ...checks import brief
from ...npz import check_members, read_array, read_header
from ...regular_files import open_regular
from ..ring import Rows

File = str | os.PathLike[str] | IO[bytes]

_VERSION = 1
_MODULES = {"numpy", "numpy.core.multiarray", "numpy._core.multiarray"}


def save(file: File, values: Rows, summed: bool) -> None:
    content: Any = {"safe": True, "version": _VERSION, "data": values, "Nstep": summed, "cache": None, "next_of": None}
    np.savez_compressed(file, **content)


def load(file: File) -> tuple[Rows, bool]:
    """Reads transitions; returns each field, [n, *shape], and whether the rewards are n-step returns."""
    try:
        named = isinstance(file, (str, os.PathLike))
        with open_regular(cast(str, file)) if named else nullcontext(file) as opened, ZipFile(opened) as archive:
            check_members(archive)
            parts = {name: _read(archive, name) for name in ("version", "safe", "data", "Nstep", "cache", "next_of")}
        if parts["version"] != _VERSION:
            raise ValueError(f"version {parts['version']!r}")
        values = {str(name): _numbers(array) for name, array in parts["data"].items()}
        if not parts["safe"]:
            # cpprb saved its compressed rows: without next values, and with values at episodes' bounds apart.
            values |= {f"next_{name}": np.roll(values[name], -1, axis=0) for name in parts["next_of"] or ()}
            for row, fields in (parts["cache"] or {}).items():
                for name, value in fields.items():
                    values[name][row] = _numbers(value)
        return values, bool(parts["Nstep"])
    except OSError:
        raise
    except Exception as error:  # from NumPy, zipfile and pickle, which raise nearly any on a damaged file
        raise ValueError(f"file: expected transitions saved in cpprb's format of version 1 ({brief(error)})") from None


def _read(archive: ZipFile, name: str) -> Any:
    with archive.open(f"{name}.npy") as file:
        if read_header(file)[1].hasobject:
            return _Plain(file).load().parts[-1][0]
    return read_array(archive, f"{name}.npy", kinds="biufcU").tolist()


def _numbers(value: Any) -> NDArray[Any]:
    array = np.array(_made(*value.parts) if isinstance(value, _Array) else value)
    if array.dtype.kind not in "biufc":
        raise pickle.UnpicklingError(f"it contains {brief(value)}")
    return array


class _Dtype:
    """Replaces NumPy's dtype in unpickling, since NumPy's own code can crash on a damaged file."""

    def __init__(self, code: str, *_: bool) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]


class _Array:
    parts: tuple[Any, ...]  # the arguments of `_made`

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.parts = state[1:]


def _made(shape: tuple[int, ...], described: _Dtype, in_columns: bool, content: Any) -> NDArray[Any]:
    dtype = np.dtype(described.order + described.code)
    if dtype.kind not in "biufcU" or not isinstance(content, bytes):  # fields' names may be NumPy's strings
        raise pickle.UnpicklingError(f"it contains an array of {dtype}")
    return np.ndarray(shape, dtype, content, order="F" if in_columns else "C")


_ALLOWED: dict[str, Any] = {
    "ndarray": None,
    "dtype": _Dtype,
    "_reconstruct": lambda *_: _Array(),
    "scalar": lambda dtype, content: _made((), dtype, False, content)[()],
}


class _Plain(pickle.Unpickler):
    """Unpickles numbers and strings of NumPy in lists and dicts, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if module not in _MODULES or name not in _ALLOWED:
            raise pickle.UnpicklingError(f"it contains {module}.{name}")
        return _ALLOWED[name]
