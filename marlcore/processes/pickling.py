"""Pickles objects for other processes, and refuses objects that would silently mean something else there."""

import io
import pickle
import sys
from typing import Any

import cloudpickle

from ..checks import brief
from ..errors import pass_on_from_handler

_NUMBER = (
    "its open file has another number in a worker: use a TrajectoryQueue, `report` of the worker's context, "
    "or a path or an address that the worker opens"
)
_COPY = "torch's shared memory would reach a worker as a copy: pass `clone()` of it, or publish it by a ParameterStore"
_OWN_WAYS = ("__reduce_ex__", "__reduce__", "__getstate__")


def dumps(thing: Any, for_file: bool = False) -> bytes:
    """Pickles by value what another process cannot import. Raises TypeError, or what a class's own pickling raises.

    With `for_file`, torch's shared memory is allowed: a file should hold a copy of it.
    """
    file = io.BytesIO()
    _Pickler(file, for_file).dump(thing)
    return file.getvalue()


def check_picklable(**things: Any) -> None:
    """Raises TypeError, which names the argument, if a value cannot be pickled for another process."""
    for name, thing in things.items():
        try:
            dumps(thing)
        except Exception as error:  # a class's own pickling may raise anything
            pass_on_from_handler(error)
            reason = str(error).partition("\n")[0]
            raise TypeError(f"{name}: expected something that can be pickled, got {brief(thing)} ({reason})") from None


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    def __init__(self, file: io.BytesIO, for_file: bool) -> None:
        super().__init__(file)
        self._for_file = for_file

    def reducer_override(self, thing: Any) -> Any:
        kind = type(thing)
        if hasattr(kind, "fileno") and self._copies(kind) and _is_open(thing):
            raise TypeError(f"{kind.__name__}: {_NUMBER}")
        torch = None if self._for_file else sys.modules.get("torch")
        if hasattr(torch, "UntypedStorage") and _is_shared(torch, thing):  # not while another thread imports it
            raise TypeError(f"{kind.__name__}: {_COPY}")
        if torch is not None and _is_part(torch, thing):  # with it would go all the memory
            return thing.detach().clone().requires_grad_(thing.requires_grad).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(thing)

    def _copies(self, kind: type) -> bool:
        """Whether objects of a class are pickled attribute by attribute, numbers of open files included."""
        return kind not in self.dispatch_table and all(
            getattr(kind, way, None) is getattr(object, way, None) for way in _OWN_WAYS
        )


def _is_open(thing: Any) -> bool:
    try:
        return bool(thing.fileno() >= 0)
    except Exception as error:  # of a closed file or device, whose class may raise anything
        pass_on_from_handler(error)
        return False


def _is_part(torch: Any, thing: Any) -> bool:
    """Whether a thing is a tensor that has a part of its memory alone, as published weights have."""
    if type(thing) is not getattr(torch, "Tensor", None) or not thing.is_leaf or thing.layout is not torch.strided:
        return False
    return bool(thing.untyped_storage().nbytes() > thing.nbytes)


def _is_shared(torch: Any, thing: Any) -> bool:
    if isinstance(thing, torch.storage.TypedStorage):
        thing = thing._untyped_storage  # all else of it warns of its end
    if not isinstance(thing, (torch.Tensor, torch.UntypedStorage)) or thing.device.type != "cpu":
        return False  # those on a GPU always say that they are shared
    if isinstance(thing, torch.Tensor):
        if type(thing).__reduce_ex__ not in (torch.Tensor.__reduce_ex__, torch.nn.Parameter.__reduce_ex__):
            return False  # its class pickles in its own way, such as by the name of a file that both map
        if thing.layout != torch.strided or torch.nn.parameter.is_lazy(thing):
            return False  # it has no storage of its own
    return bool(thing.is_shared())
