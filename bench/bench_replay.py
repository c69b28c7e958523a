"""Every row's work, by marlcore, by the seeds' locked ring, by memcpy, and by other libraries that are installed."""

from __future__ import annotations

from typing import Any

import pytest

from . import adding_work, params_work, prioritized_work, queue_work, sampling_work
from .adding_while_sampled import LIBRARIES, measure_rates
from .work import Row, Scale, benchmark_row

WORKS = (adding_work, sampling_work, prioritized_work, params_work, queue_work)
ROWS = [row for work in WORKS for row in work.ROWS]


@pytest.mark.parametrize(
    ("row", "library"), [pytest.param(row, name, id=f"{row.name}-{name}") for row in ROWS for name in row.libraries]
)
def test_row(benchmark: Any, row: Row, library: str, scale: Scale) -> None:
    benchmark_row(benchmark, row, library, scale)


@pytest.mark.parametrize("library", LIBRARIES)
def test_writer_rate_while_sampled(library: str) -> None:
    """A writer in another process gets its rows in while this process samples."""
    rates = measure_rates(library, rounds=1, seconds=0.02, warm_up_s=0.02)
    assert min(rates.alone, rates.beside_spinning, rates.beside_sampling) > 0
