"""Unpickling that does not change the program's classes.

cloudpickle stores classes of `__main__` by value, and recognizes them by a number. If the program already has such a
class, `cloudpickle.loads` overwrites its methods and attributes with the pickle's, whose globals differ.
"""

import pickle
from functools import partial
from io import BytesIO
from typing import Any

from cloudpickle import cloudpickle


def unpickled(data: Any, apart: bool = False) -> Any:
    """Unpickles bytes. For a class that the program already has, uses the program's; with `apart`, the pickle's."""
    return _Unpickler(data, apart).load()


# Older run directories name these modules and classes by their former names.
_MOVED = {
    "marlcore.training.config": "marlcore.config", "marlcore.training.run_input": "marlcore.run.spec",
    "marlcore.training.oracles": "marlcore.meta",
}  # fmt: skip
_RENAMED = {("marlcore.spaces", "Part"): "SpacePart"}


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: Any, apart: bool) -> None:
        super().__init__(BytesIO(data))
        self._apart = apart
        self._known: list[type] = []

    def find_class(self, module: str, name: str) -> Any:
        for former, current in _MOVED.items():
            if module.startswith(former):
                module = f"{current}{module.removeprefix(former)}"
        found = super().find_class(module, _RENAMED.get((module, name), name))
        if found in (cloudpickle._make_skeleton_class, cloudpickle._make_skeleton_enum):
            return partial(self._skeleton, found)
        return self._fill if found is cloudpickle._class_setstate else found

    def _skeleton(self, make: Any, *args: Any) -> Any:
        *first, number, extra = args
        known = None if self._apart else cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(number)
        if known is None:
            return make(*first, None if self._apart else number, extra)
        self._known.append(known)
        return known

    def _fill(self, kind: type, state: Any) -> type:
        if not any(kind is known for known in self._known):
            cloudpickle._class_setstate(kind, state)
        return kind
