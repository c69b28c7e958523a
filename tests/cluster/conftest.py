"""Clusters of Ray on this machine: a head and two more nodes, each with its own raylet and object store."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

NODES, CPUS = 2, 4
# Read by the raylets, and by their workers.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's name
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # without it Ray warns of a later version
os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"
OBJECTS = 150 * 2**20  # bytes of each node's object store


@pytest.fixture(scope="module")
def ray_nodes() -> Iterator[Any]:
    """A cluster that the tests of a module share, and that they leave as it was."""
    yield from _cluster()


@pytest.fixture
def own_nodes() -> Iterator[Any]:
    """A cluster of the test's own, whose nodes it may kill."""
    yield from _cluster()


def _cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": OBJECTS})
    try:
        for _ in range(NODES):
            add_node(cluster)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


def add_node(cluster: Any, **options: Any) -> Any:
    return cluster.add_node(**{"num_cpus": CPUS, "object_store_memory": OBJECTS, **options})
