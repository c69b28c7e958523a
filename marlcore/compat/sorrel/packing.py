"""Pickles of environments and models whose memories stay where they are."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import cloudpickle
import torch

from ...errors import pass_on_from_handler

_LOCKS = {type(make()): make for make in (threading.Lock, threading.RLock)}


def pack(thing: Any, apart: Iterable[tuple[Any, str]] = ()) -> bytes:
    """A pickle of `thing`, in which each object of `apart` is only a name, wherever it occurs.

    A lock becomes a new, free one. A tensor that is a view of a larger one becomes a tensor of its own, since
    otherwise each such tensor of a model would carry all of the model's memory.

    Raises: TypeError: something in it cannot be pickled.
    """
    file = io.BytesIO()
    try:
        _Packer(file, apart).dump(thing)
    except Exception as error:  # a class's own pickling may raise anything
        pass_on_from_handler(error)
        reason = str(error).partition("\n")[0]
        raise TypeError(f"{type(thing).__name__}: expected something that can be pickled ({reason})") from None
    return file.getvalue()


def unpack(data: bytes, apart: Mapping[str, Any]) -> Any:
    """What `pack` packed, with the objects of these names in the places of those left out."""
    return _Unpacker(io.BytesIO(data), apart).load()


class _Packer(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, apart: Iterable[tuple[Any, str]]) -> None:
        super().__init__(file)
        self._names = {id(thing): name for thing, name in apart}

    def persistent_id(self, thing: Any) -> str | None:
        return self._names.get(id(thing))

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) in _LOCKS:
            return _LOCKS[type(thing)], ()
        if isinstance(thing, torch.Tensor) and thing.is_leaf and _is_part(thing):
            make = torch.nn.Parameter if isinstance(thing, torch.nn.Parameter) else torch.Tensor.requires_grad_
            return make, (thing.detach().clone(), thing.requires_grad)
        return super().reducer_override(thing)


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, apart: Mapping[str, Any]) -> None:
        super().__init__(file)
        self._apart = apart

    def persistent_load(self, name: str) -> Any:
        return self._apart[name]


def _is_part(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.untyped_storage().nbytes() > tensor.nbytes
