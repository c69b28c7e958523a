"""Runs on a cluster of this machine: the programs of their drivers, and their processes on the nodes."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import await_gone, family, until
from ray_nodes import RayNodes

BEGINNING = """
import json, os, signal, sys, threading, time
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # without it Ray warns of a later version
import marlcore as mc
from marlcore.processes import RESTARTS, STEPS
from processes import until
from seams import undrawn

(no_pictures := undrawn()).__enter__()
ADDRESS = sys.argv[1]
CARTPOLE = mc.NamedEnvironment("gymnasium:CartPole-v1")

def slow():
    # CartPole that leaves the machine's cores to the processes that start
    import gymnasium, time

    class Slow(gymnasium.Wrapper):
        def step(self, action):
            time.sleep(0.01)
            return super().step(action)

    return Slow(gymnasium.make("CartPole-v1"))

def configured(run_dir, total_steps, nodes=2, cluster={}, **changes):
    usual = {"lease_seconds": 24.0}  # a process may stand still for 20 s; a word comes eight times in it
    settings = mc.ClusterConfig(ADDRESS, nodes=nodes, **{**usual, **cluster})
    usual = {"run_dir": run_dir, "learner": mc.LearnerConfig(device="cpu"), "cluster": settings}
    return mc.Config(total_steps=total_steps, **{**usual, **changes})

def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)

def words(run, name):
    control = run._session.control
    return control.workers[name].load(STEPS), control.notes[name].load(RESTARTS)

def told(result, file=None):
    print(json.dumps({"steps": result.steps, "restarts": result.restarts, "returns": result.returns,
                      "updates": result.updates, "stopped": result.stopped}), file=file, flush=True)
"""

FORKS = """
from functools import partial
import marlcore.preload, marlcore.preload_torch
from marlcore.run import doors
doors.Children = partial(doors.Children, fork=None)  # so that no second process imports torch
"""


@dataclass(frozen=True)
class Drive:
    """Starts a run's drivers, whose programs begin as above; their first two arguments are the nodes and `run_dir`."""

    nodes: RayNodes
    program: Callable[..., Any]
    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)  # of `program`; without `start`, drivers are as users'

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def __call__(self, *parts: str, args: Sequence[object] = ()) -> Any:
        parts = (FORKS, *parts) if "start" in self.options else parts
        return self.program(BEGINNING, *parts, args=[self.nodes.address, self.run_dir, *args], **self.options)

    def result(self, *parts: str, args: Sequence[object] = ()) -> Any:
        """What a driver tells at its end; it leaves nothing on the nodes."""
        result = result_of(self(*parts, args=args))
        leaves_nothing(self.nodes)
        return result


def title_of(pid: int) -> str:
    """A process's command line; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def result_of(driver: Any) -> Any:
    """What a driver tells at its end, after what Ray may print of lost processes."""
    return json.loads(driver.finish().splitlines()[-1])


def called(nodes: RayNodes, title: str) -> list[int]:
    return [pid for pid in nodes.processes() if title in title_of(pid)]


def left_on(nodes: RayNodes) -> dict[str, list[object]]:
    """What runs have left on the nodes: segments, and processes of agents; empty lists where there is nothing."""
    segments = [name for node in range(len(nodes.directories)) for name in nodes.segments(node)]
    titles = "ray::Agent", "marlcore.cluster.nodes", "marlcore fork server", "marlcore actor"
    return {"segments": [*segments], "processes": [pid for title in titles for pid in called(nodes, title)]}


def kill(driver: Any) -> None:
    """Kills a driver, and waits until the kernel has ended its workers: until then, a learner may save once more."""
    led_to = family(driver.pid)
    driver.kill()
    await_gone(led_to)


def leaves_nothing(nodes: RayNodes) -> None:
    """Waits until the kernel has ended the last processes of runs that are over; they must have left no segment."""
    until(lambda: not left_on(nodes)["processes"])
    assert left_on(nodes) == {"segments": [], "processes": []}
