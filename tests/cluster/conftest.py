"""Clusters of Ray on this machine: a head, which has the drivers, and two more nodes. Drivers are other processes."""

from collections.abc import Iterator

import pytest
from ray_nodes import RayNodes


@pytest.fixture(scope="module")
def ray_nodes() -> Iterator[RayNodes]:
    """A cluster that the tests of a module share, and that they leave as it was."""
    with RayNodes(3) as nodes:
        yield nodes


@pytest.fixture
def own_nodes() -> Iterator[RayNodes]:
    """A cluster of the test's own, whose nodes it may kill."""
    with RayNodes(3) as nodes:
        yield nodes
