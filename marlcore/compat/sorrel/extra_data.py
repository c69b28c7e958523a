"""The extra fields of a buffer, copied only where one is looked up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from ..ring import Ring

__all__ = ["ExtraData"]


class ExtraData(Mapping[str, NDArray[Any]]):
    """The extra fields of a buffer by name; sorrel's agents ask at each step whether there is one of a certain name."""

    def __init__(self, ring: Ring, names: Iterable[str]) -> None:
        self._ring = ring
        self._names = tuple(names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        return self._ring.snapshot(name)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
