"""Kills a real run's processes at random and reports the damage: `python -m marlcore.testing.chaos --seconds 60`.

The run uses `checked.py`, so that every row and every weight can be checked. SIGKILL ends actors, learners, the parent
and the fork server; SIGSTOP stops them, sometimes for longer than their timeouts. A run without its parent is resumed.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np

from ..cli import CommandLine
from ..config import ActorConfig, Config, EvaluationConfig, LearnerConfig, ReplayConfig, SupervisionConfig
from ..declared import Declared, Number
from ..memory import survey_segments
from ..processes import end_with_parent
from ..run import train
from .checked import AGENTS, CheckedAlgorithm, CheckedEnvironment, read_faults, read_rows
from .victim import Lost, Victim, parent_of

TIMEOUT_S = 10.0  # the supervisor's timeout for workers
RUN = "run-to-be-attacked"  # the first argument in the attacked process; its directory and the attacker's pid follow


@dataclass(frozen=True)
class ChaosOptions(Declared):
    """Kill and stop the processes of a real run at random, and check every row and all weights that the run reads."""

    seconds: Annotated[float, Number(above=0)] = 60.0
    """Duration of the run."""
    seed: int = 0
    """Seed of the attacks, their times and their targets."""
    pause: Annotated[float, Number(above=0)] = 2.0
    """Mean seconds between two attacks."""


@dataclass
class ChaosResult:
    """The attacks on a run, and the damage that they did."""

    attacks: Counter[str] = field(default_factory=Counter)  # by kind
    restarts: int = 0  # of workers and, by resuming, of the run
    rows: int = 0  # number of rows that learners sampled and checked
    faults: list[str] = field(default_factory=list)  # a line for each torn or mixed row, and for torn weights
    hung: int = 0  # recoveries that took longer than five minutes
    lost: int = 0  # steps repeated because the parent was killed before it saved them
    leaked: list[str] = field(default_factory=list)  # segments that remain at the end
    recoveries: list[float] = field(default_factory=list)  # seconds from each death to the successor's first round

    @property
    def good(self) -> bool:
        return not (self.faults or self.hung or self.leaked) and self.rows > 0

    def __str__(self) -> str:
        p50, p99 = np.percentile(self.recoveries, (50, 99)) if self.recoveries else (0.0, 0.0)
        attacks = ", ".join(f"{count} {what}" for what, count in sorted(self.attacks.items()))
        lines = [
            f"attacks: {attacks or 'none'}",
            f"restarts: {self.restarts}; recovery p50 {p50:.2f} s, p99 {p99:.2f} s",
            f"rows checked: {self.rows:,}; torn or mixed rows and weights: {len(self.faults)}",
            f"hung: {self.hung}; lost steps, taken again: {self.lost:,}; left behind: {len(self.leaked)}",
        ]
        return "\n".join([*lines, *self.faults[:10], *self.leaked])


def main(arguments: list[str]) -> int:
    """Attacks a run and prints the result; returns 0 if it is good, 1 if it is bad, 2 for wrong arguments."""
    try:
        options = CommandLine("chaos", arguments).parse(ChaosOptions)
    except ValueError as error:
        sys.stderr.write(f"chaos: {error}\n")
        return 2
    result = attack(options.seconds, options.seed, options.pause)
    sys.stdout.write(f"{result}\n")
    return 0 if result.good else 1


def attack(seconds: float, seed: int = 0, pause: float = 2.0) -> ChaosResult:
    """Starts a run and attacks it for `seconds`, at mean intervals of `pause` seconds; returns the result."""
    others = {file.name for file in survey_segments()}
    with tempfile.TemporaryDirectory() as folder:
        chaos = _Chaos(Path(folder), random.Random(seed))
        try:
            chaos.run(seconds, pause)
        except Lost as lost:
            chaos.result.hung += 1
            chaos.result.faults.append(str(lost))
        finally:
            chaos.victim.close()
        chaos.result.rows = read_rows(Path(folder))
        chaos.result.faults += read_faults(Path(folder))
    left = [file.name for file in survey_segments() if not file.held and file.name not in others]
    chaos.result.leaked += [f"segment {name}" for name in left]
    return chaos.result


class _Chaos:
    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.folder = folder
        self.dice = dice
        self.result = ChaosResult()
        command = [sys.executable, "-m", "marlcore.testing.chaos", RUN, str(folder), str(os.getpid())]
        self.victim = Victim(command, folder / "log")

    def run(self, seconds: float, pause: float) -> None:
        """Attacks the run for `seconds`, then sends Ctrl-C, which must end the run cleanly. Raises Lost."""
        self.victim.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(self.dice.expovariate(1 / pause), max(end - time.monotonic(), 0.0)))
            self._attack()
        if (code := self.victim.interrupt()) != 130:
            self.result.faults.append(f"the run ended with {code}: {(self.folder / 'log').read_text()[-2000:]}")

    def _attack(self) -> None:
        how = self.dice.choices(("kill", "stop", "hang"), (8, 3, 1))[0]
        target = self.dice.choices(("worker", "parent", "fork server"), (17, 2, 1))[0]
        if target == "worker":
            name = self.dice.choice(self.victim.workers)
            self._strike(name.partition("-")[0], how, lambda: self.victim.pid(name), [name])
        elif target == "fork server":
            self._strike(target, "kill" if how == "kill" else "stop", self._server, self.victim.workers)
        elif how == "kill":
            self._kill_parent()
        else:
            self._strike(target, "stop", lambda: self.victim.parent.pid, [])

    def _strike(self, target: str, how: str, find: Callable[[], int], workers: list[str]) -> None:
        """Signals the process that `find` returns, and waits until the named workers are replaced and at work."""
        victim, began, pid = self.victim, time.monotonic(), find()
        attempts = {name: victim.attempt(name) for name in workers}
        if find() != pid or not victim.signal(pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP):
            return  # it is just being replaced
        self.result.attacks[f"{target} {how}"] += 1
        if how == "stop":
            time.sleep(self.dice.random())
            victim.signal(pid, signal.SIGCONT)
            return
        victim.wait(lambda: all(victim.works(name, attempt) for name, attempt in attempts.items()))
        self._recovered(began + (TIMEOUT_S if how == "hang" else 0.0))

    def _kill_parent(self) -> None:
        self.result.attacks["parent kill"] += 1
        began = time.monotonic()
        self.victim.parent.kill()
        steps = self.victim.control.steps
        self.victim.kill()
        saved = json.loads((self.folder / "run" / "checkpoints" / "run.json").read_text())["steps"]
        self.result.lost += max(steps - sum(saved.values()), 0)
        self.victim.start()
        self._recovered(began)

    def _server(self) -> int:
        for name in self.victim.workers:
            with suppress(OSError):
                return parent_of(self.victim.pid(name))
        return 0

    def _recovered(self, since: float) -> None:
        self.result.restarts += 1
        self.result.recoveries.append(time.monotonic() - since)


def _run(folder: Path, parent: int) -> None:
    end_with_parent(parent)
    config = Config(
        total_steps=10**12,
        run_dir=str(folder / "run"),
        actor=ActorConfig(processes=2, envs=2, sync_interval=5),
        learner=LearnerConfig(
            batch_size=256, n_step=1, warmup=300, publish_interval=7, checkpoint_interval=200, device="cpu"
        ),
        updates_per_step=None,  # free running and small replays, so that writers lap samplers
        replay=ReplayConfig(capacity=2000),
        evaluation=EvaluationConfig(interval=5000, episodes=4, envs=2),
        supervision=SupervisionConfig(
            max_restarts=10**6, backoff=0.0, actor_timeout=TIMEOUT_S, learner_timeout=TIMEOUT_S
        ),
    )
    resume = folder / "run" if (folder / "run" / "config.json").exists() else None
    algorithms = {agent: CheckedAlgorithm(str(folder), agent == AGENTS[1]) for agent in AGENTS}
    train(CheckedEnvironment, algorithms, config, progress=False, resume=resume)


if __name__ == "__main__":
    if sys.argv[1:2] == [RUN]:
        try:
            _run(Path(sys.argv[2]), int(sys.argv[3]))
        except KeyboardInterrupt:
            sys.exit(130)
    else:
        sys.exit(main(sys.argv[1:]))
