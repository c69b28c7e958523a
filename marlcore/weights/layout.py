"""The layout of a row: the offset of each tensor of a model, and of each extra published with it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..spec import MAX_BYTES, Field, as_field

OWN: Any = object()  # means the weights that a publisher was made with (a caller's None is an error)
MOST_VERSIONS = 2**61  # half of a lane's largest count, so that as many versions can follow
_ALIGNMENT = 64  # bytes: a cache line, which satisfies every dtype
_DTYPE = re.compile(r"(?:u?int|b?float|complex)(8|16|32|64|128|256)(?:_\w+)?")  # NumPy lacks bfloat16 and float8_*


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a model: its name (the first of a tied tensor's names), shape and dtype's name."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """The tensor's size in bytes. Raises ValueError if a store cannot hold this dtype."""
        bits = _DTYPE.fullmatch(self.dtype)
        if not bits and self.dtype != "bool":
            raise ValueError(f"model {self.name}: expected booleans or numbers, got {self.dtype}")
        return prod(self.shape) * (int(bits[1]) // 8 if bits else 1)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {self.shape}"


@dataclass(frozen=True)
class RowLayout:
    """The places of tensors (in the model's order), extras and version in a row, all at multiples of 64 bytes."""

    tensors: tuple[TensorSpec, ...]
    extras: Mapping[str, Field]
    offsets: tuple[int, ...] = field(init=False)  # bytes from the row's start to each tensor
    extra_offsets: tuple[int, ...] = field(init=False)
    tensor_bytes: int = field(init=False)  # the offset of the first extra
    version_offset: int = field(init=False)
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        parts: list[TensorSpec | Field] = [*self.tensors, *self.extras.values()]
        starts = tuple(accumulate((-(-part.nbytes // _ALIGNMENT) * _ALIGNMENT for part in parts), initial=0))
        count, end = len(self.tensors), starts[-1]
        self.__dict__.update(offsets=starts[:count], extra_offsets=starts[count:-1], tensor_bytes=starts[count])
        self.__dict__.update(version_offset=end, nbytes=end + _ALIGNMENT)

    def to_dict(self) -> dict[str, Any]:
        return {
            "tensors": [[spec.name, list(spec.shape), spec.dtype] for spec in self.tensors],
            "extras": [[name, list(extra.shape), extra.dtype] for name, extra in self.extras.items()],
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "RowLayout":
        for name, shape, _ in plain["tensors"]:
            for extent in shape:
                check_whole(f"shape of {name}", extent, 0, MAX_BYTES)
        if len({name for name, *_ in plain["tensors"]}) < len(plain["tensors"]):
            raise ValueError("tensors: expected names that differ")
        return cls(
            tuple(TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in plain["tensors"]),
            {name: Field(tuple(shape), dtype) for name, shape, dtype in plain["extras"]},
        )

    def parts(self, row: Any) -> Iterable[tuple[TensorSpec, Any]]:
        """Yields each tensor's spec and bytes; the bytes are a slice of `row`, uint8 [nbytes] of NumPy or torch."""
        for spec, offset in zip(self.tensors, self.offsets, strict=True):
            yield spec, row[offset : offset + spec.nbytes]

    def extra_views(self, row: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        return {
            name: row[offset : offset + extra.nbytes].view(extra.dtype).reshape(extra.shape)
            for (name, extra), offset in zip(self.extras.items(), self.extra_offsets, strict=True)
        }

    def version_view(self, row: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Returns a view of a row's version, int64 [1]."""
        return row[self.version_offset : self.version_offset + 8].view(np.int64)


def extra_field(name: str, extra: tuple[int, ...] | Field) -> Field:
    if not isinstance(name, str) or not name:
        raise ValueError(f"extras: expected names of at least one character, got {name!r}")
    if name == "weights":
        raise ValueError("extras: expected names other than 'weights', which is taken")
    return extra if isinstance(extra, Field) else Field(extra, "float64")


def fitted_extra(name: str, value: Any, expected: Field) -> NDArray[Any]:
    is_number = type(value) is float or (type(value) is int and abs(value) < 2**63)
    if is_number and not expected.shape and expected.dtype == "float64":  # skips the slow checks of arrays
        return np.array(value, np.float64)
    return as_field(f"extras {name}", expected, value)
