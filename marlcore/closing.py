"""The base of objects that are closed at the end of a `with` block."""

from abc import abstractmethod
from typing import Any, TypeVar

C = TypeVar("C", bound="Closing")


class Closing:
    """Closes itself at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Releases what the object holds."""

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class ClosedAfterError:
    """Closes an object if the `with` block raises."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self._thing.close()
