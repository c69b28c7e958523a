"""Workers that die while a graph is built, and callers that are interrupted: the right graph or a clear error.

More kills: python tests/long.py planning_kills 1000
"""

import contextlib
import os
import random
import signal
import threading
import time
from typing import Any

import pytest
from processes import await_ends, children, family, until
from world_models import Slippery, Slow, World

from marlcore import WorkerFailed
from marlcore.planning import build_graph

pytestmark = pytest.mark.long
MODEL = Slippery(2, 6, 10)


def planners(before: frozenset[int] = frozenset()) -> set[int]:
    """The processes of a pool: those that the fork servers started."""
    return {pid for server in children(os.getpid()) for pid in children(server)} - before


def kill_workers(kills: int, seed: int = 0, fork: bool = False) -> int:
    """Builds a graph again and again, until so many builds have lost a worker; returns the number of builds."""
    rng = random.Random(seed)
    with build_graph(MODEL, workers=1) as graph:
        alone = bytes(graph._segment.body)
    builds = killed = 0

    def kill_one(before: frozenset[int], pause_s: float, over: threading.Event) -> None:
        nonlocal killed
        while not (workers := planners(before)):
            if over.wait(0.001):
                return
        over.wait(pause_s)
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(rng.choice(sorted(workers)), signal.SIGKILL)
            killed += 1

    while killed < kills:
        builds, over = builds + 1, threading.Event()
        killer = threading.Thread(target=kill_one, args=(frozenset(planners()), rng.uniform(0.0, 0.15), over))
        killer.start()
        try:
            with build_graph(MODEL, workers=3, batch=5, fork=fork) as graph:
                assert bytes(graph._segment.body) == alone
        finally:
            over.set()
            killer.join()
    return builds


@pytest.mark.parametrize(("kills", "fork"), [(25, False), (25, True)])
def test_workers_killed_at_random_moments_change_nothing(kills: int, fork: bool) -> None:
    kill_workers(kills, seed=kills, fork=fork)


class DeadlyOnce(World):
    """A slow model with one state that ends any worker that expands it."""

    def __init__(self) -> None:
        super().__init__(1, 60, (0, 0))
        self._home = os.getpid()

    def transition_probabilities(self, state: Any, profile: Any) -> Any:
        step, place = state
        if place == 1 and os.getpid() != self._home:
            os._exit(1)
        time.sleep(0.001)
        return [(1.0, (step + 1, profile[0] * (step == 0)))] if step < 2 else None


def test_deaths_seen_between_states_are_an_error() -> None:
    """Such deaths once counted as a failure of the model in a later state."""
    with pytest.raises(WorkerFailed, match="the 4 processes that got this request ended in the same way") as caught:
        build_graph(DeadlyOnce(), workers=2, batch=3)
    assert caught.value.reason == "death"


def test_a_stopped_worker_is_waited_for_until_it_dies() -> None:
    before = frozenset(planners())

    def stop_then_kill() -> None:
        worker = min(until(lambda: planners(before)))
        os.kill(worker, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(worker, signal.SIGKILL)

    thread = threading.Thread(target=stop_then_kill)
    thread.start()
    with build_graph(Slow(2, 6, 10), workers=2, batch=5) as graph, build_graph(MODEL, workers=1) as alone:
        thread.join()
        assert bytes(graph._segment.body) == bytes(alone._segment.body)


PROGRAM = """
    from world_models import Slow
    from marlcore.planning import build_graph

    print("begins", flush=True)
    build_graph(Slow(2, 40, 40), workers=3)
    print("was not interrupted", flush=True)
"""


@pytest.mark.parametrize(
    ("signum", "seconds"), [(signal.SIGINT, 0.02), (signal.SIGINT, 2.0), (signal.SIGTERM, 0.2), (signal.SIGKILL, 2.0)]
)
def test_a_signal_ends_everything(program: Any, signum: int, seconds: float) -> None:
    building = program(PROGRAM)
    assert building.line() == "begins"
    time.sleep(seconds)
    pidfds = [os.pidfd_open(pid) for pid in family(building.pid)]
    os.kill(building.pid, signum)
    assert building.line() == ""
    await_ends(pidfds)


def main(kills: int = 1000) -> None:
    builds = kill_workers(kills, seed=random.randrange(2**32))
    print(f"{builds} graphs, a worker killed in {kills} of them: each graph has the bytes that one process gives")
