"""Reading and writing of files and bytes: .npz files, and replays that a pickle or state dict contains."""

import tempfile
import zlib
from pathlib import Path
from typing import Any, TypeVar, cast
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from ..checks import brief
from ..replay import ReplayBuffer

R = TypeVar("R", bound=ReplayBuffer)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name. Raises: ValueError: another kind of file. OSError: it cannot be read."""
    try:
        with path.open("rb") as file:  # NumPy leaves a file open that it cannot read
            arrays = np.load(file)
            if not isinstance(arrays, NpzFile):
                raise ValueError(f"it holds one array of shape {arrays.shape}")
            with arrays:
                return {name: arrays[name] for name in arrays.files}
    except (ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise ValueError(f"input_file: expected an .npz file, got {str(path)!r} ({brief(error)})") from None


def to_bytes(replay: ReplayBuffer) -> bytes:
    """The content of a `ReplayBuffer.save` file. Raises SharedMemoryFull: the temporary directory has no room."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay"
        replay.save(path)
        return path.read_bytes()


def from_bytes(saved: bytes | memoryview, name: str, cls: type[R]) -> R:
    """A new replay of class `cls` from the bytes of `to_bytes`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay"
        path.touch(mode=0o600)  # `attach` refuses files that others can read
        path.write_bytes(saved)
        return cast(R, cls.load(path, name=name))
