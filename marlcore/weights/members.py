"""Whether a module still has the parameters, buffers and parts that it had; torch is not needed to ask."""

from itertools import chain
from operator import is_
from typing import Any

_END = object()  # after the last member, so that an added or removed member is noticed


class Members:
    """The parameters, buffers and parts of a torch module and of its parts."""

    def __init__(self, module: Any) -> None:
        containers = [c for m in module.modules() for c in (m._parameters, m._buffers, m._modules)]
        self._empty = [c for c in containers if not c]
        self._contents = [*(c.values() for c in containers if c), (_END,)]
        self._objects = list(chain.from_iterable(self._contents))

    def same(self) -> bool:
        """Whether they are still the objects that they were; their memory may be another."""
        return not any(self._empty) and all(map(is_, chain.from_iterable(self._contents), self._objects))
