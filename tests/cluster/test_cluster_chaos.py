"""Chaos on a cluster: every few seconds something is killed or stopped, and the run goes on.

python tests/long.py cluster_chaos SECONDS RUN_DIR
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import until
from ray_nodes import RayNodes
from whole_clusters import BEGINNING, called, left_on

EVERY_S = 5.0
VICTIMS = {
    "agent": "ray::Agent", "program": "marlcore.training.nodes", "ingest": "ray::IngestActor",
    "porter": "ray::PorterActor", "actor": "marlcore actor", "zombie": "ray::Agent",
}  # fmt: skip
LOSES_A_SEAT = ("agent", "program", "zombie")

DRIVER = """
supervision = mc.SupervisionConfig(max_restarts=10**6, backoff=0.1)
learner = mc.LearnerConfig(device="cpu", warmup=100, publish_interval=2)
config = configured(sys.argv[2], 10**9, updates_per_step=0.5, supervision=supervision, learner=learner,
                    cluster={"lease_seconds": 3.0})
run = mc.start(slow, "dqn", config)
until(lambda: all(words(run, name)[0] > 20 for name in ("node-0", "node-1")), lambda: run.status().running)
for line in sys.stdin:  # each asks for the state
    if not line.strip():
        break
    metrics = run.status().metrics
    state = {name: words(run, name) for name in ("actor-0", "node-0", "node-1")}
    print(json.dumps([state, run.status().updates["agent_0"], metrics.get(("agent_0", "rows"), 0)]), flush=True)
run.stop()
told(run.wait())
"""


class Driver:
    """The run's driver, in a process of its own."""

    def __init__(self, address: str, run_dir: Path) -> None:
        command = [sys.executable, "-c", BEGINNING + DRIVER, address, str(run_dir)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: str = "state") -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        while not (answer := self._process.stdout.readline()).startswith(("[", "{")):
            assert answer, "the driver died"  # others are Ray's words on lost processes, which begin with a colour
        return json.loads(answer)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def driver(address: str, run_dir: Path) -> Iterator[Driver]:
    made = Driver(address, run_dir)
    try:
        yield made
    finally:
        made.close()


def steps(driver: Driver) -> list[int]:
    return [driver.ask()[0][name][0] for name in ("node-0", "node-1")]


def restarts(driver: Driver) -> int:
    return sum(driver.ask()[0][name][1] for name in ("node-0", "node-1"))


def chaos(nodes: RayNodes, run_dir: Path, seconds: float, seed: int = 0) -> dict[str, Any]:
    """Kills or stops a random process every few seconds; by what died, the seconds until both nodes stepped again."""
    generator, recoveries = random.Random(seed), dict[str, list[float]]()
    with driver(nodes.address, run_dir) as run:
        run.ask()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            what = generator.choice(sorted(VICTIMS))
            pids, lost = until(lambda what=what: called(nodes, VICTIMS[what])), restarts(run)
            os.kill(generator.choice(pids), signal.SIGSTOP if what == "zombie" else signal.SIGKILL)
            began = time.monotonic()
            if what in LOSES_A_SEAT:
                until(lambda lost=lost: restarts(run) > lost)
            before = steps(run)
            until(lambda before=before: all(now > then + 10 for now, then in zip(steps(run), before, strict=True)))
            recoveries.setdefault(what, []).append(time.monotonic() - began)
            time.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))
        result = run.ask("")
    each = np.concatenate([*recoveries.values()])
    return result | {"recoveries": recoveries, "p50": np.percentile(each, 50), "p99": np.percentile(each, 99)}


@pytest.mark.long
def test_a_run_learns_on_whatever_is_killed(own_nodes: RayNodes, tmp_path: Path) -> None:
    result = chaos(own_nodes, tmp_path / "run", 60.0)
    assert result["updates"]["agent_0"] > 0 and sum(map(len, result["recoveries"].values())) > 0
    until(lambda: not left_on(own_nodes)["processes"])
    assert not left_on(own_nodes)["segments"]


def main(seconds: int = 300, run_dir: str = "runs/chaos") -> int:
    with RayNodes(3) as nodes:
        result = chaos(nodes, Path(run_dir), seconds)
        until(lambda: not left_on(nodes)["processes"])
        left = left_on(nodes)
        print(json.dumps({**result, "left": left}, indent=1))
    return int(any(left.values()))
