"""Refusals: the whole text of an error, and what a forked child may not use."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from marlcore import StaleHandle


@contextmanager
def refused(error: type[Exception] | tuple[type[Exception], ...], message: str) -> Iterator[None]:
    """The block raises this error, whose text is the message and no more."""
    with pytest.raises(error) as caught:
        yield
    assert str(caught.value) == message


def stale_in_a_fork(*calls: Callable[[], object]) -> bool:
    """Whether a forked child is refused each of the calls as StaleHandle."""
    child = os.fork()
    if child == 0:
        refused = 0
        try:
            for call in calls:
                try:
                    call()
                except StaleHandle:
                    refused += 1
        finally:
            os._exit(refused)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)
