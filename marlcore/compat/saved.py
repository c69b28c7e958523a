"""A replay as bytes, for pickles and state dicts that hold transitions instead of sharing them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TypeVar, cast

from ..replay import ReplayBuffer

__all__ = ["from_bytes", "to_bytes"]

R = TypeVar("R", bound=ReplayBuffer)


def to_bytes(replay: ReplayBuffer) -> bytes:
    """What `ReplayBuffer.save` writes. Raises SharedMemoryFull: the directory for temporary files has no room."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay"
        replay.save(path)
        return path.read_bytes()


def from_bytes(saved: bytes | memoryview, name: str, cls: type[R]) -> R:
    """A new replay of a class with what `to_bytes` gave.

    Raises: as ReplayBuffer.load; OSError when the directory for temporary files has no room.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay"
        path.touch(mode=0o600)  # nobody else may read what is attached to
        path.write_bytes(saved)
        return cast(R, cls.load(path, name=name))
