"""Reading files of numpy.savez."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from ..checks import came

__all__ = ["read_npz"]


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name. Raises: ValueError: another kind of file. OSError: it cannot be read."""
    try:
        return _read(path)
    except (ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise ValueError(f"input_file: expected an .npz file, got {str(path)!r} ({came(error)})") from None


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name. Raises NumPy's errors for other files; ValueError: it holds one array."""
    with path.open("rb") as file:  # NumPy leaves a file open that it cannot read
        found = np.load(file)
        if not isinstance(found, NpzFile):
            raise ValueError(f"it holds one array of shape {found.shape}")
        with found:
            return {name: found[name] for name in found.files}
