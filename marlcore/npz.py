"""Reads arrays of numbers from .npz files of unknown origin: each stated size is checked before memory is allocated."""

import math
import os
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from .checks import brief
from .regular_files import open_regular

_ALWAYS, _INFLATED = 2**28, 200  # bytes that any archive may inflate to, or else at most this many times its size


def read_npz(label: str, path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Reads the arrays by name. Raises OSError, or ValueError (with `label`) if the file is not a valid .npz file."""
    try:
        with open_regular(path) as file, ZipFile(file) as archive:
            check_members(archive)
            return {name.removesuffix(".npy"): read_array(archive, name) for name in archive.namelist()}
    except Exception as error:  # NumPy and zipfile raise nearly any on a damaged file
        if isinstance(error, OSError) and error.filename is not None:
            raise
        expected = f"{label}: expected a .npz file of arrays of numbers"
        raise ValueError(f"{expected}, got {os.fspath(path)!r} ({brief(error)})") from None


def check_members(archive: ZipFile) -> None:
    """Raises ValueError if a member is not an array, has an odd name or occurs twice, or if the sizes are too large."""
    members = archive.infolist()
    for info in members:
        parts = info.filename.split(".")
        if parts[-1] != "npy" or "" in parts or not info.filename.isprintable():
            raise ValueError(f"expected *.npy, got {info.filename!r}")
    if len({info.filename for info in members}) < len(members):
        raise ValueError("expected each name once, got two arrays of one name")
    stored, claimed = archive.start_dir, sum(info.file_size for info in members)
    if claimed > max(_ALWAYS, _INFLATED * stored):
        raise ValueError(f"expected at most {_INFLATED} times the file's {stored:,} bytes, got {claimed:,}")


def read_array(archive: ZipFile, name: str, kinds: str = "biufc") -> NDArray[Any]:
    """Reads an array whose dtype is of one of the `kinds`. Raises ValueError or another error if it is damaged."""
    with archive.open(name) as member:
        shape, dtype = read_header(member)
        nbytes = archive.getinfo(name).file_size - member.tell()
        if dtype.kind not in kinds or math.prod(shape) * max(dtype.itemsize, 1) != nbytes:
            raise ValueError(f"expected {nbytes:,} bytes of numbers in {name!r}, got {dtype} {brief(shape)}")
        member.seek(0)
        return npy.read_array(member, allow_pickle=False)


def read_header(member: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Reads the shape and the dtype at the start of a .npy file. Raises ValueError or other errors."""
    read = npy.read_array_header_1_0 if npy.read_magic(member) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(member)
    return shape, dtype
