"""The base of objects in a segment: other processes attach by a handle, and closing releases the memory."""

import os
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from ..checks import brief
from ..closing import ClosedAfterError, Closing
from ..errors import SegmentCorrupt
from .segment import Segment, SegmentHandle

S = TypeVar("S", bound="Shared")

# The modules that pickle for other processes, in multiprocessing, torch, joblib, loky, cloudpickle and Ray
_SENDERS = re.compile(
    r"(.+\.)?(multiprocessing\.(reduction|queue)|joblib\.pool|loky\.backend\.reduction|cloudpickle(_fast)?)"
)


def described_workers(segment: Segment) -> list[str]:
    """Returns the workers' names in a segment's description, one for each part. Raises ValueError if two are equal."""
    names: Any = segment.description["workers"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len({*names}) < len(names):
        raise ValueError(f"workers: expected distinct names, got {brief(names)}")
    return names


class Shared(Closing):
    """Base of all shared objects: this process's view of a segment whose description names this `kind`.

    Unpickling attaches to the same memory. Used in a `with` statement, the object closes at the end of the block.
    """

    kind: str
    _attaches_anew = False  # whether forked children may use it: see Segment
    _keep = ""  # how to save the content; if given, pickles are only made for other processes, as they lack it

    def __init__(self, segment: Segment, *others: object, **options: object) -> None:
        """Wraps a segment. Raises SegmentCorrupt if it holds another kind of object or its description is malformed.

        Raises TypeError, which names `create` and `attach`, if a user calls the class instead of these.
        """
        if others or options or not isinstance(segment, Segment):
            name = type(self).__name__
            raise TypeError(f"{name}: expected {name}.create(...) or {name}.attach(handle), got {name}(...)")
        self._segment = segment
        segment.attaches_anew = self._attaches_anew
        try:
            with ClosedAfterError(segment):
                if segment.description["kind"] != self.kind:
                    raise KeyError("kind")
                self._understand(segment)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise SegmentCorrupt(f"{segment.path}: expected a {self.kind}, got another kind of segment") from error

    def _understand(self, segment: Segment) -> None:
        raise AssertionError("each class has its own")

    @classmethod
    def attach(cls: type[S], handle: SegmentHandle | str | os.PathLike[str]) -> S:
        """Attaches to an existing object by its handle or its file's path.

        Raises SegmentNotFound, StaleHandle or SegmentCorrupt if the object is gone or the path leads to something else.
        """
        return cls(Segment.attach(handle))

    @classmethod
    def watch(cls: type[S], handle: SegmentHandle | str | os.PathLike[str]) -> S:
        """Attaches without write access: this process can look but not change anything."""
        return cls(Segment.attach(handle, writable=False))

    @property
    def handle(self) -> SegmentHandle:
        """A picklable reference to the object, which `attach` takes."""
        return self._segment.handle

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
        return self._segment.nbytes

    def check_open(self) -> None:
        """Checks that the object is usable: see `Segment.check_open`."""
        self._segment.check_open()

    def close(self) -> None:
        """Releases the memory. When its creator closes an object in /dev/shm, the segment disappears."""
        self._segment.close()

    def unlink(self) -> None:
        """Removes the segment's name; attached processes keep the memory."""
        self._segment.unlink()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[SegmentHandle]]:
        # Picklers are in C, so the innermost function in Python says which module is at work.
        if self._keep and not _SENDERS.fullmatch(sys._getframe(1).f_globals.get("__name__", "")):
            lacking = "expected a pickle for another process, got a copy, or a pickle to keep, which lacks the content"
            raise TypeError(f"{type(self).__name__}: {lacking}: {self._keep}; its `handle` can be pickled")
        return type(self).attach, (self.handle,)
