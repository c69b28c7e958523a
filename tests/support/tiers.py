"""Which cases of a test are quick."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def long_but(quick: Container[Any], cases: Iterable[Any]) -> list[Any]:
    """A test's cases; those that are not among the quick ones carry the marker `long`. A tuple has several values."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else [case]), marks=[] if case in quick else [pytest.mark.long])
        for case in cases
    ]
