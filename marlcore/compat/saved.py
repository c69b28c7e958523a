"""Turns a replay into bytes for a pickle or a state dict, and back."""

import tempfile
from pathlib import Path
from typing import TypeVar, cast

from ..replay import ReplayBuffer

R = TypeVar("R", bound=ReplayBuffer)


def to_bytes(replay: ReplayBuffer) -> bytes:
    """Returns the content of a `ReplayBuffer.save` file. Raises SharedMemoryFull: the temporary directory is full."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay"
        replay.save(path)
        return path.read_bytes()


def from_bytes(saved: bytes | memoryview, name: str, cls: type[R]) -> R:
    """Creates a replay of class `cls` from the bytes of `to_bytes`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay"
        path.touch(mode=0o600)  # `attach` refuses files that others can read
        path.write_bytes(saved)
        return cast(R, cls.load(path, name=name))
