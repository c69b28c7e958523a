"""How runs grow with the copies of an actor's environment, the agents, the policies and the learner processes.

Actors act alone: learners wait for their warm-up. Rates are steps in a second of the actor's CPU time, and the start is
the CPU time of all processes until the first step, which other programs change little.
"""

import os
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import marlcore as mc
from marlcore.envs import TreasureHunt

from .cpu_time import cpu_of_descendants, title

COPIES = (1, 4, 16, 64)
AGENTS = (1, 3, 10, 30, 100)
MANY_AGENTS = (100, 1000)
POLICIES, LEARNERS = 20, 4
UPDATES_PER_STEP = 0.05
BASE_COPIES, BASE_AGENTS = 4, 3
MEASURED_CPU_S = 3.0  # of the actor
LIMIT_S = 600.0


@dataclass(frozen=True)
class RunFigures:
    start_s: float  # from the call to the first step, by the clock
    start_cpu_s: float  # the same, of all processes
    steps_per_cpu_s: float  # of the actor; a step is one action of one agent
    memory_mb: float  # of all processes together, a page that several share counted once
    processes: int
    segments: int  # of the run
    descriptors: int  # of the process that has most
    steps_per_cpu_s_of_all: float


def measure(
    copies: int,
    agents: int,
    policies: int | None = None,
    learners: int | None = None,
    updates_per_step: float | None = None,
) -> RunFigures:
    """By default, each agent has a policy of its own, each policy a learner process, and nothing is learnt."""
    side = max(11, round(4 * agents**0.5))
    # More than the actor writes while it is measured
    rows = (300_000 + 60_000 * copies) // (policies or agents) // copies * copies
    shared = {f"agent_{i}": f"policy_{i % policies}" for i in range(agents)} if policies else None
    with tempfile.TemporaryDirectory() as folder:
        config = mc.Config(
            total_steps=10**9,
            run_dir=str(Path(folder) / "run"),
            updates_per_step=updates_per_step,
            policies=shared,
            actor=mc.ActorConfig(envs=copies),
            replay=mc.ReplayConfig(capacity=rows),
            learner=mc.LearnerConfig(
                warmup=rows if updates_per_step is None else 100, device="cpu", processes=learners
            ),
        )
        cpu_s, began = _cpu_of_all(), time.monotonic()
        with mc.start(partial(TreasureHunt, agents=agents, size=side), "dqn", config) as run:
            wait_until(lambda: run.status().steps > 0)
            start_s, start_cpu_s = time.monotonic() - began, _cpu_of_all() - cpu_s
            wait_until(lambda: _cpu_of_actor() > 1.0)  # its kernels are compiled, its memory is touched
            steps, spent, spent_by_all = run.status().steps, _cpu_of_actor(), _cpu_of_all()
            wait_until(lambda: _cpu_of_actor() > spent + MEASURED_CPU_S)
            taken = run.status().steps - steps
            rate, rate_of_all = taken / (_cpu_of_actor() - spent), taken / (_cpu_of_all() - spent_by_all)
            processes = [os.getpid(), *(pid for pid, _ in cpu_of_descendants(os.getpid()))]
            memory, descriptors = sum(map(_pss_mb, processes)), max(map(_descriptors, processes))
            segments = len(set(re.findall(r"/dev/shm/\S+", Path("/proc/self/maps").read_text())))
    return RunFigures(start_s, start_cpu_s, rate, memory, len(processes), segments, descriptors, rate_of_all)


def wait_until(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not until():
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected a run to get on within {LIMIT_S:g} s")
        time.sleep(0.1)


def _cpu_of_all() -> float:
    return time.process_time() + sum(cpu_of_descendants(os.getpid()).values())


def _cpu_of_actor() -> float:
    return sum(cpu_s for (pid, _), cpu_s in cpu_of_descendants(os.getpid()).items() if title(pid) == "actor-0")


def _descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has ended


def _pss_mb(pid: int) -> float:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has ended
    return int(rollup.partition("\nPss:")[2].split()[0]) / 1024
