"""Benchmarks run at full size; where they are disabled, they run once on small rings."""

from collections.abc import Iterator

import pytest
from processes import handlers

from .core.work import FULL, SMALL, Scale


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Timed tests run alone, in one process, which prints the table."""
    return 0 if config.getoption("benchmark_enable") else None


@pytest.fixture(scope="module")
def scale(request: pytest.FixtureRequest) -> Scale:
    enabled = request.config.getoption("benchmark_enable") or not request.config.getoption("benchmark_disable")
    return FULL if enabled else SMALL


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """An actor and a learner have a core each."""
    import torch  # not in the process of pytest-xdist that runs no test

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def handlers_are_kept() -> Iterator[None]:
    """Keeps signal handlers, on which other tests in the process depend; see the tests' `leaves_nothing_behind`."""
    before = handlers()
    yield
    assert handlers() == before
