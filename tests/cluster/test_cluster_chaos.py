"""Chaos on a cluster: every few seconds something is killed or stopped, and the run goes on.

python tests/long.py cluster_chaos SECONDS RUN_DIR

The learner's replay, which holds the whole run, shows each row that is torn or there twice.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import children, family, until
from ray_nodes import RayNodes
from whole_clusters import BEGINNING, called, leaves_nothing, left_on, title_of

EVERY_S = 5.0  # of a long run; a short one strikes again at once
PAUSE_S = 2.0  # for which a process is stopped; an agent, until it has lost its seat
TITLES = {
    "agent and its relay": "ray::Agent", "program": "marlcore.cluster.nodes", "ingest": "ray::IngestActor",
    "porter": "ray::PorterActor", "actor": "marlcore actor", "learner": "marlcore learner", "raylet": "",
}  # fmt: skip

MARKED = """
import zlib
import numpy as np
from relayed import raw

def marked():
    # CartPole, slowed down, whose observations also name the process, the copy and the moment, with a checksum
    import gymnasium, numpy, os, time, zlib

    class Marked(gymnasium.ObservationWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.observation_space = gymnasium.spaces.Box(-numpy.inf, numpy.inf, (8,), numpy.float32)
            self.names = [os.getpid(), int.from_bytes(os.urandom(3), "little")]
            self.moment = 0

        def step(self, action):
            time.sleep(0.01)
            return super().step(action)

        def observation(self, observation):
            self.moment += 1
            told = numpy.array([*observation, *(n / 2**24 for n in (*self.names, self.moment)), 0], numpy.float32)
            told[7] = (zlib.crc32(told[:7].tobytes()) >> 8) / 2**24
            return told

    return Marked(gymnasium.make("CartPole-v1"))

def rows(run):
    # The observations in all lanes of the learner's replay, float32 [n, 8]
    with mc.ReplayBuffer.attach(next(iter(run._session.memory.transitions.values()))) as replay:
        (place,) = replay._mapped.layout.of_role("obs")
        return np.concatenate([place.views(raw(replay, lane)) for lane in range(replay.lanes)])
"""

DRIVER = """
answers = open(int(sys.argv[3]), "w")  # since Ray prints of lost processes

def faults():
    # Of all rows that have arrived: their number, those that are torn, and those that are there twice
    found = rows(run)
    sums = [(zlib.crc32(row[:7].tobytes()) >> 8) / 2**24 for row in found]
    torn, different = (found[:, 7] != np.array(sums, np.float32)).sum(), np.unique(found[:, 4:7], axis=0)
    return {"rows": len(found), "torn": int(torn), "twice": len(found) - len(different)}

supervision = mc.SupervisionConfig(max_restarts=10**6, backoff=0.1)
learner = mc.LearnerConfig(device="cpu", warmup=100, publish_interval=2)
config = configured(sys.argv[2], 10**9, updates_per_step=0.5, supervision=supervision, learner=learner,
                    replay=mc.ReplayConfig(capacity=10**6), cluster={"lease_seconds": 6.0})
run = mc.start(marked, "dqn", config)
until(lambda: all(words(run, name)[0] > 20 for name in ("node-0", "node-1")), lambda: run.status().running)
for line in sys.stdin:  # each asks for the state
    if not line.strip():
        break
    if not run.status().running:
        run.wait()  # raises what ended it
    state = {name: words(run, name) for name in ("node-0", "node-1")}
    agents = [agent.found["pid"] for agent in run._session._machines._cluster.agents if agent.has_begun]
    print(json.dumps([state, run.status().updates["agent_0"], agents]), file=answers, flush=True)
print(json.dumps(faults()), file=answers, flush=True)
run.stop()
told(run.wait(), answers)
"""


class Driver:
    """The run's driver, in a process of its own."""

    def __init__(self, address: str, run_dir: Path, within: Sequence[str] = ()) -> None:
        """`within` begins its command: see `Network.within`."""
        answers, theirs = os.pipe()
        command = [*within, sys.executable, "-c", BEGINNING + MARKED + DRIVER, address, str(run_dir), str(theirs)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[theirs], text=True)
        os.close(theirs)
        self._answers = os.fdopen(answers)
        self.pid = self._process.pid

    def ask(self, line: str = "state") -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self.hear()

    def hear(self) -> Any:
        answer = self._answers.readline()
        assert answer, "the driver died"
        return json.loads(answer)

    def progress(self) -> list[int]:
        """The nodes' steps, and the learner's updates."""
        nodes, updates, _ = self.ask()
        return [nodes["node-0"][0], nodes["node-1"][0], updates]

    def lost(self) -> int:
        return sum(restarts for _, restarts in self.ask()[0].values())

    def agents(self) -> list[int]:
        """The processes of the agents that have seats: one that has lost its seat may live on for a while."""
        return [*self.ask()[2]]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._answers.close()


def candidates(what: str, nodes: RayNodes, run: Driver) -> list[int]:
    if what.startswith("agent"):
        return run.agents()
    if what == "program":
        return [pid for agent in run.agents() for pid in children(agent) if TITLES[what] in title_of(pid)]
    if what == "raylet":  # not the driver's, without which no run goes on
        return [pid for pid in nodes.raylets[1:] if {*children(pid)} & {*run.agents()}]
    if what == "learner":
        return [pid for pid in family(run.pid) if TITLES[what] in title_of(pid)]
    return called(nodes, TITLES[what])


def strike(what: str, kills: bool, nodes: RayNodes, run: Driver, generator: random.Random) -> None:
    """Kills or stops a process: a strike of `outlived`."""
    lost = run.lost()  # first: whatever is lost from now on counts
    pid = generator.choice(until(lambda: candidates(what, nodes, run)))
    os.kill(pid, signal.SIGKILL if kills else signal.SIGSTOP)
    if what == "raylet" and kills:
        nodes.restart(nodes.raylets.index(pid))
    if what.startswith("agent") or (kills and what in ("program", "raylet")):
        until(lambda: run.lost() > lost)
    elif not kills:
        time.sleep(PAUSE_S)
        os.kill(pid, signal.SIGCONT)


def at_random(seconds: float, generator: random.Random) -> Iterator[tuple[str, bool]]:
    began = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        yield generator.choice([*TITLES]), generator.random() < 0.7
        time.sleep(max(0.0, EVERY_S - (time.monotonic() - now)))


def outlived(run: Driver, strikes: Iterable[tuple[str, Callable[[], None]]]) -> dict[str, Any]:
    """Strikes a run; returns its result and, by name, the seconds until both nodes step and the learner learns again.

    A strike returns when what is lost with it is known to be.
    """
    recoveries = dict[str, list[float]]()
    until(lambda: run.progress()[2] > 0)
    for name, strikes_it in strikes:
        began = time.monotonic()
        strikes_it()
        before = run.progress()
        until(lambda before=before: (np.subtract(run.progress(), before) > 10).all())
        recoveries.setdefault(name, []).append(time.monotonic() - began)
    found = run.ask("")
    result = run.hear()
    each = np.concatenate([*recoveries.values()])
    p50, p99 = np.percentile(each, [50, 99]).round(2).tolist()
    rounded = {name: [round(s, 1) for s in times] for name, times in sorted(recoveries.items())}
    return result | found | {"recoveries": rounded, "strikes": len(each), "p50": p50, "p99": p99}


def chaos(
    nodes: RayNodes, run_dir: Path, strikes: Iterable[tuple[str, bool]], generator: random.Random
) -> dict[str, Any]:
    with closing(Driver(nodes.address, run_dir)) as run:

        def named(what: str, kills: bool) -> tuple[str, Callable[[], None]]:
            return f"{what} {'killed' if kills else 'stopped'}", partial(strike, what, kills, nodes, run, generator)

        return outlived(run, starmap(named, strikes))


@pytest.mark.long
def test_a_run_outlives_whatever_is_lost(ray_nodes: RayNodes, tmp_path: Path) -> None:
    """Each kind of process is killed once, a machine too, and an agent stopped until it has lost its seat."""
    strikes = [("agent and its relay", False), *((what, True) for what in TITLES)]
    result = chaos(ray_nodes, tmp_path / "run", strikes, random.Random(0))
    assert result["updates"]["agent_0"] > 0 and result["strikes"] == len(strikes) and result["rows"] > 0
    assert result["torn"] == result["twice"] == 0
    leaves_nothing(ray_nodes)
    ray_nodes.settle()


def main(seconds: int = 300, run_dir: str = "runs/chaos", seed: int = 0) -> int:
    with RayNodes(3) as nodes:
        generator = random.Random(seed)
        result = chaos(nodes, Path(run_dir), at_random(seconds, generator), generator)
        until(lambda: not left_on(nodes)["processes"])
        left = left_on(nodes)
        print(json.dumps({**result, "left": left}, indent=1))
    return int(any(left.values()) or result["torn"] + result["twice"] > 0)
