"""Adding and sampling, by marlcore, by the seeds' locked ring, and by memcpy."""

from __future__ import annotations

from typing import Any

import pytest

from .rate import LIBRARIES, measure_rates
from .replay_work import ROWS
from .work import Row, Scale, benchmark_row


@pytest.mark.parametrize("library", ["marlcore", "seeds", "memcpy"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_replay(benchmark: Any, row: Row, library: str, scale: Scale) -> None:
    benchmark_row(benchmark, row, library, scale)


@pytest.mark.parametrize("library", LIBRARIES)
def test_writer_rate_while_sampled(library: str) -> None:
    """A writer in another process gets its rows in while this process samples."""
    rates = measure_rates(library, rounds=1, seconds=0.1)
    assert min(rates.alone, rates.beside_spinning, rates.beside_sampling) > 0
