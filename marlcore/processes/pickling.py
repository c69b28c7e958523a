"""Pickles objects for other processes, and refuses those that would silently mean something else there."""

import io
import sys
from collections.abc import Callable
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


def dumps(thing: Any) -> bytes:
    """Pickles by value what another process cannot import. Raises TypeError, or what a class's own pickling raises."""
    file = io.BytesIO()
    _Pickler(file).dump(thing)
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
    def reducer_override(self, thing: Any) -> Any:
        kind = type(thing)
        if hasattr(kind, "fileno") and self._copies(kind) and _is_open(thing.fileno):
            raise TypeError(f"{kind.__name__}: {_NUMBER}")
        torch = sys.modules.get("torch")
        if hasattr(torch, "UntypedStorage") and _is_shared(torch, thing):  # not while another thread imports it
            raise TypeError(f"{kind.__name__}: {_COPY}")
        return super().reducer_override(thing)

    def _copies(self, kind: type) -> bool:
        """Whether objects of a class are pickled attribute by attribute, numbers of open files included."""
        return kind not in self.dispatch_table and all(
            getattr(kind, way, None) is getattr(object, way, None) for way in _OWN_WAYS
        )


def _is_open(fileno: Callable[[], int]) -> bool:
    try:
        return fileno() >= 0
    except (OSError, ValueError, TypeError):  # of a closed connection or file, or None of a device that is not open
        return False


def _is_shared(torch: Any, thing: Any) -> bool:
    if not isinstance(thing, (torch.Tensor, torch.UntypedStorage)) or thing.device.type != "cpu":
        return False  # those on a GPU always say that they are shared
    if isinstance(thing, torch.Tensor) and (thing.layout != torch.strided or torch.nn.parameter.is_lazy(thing)):
        return False  # it has no storage of its own
    return bool(thing.is_shared())
