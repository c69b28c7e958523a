"""The machines of a cluster, before a run: those that fit are checked, and others are refused in one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import RayNodes
from whole_clusters import BEGINNING

pytestmark = pytest.mark.long

FLEET = """
from marlcore.training.nodes import Fleet, agent, fleet

def connected(env_fn=CARTPOLE, **settings):
    return Fleet(mc.ClusterConfig(**{"address": ADDRESS, **settings}), env_fn, "the game")

def broken_env():
    raise OSError("no such\\ngame")

def refusal(call):
    try:
        call().close()
    except ValueError as error:
        return str(error)
"""
CASES = """
sys.path.insert(0, sys.argv[2])
import only_here
sys.path.pop(0)
print(refusal(lambda: connected(nodes=3)))
print(refusal(lambda: connected(actors_per_node=9)))
print(refusal(lambda: connected(resources={"highmem": 2})))
print(refusal(lambda: connected(address="127.0.0.1:1")))
print(refusal(lambda: connected(address="a" * 70 + ":6379")))
print(refusal(lambda: connected(broken_env)))
print(refusal(lambda: connected(only_here.make)))
fleet.__version__ = "9.9"
print(refusal(connected))
"""
SAYS = (
    "expected 3 beside this machine with CPU 1, got 2", "has 2 of 9 CPU", "has 0 of 2 highmem",
    "cluster.address: expected a Ray cluster at '1", "cluster.address: expected a Ray cluster at 'aaaa",
    "OSError: no such game", "No module named 'only_here'", "cluster: expected marlcore 9.9 on",
)  # fmt: skip


def test_a_cluster_that_does_not_fit_is_refused_in_one_line(
    ray_nodes: RayNodes, program: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "only_here.py").write_text("def make(): ...")
    lines = program(BEGINNING, FLEET, CASES, args=[ray_nodes.address, tmp_path]).finish().splitlines()
    assert len(lines) == len(SAYS) and all(says in line for says, line in zip(SAYS, lines, strict=True)), lines


HIRES = """
handlers = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
with connected(nodes=2) as made:
    assert handlers == [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    assert len({hired.machine.id for hired in made.hired}) == 2 and not list(made.free())
    hired = made.hired[0]
    os.kill(hired.found["pid"], signal.SIGSTOP)  # it does not even die when Ray asks it to
    made.dismiss(hired)
    assert [hired.machine.id] == [machine.id for machine in made.free()]
    until(lambda: agent.began(hired.found["pid"]) != hired.found["began"])
"""


def test_a_fleet_keeps_the_programs_handlers_and_kills_a_lost_agent(
    ray_nodes: RayNodes, program: Callable[..., Any]
) -> None:
    program(BEGINNING, FLEET, HIRES, args=[ray_nodes.address]).finish()
