"""Reading what numpy.savez wrote."""

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
    """The arrays of an .npz file by name. Raises: ValueError: it is another file. OSError: it cannot be read."""
    try:
        return _read(path)
    except (ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise ValueError(f"input_file: expected an .npz file, got {str(path)!r} ({came(error)})") from None


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name. Raises what NumPy does for another file; ValueError: it is one array."""
    with path.open("rb") as file:  # NumPy leaves one open that it cannot read
        found = np.load(file)
        if not isinstance(found, NpzFile):
            raise ValueError(f"it holds one array of shape {found.shape}")
        with found:
            return {name: found[name] for name in found.files}
