"""A run whose workers are killed all the time learns as one that is left alone.

`python tests/long.py learning_under_kills SECONDS UPDATES` kills for SECONDS, and until every learner has done
UPDATES, and compares what was learned to what a run that is left alone learns in as many.
"""

import math
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from hunt import HUNT, bar
from whole_runs import Runs, checkpoint, kill, pid_of

import marlcore as mc

EVERY = 1000  # updates between checkpoints; they take seconds
PAUSE_S = 2.0
runs = Runs(
    mode="async",
    total_steps=10**12,
    learner={"batch_size": 32, "warmup": 200, "checkpoint_interval": EVERY},
    supervision={"max_restarts": 10**6, "backoff": 0.0},
)
WORKERS = ["actor-0", "learner-agent_0", "learner-agent_1"]


def least_of(kills: Counter[str]) -> int:
    return min(kills["actor"], kills["learner"])


def learn(folder: Path, updates: int, pause: float, seconds: float = 0.0, least: int = 0) -> Counter[str]:
    """Kills a worker every `pause` seconds until all of the limits are reached; returns the kills of each role."""
    dice, kills, end = random.Random(1), Counter[str](), time.monotonic() + seconds
    with runs.start(folder, HUNT) as run:
        due = time.monotonic() + pause
        while min(run.status().updates.values()) < updates or time.monotonic() < end or least_of(kills) < least:
            assert run.status().running
            time.sleep(0.05)
            if time.monotonic() > due and all(pid_of(run, name) for name in WORKERS):
                name = dice.choice(WORKERS)
                kill(run, name)
                kills[name.partition("-")[0]] += 1
                due = time.monotonic() + pause
    return kills


def returns(folder: Path) -> dict[str, float]:
    return dict(mc.evaluate(folder / "run", episodes=200).mean)


@pytest.mark.long
@pytest.mark.usefixtures("undrawn", "shared_fork_server")
def test_a_run_under_kills_learns(tmp_path: Path) -> None:
    kills = learn(tmp_path, 2 * EVERY, PAUSE_S, least=3)
    learned = returns(tmp_path)
    assert min(learned.values()) > bar() and least_of(kills) >= 3, learned


def main(seconds: float, updates: int) -> int:
    """Compares a run under kills with an undisturbed run at equal updates; returns 0 if both reach the bar."""
    low, good = bar(), True
    for what, pause in ((f"a SIGKILL every {PAUSE_S:g} s", PAUSE_S), ("no kills", math.inf)):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            kills = learn(Path(folder), updates, pause, seconds if pause < math.inf else 0.0)
            learned = returns(Path(folder))
            done = [checkpoint(Path(folder) / "run", agent)["updates"] for agent in HUNT().agents]
        good = good and min(learned.values()) > low
        play = ", ".join(f"{agent} {value:.1f}" for agent, value in learned.items())
        print(f"{what}: {dict(kills)}, {done} updates in {time.monotonic() - began:.0f} s: {play} (bar {low:.1f})")
    return 0 if good else 1
