"""Passing transitions on in order, by marlcore, by multiprocessing.Queue, and by memcpy."""

from __future__ import annotations

from typing import Any

import pytest

from .queue_work import ROWS
from .work import Row, Scale, benchmark_row


@pytest.mark.parametrize(
    ("row", "library"), [pytest.param(row, name, id=f"{row.name}-{name}") for row in ROWS for name in row.libraries]
)
def test_queue(benchmark: Any, row: Row, library: str, scale: Scale) -> None:
    benchmark_row(benchmark, row, library, scale)
