"""Clusters of Ray on this machine: a head, which has the drivers, and two more nodes. Drivers are other processes."""

from collections.abc import Iterator

import pytest
from ray_nodes import RayNodes


@pytest.fixture(scope="package")
def ray_nodes() -> Iterator[RayNodes]:
    """A cluster that all tests share, and that each leaves as it was: whoever loses a node starts it again."""
    with RayNodes(3) as nodes:
        yield nodes
