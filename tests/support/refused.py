"""Refused input as a table: by the case's name, a call, the error's class, and the line that it must say."""

from collections.abc import Callable

import pytest

Refused = tuple[Callable[[], object], type[Exception], str]


def check_refused(call: Callable[[], object], error: type[Exception], says: str) -> None:
    """The call raises this error, in one line that contains `says`."""
    with pytest.raises(error) as raised:
        call()
    assert says in str(raised.value) and "\n" not in str(raised.value)
