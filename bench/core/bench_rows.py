"""The work of each row of the table, by marlcore, a locked ring, memcpy, and other libraries that are installed."""

from functools import partial
from typing import Any

import pytest
from tiers import long_but

from .meanwhile import SAMPLED, SAVED, measure_rates, measure_saves
from .report import ROWS
from .work import Scale

OURS = "marlcore"
WORK = {(row.name, library): row for row in ROWS for library in row.libraries}


@pytest.mark.parametrize(("name", "library"), long_but([key for key in WORK if key[1] == OURS], WORK))
def test_row(benchmark: Any, name: str, library: str, scale: Scale) -> None:
    benchmark.group = name
    with WORK[name, library].open(library, scale) as work:
        work.warm_up(scale.warm_runs)
        options = {"setup": lambda: work.prepare() and None, "rounds": 500}  # what it returned would be run's arguments
        timed = partial(benchmark.pedantic, **options) if work.prepare else benchmark
        work.check(timed(work.run))


@pytest.mark.long
@pytest.mark.parametrize("library", SAMPLED)
def test_writer_rate_while_sampled(library: str) -> None:
    rates = measure_rates(library, rounds=1, seconds=0.02, warm_up_s=0.02)
    assert min(rates.values()) > 0


@pytest.mark.parametrize("library", long_but([OURS], SAVED))
def test_save(library: str, scale: Scale) -> None:
    figures = measure_saves(library, scale.frames, rounds=1)
    assert figures["nbytes"] > scale.frames * 84 * 84 and min(figures.values()) > 0
