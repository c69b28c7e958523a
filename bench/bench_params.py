"""Publishing and pulling weights, by marlcore, by load_state_dict under a lock, and by memcpy."""

from __future__ import annotations

from typing import Any

import pytest

from .params_work import ROWS
from .work import Row, Scale, benchmark_row


@pytest.mark.parametrize("library", ["marlcore", "seeds", "memcpy"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_params(benchmark: Any, row: Row, library: str, scale: Scale) -> None:
    benchmark_row(benchmark, row, library, scale)
