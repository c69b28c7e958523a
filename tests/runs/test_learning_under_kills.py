"""A run whose workers are killed all the time learns as one that is left alone.

`python tests/long.py learning_under_kills SECONDS UPDATES` kills for so many seconds at least, and until every learner
has done so many updates, and compares what was learned to what a run that is left alone learns in as many.
"""

import math
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hunt import HUNT, bar, mean_returns

import marlcore as mc
from marlcore.algos import DQN
from marlcore.processes import end_with_parent
from marlcore.spaces import Spaces
from marlcore.testing.victim import Victim
from marlcore.training.config import ActorConfig, LearnerConfig, SupervisionConfig

EVERY = 1000  # updates between checkpoints; they take seconds
PAUSE_S = 2.0
LOOK_S = 0.05
EPSILON = 0.02
CONFIG = mc.Config(
    total_steps=10**12,
    actor=ActorConfig(envs=2, sync_interval=10),
    learner=LearnerConfig(batch_size=32, warmup=200, checkpoint_interval=EVERY, device="cpu"),
    supervision=SupervisionConfig(max_restarts=10**6, backoff=0.0),
)
AGENTS = HUNT().agents


class Kills:
    """SIGKILL to a worker at random every `pause` seconds, for so many seconds at least, and `least` of each role."""

    def __init__(self, pause: float, seconds: float = 0.0, least: int = 0) -> None:
        self.by_role = {"actor": 0, "learner": 0}
        self._pause, self._seconds, self._least = pause, seconds, least
        self._dice = random.Random(0)

    def begin(self) -> None:
        self._next = time.monotonic() + self._pause
        self._end = time.monotonic() + self._seconds

    @property
    def over(self) -> bool:
        return time.monotonic() > self._end and min(self.by_role.values()) >= self._least

    def strike(self, victim: Victim) -> None:
        if time.monotonic() < self._next:
            return
        self._next += self._pause
        name = self._dice.choice(victim.workers)
        if victim.signal(victim.pid(name), signal.SIGKILL):
            self.by_role[name.partition("-")[0]] += 1


class Milestone:
    """The first checkpoints of a run's agents after so many updates; a kill may cost the one that was due then."""

    def __init__(self, run: Path, updates: int) -> None:
        self.states: dict[str, dict[str, Any]] = {}
        self._paths = {agent: run / "checkpoints" / f"{agent}.pt" for agent in AGENTS}
        self._seen: dict[str, int] = {}
        self._updates = updates

    def look(self) -> None:
        for agent, path in self._paths.items():
            if agent in self.states or not path.exists() or self._seen.get(agent) == path.stat().st_mtime_ns:
                continue
            self._seen[agent] = path.stat().st_mtime_ns
            state = torch.load(path)
            if state["updates"] >= self._updates:
                self.states[agent] = state

    @property
    def reached(self) -> bool:
        return len(self.states) == len(AGENTS)


def learn(folder: Path, updates: int, kills: Kills) -> dict[str, dict[str, Any]]:
    """By agent, its checkpoint after so many updates; the run goes on until the kills are over."""
    victim = Victim([sys.executable, __file__, "run", str(folder), str(os.getpid())], folder / "log")
    milestone = Milestone(folder / "run", updates)
    try:
        victim.start()
        kills.begin()
        while not (milestone.reached and kills.over):
            assert victim.parent.poll() is None, (folder / "log").read_text()
            kills.strike(victim)
            milestone.look()
            time.sleep(LOOK_S)
        assert victim.interrupt() == 130
    finally:
        victim.close()
    return milestone.states


def run(folder: Path, parent: int) -> None:
    """The run itself, in a process of its own."""
    end_with_parent(parent)
    try:
        mc.train(HUNT, DQN(), replace(CONFIG, run_dir=str(folder / "run")), progress=False)
    except KeyboardInterrupt:
        sys.exit(130)


def returns(states: dict[str, dict[str, Any]]) -> dict[str, float]:
    """By agent, the mean return of the policies that were saved."""
    env, generator = HUNT(), np.random.default_rng(0)
    models = {}
    for agent, state in states.items():
        models[agent] = DQN().make_model(Spaces(env.observation_spaces[agent], env.action_spaces[agent]))
        models[agent].load_state_dict(state["network"])

    def choose(agent: str, obs: Any) -> int:
        seen, explore = torch.from_numpy(obs)[None], {"epsilon": EPSILON}
        chosen = DQN().act(models[agent], seen, explore=explore, state=None, mask=None, generator=generator)
        return int(chosen.action[0])

    return mean_returns(choose)


@pytest.mark.long
def test_a_run_under_kills_learns(tmp_path: Path) -> None:
    """A run whose workers are killed every two seconds learns."""
    kills = Kills(PAUSE_S, least=3)
    found = returns(learn(tmp_path, 8 * EVERY, kills))
    assert min(found.values()) > bar(), found
    assert all(count >= 3 for count in kills.by_role.values())


def main(seconds: float, updates: int) -> int:
    """Prints what a run under kills and one that is left alone come to, at equal updates.

    Returns: 0 when both reach the bar.
    """
    low, good = bar(), True
    for what, kills in ((f"a SIGKILL every {PAUSE_S:g} s", Kills(PAUSE_S, seconds)), ("no kills", Kills(math.inf))):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            states = learn(Path(folder), updates, kills)
        found, done = returns(states), [state["updates"] for state in states.values()]
        good = good and min(found.values()) > low
        play = ", ".join(f"{agent} {value:.1f}" for agent, value in found.items())
        print(f"{what}: {kills.by_role}, {done} updates in {time.monotonic() - began:.0f} s: {play} (bar {low:.1f})")
    return 0 if good else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        sys.exit(main(float(sys.argv[1]), int(sys.argv[2])))
