"""What the tests of runs on a cluster share."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from drivers import ForkedCode
from ray_nodes import RayNodes
from whole_clusters import Drive

from marlcore.processes import ForkServer


@pytest.fixture
def drive(fork_server: ForkServer, ray_nodes: RayNodes, program: Callable[..., Any], tmp_path: Path) -> Drive:
    """Starts the drivers of a run on the cluster that all tests share."""
    return Drive(ray_nodes, program, tmp_path, {"start": partial(ForkedCode, fork_server)})
