"""Rows over Ray: the actor of an ingest is killed, and the relay's errors say why rows do not arrive."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import rows_over_ray
from ray_nodes import RayNodes

DRIVER = """
import sys
from functools import partial
import ray
from relayed import SMALL, add_some, raw
from marlcore import ReplayBuffer
from marlcore.cluster import Bookings, Ingest, RayLink, Relay, start_ingest
from marlcore.errors import Fenced, LinkLost


def make(target, bookings, seats):
    return {"policy": Ingest(ReplayBuffer.attach(target), Bookings.attach(bookings), seats)}


def refused(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


assert refused(lambda: RayLink(None, "policy")).startswith("LinkLost: RayLink: this process is not connected")
ray.init(address=sys.argv[1], namespace="test", log_to_driver=False, logging_level="error")
node, home = (ReplayBuffer.create(SMALL, 60_000, 2, name=name) for name in ("node", "home"))
bookings = Bookings.create(2)
start = partial(start_ingest, partial(make, home.handle, bookings.handle, [range(2)]))
ingest = start()
link = RayLink(ingest, "policy")
"""


@pytest.mark.long
def test_rows_arrive_once_over_killed_ingests(ray_nodes: RayNodes, program: Callable[..., Any]) -> None:
    """Small messages go with the call, large ones through the object store; then a fenced epoch gets an error."""
    program(
        DRIVER,
        """
        with Relay(node, link).start() as relay:
            number = 0
            for part in range(12):
                for lane in range(2):
                    add_some(node, lane, number, 2500 if part == 5 else 40)
                number += 2500 if part == 5 else 40
                if part in (4, 8):
                    ray.kill(ingest, no_restart=False)
                assert relay.drain(600.0)
            for lane in range(2):
                assert (raw(node, lane) == raw(home, lane)).all() and len(raw(home, lane)) >= number
            assert relay.stats.bytes > 200_000 and relay.stats.rewinds and not bookings.lost
            assert refused(lambda: link.open(0, 0, 2, SMALL.to_dict())).startswith("ValueError: epoch: expected")
            link.open(0, 2, 2, SMALL.to_dict())
            add_some(node, 0, number, 1)
            assert refused(lambda: relay.drain(600.0)) == "Fenced: seat 0: expected the epoch 2, got 1"
        said = refused(start)
        assert said.startswith("LaneBusy: ") and said.endswith(": lane 0 has a living writer"), said
        ray.kill(ingest)
        while not (said := refused(lambda: link.open(0, 2, 2, SMALL.to_dict()))):
            pass  # ray.kill does not wait until the process has ended
        assert said.startswith("LinkLost: the ingest cannot be reached: ") and "\\n" not in said, said
        ray.shutdown()
        """,
        args=[ray_nodes.address],
    ).finish()


@pytest.mark.long
def test_rows_of_many_processes_arrive_once_despite_killed_ingests(ray_nodes: RayNodes) -> None:
    """Each row is delivered, skipped at a seam, or counted as lost; where writers wait, no row is lost."""
    command = [sys.executable, rows_over_ray.__file__, "400000", "1", "queue", "replay"]
    env = {**os.environ, "RAY_ADDRESS": ray_nodes.address}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("400000 written") == 2, done.stderr
