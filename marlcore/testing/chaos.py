"""Kills a real run's processes at random and says what became of it: `python -m marlcore.testing.chaos --seconds 60`.

The run is one of `checked.py`, whose every row and every weight says whether it is whole. Actors, learners and the
parent are ended by SIGKILL, or stopped for a while by SIGSTOP, some for longer than their time-outs; the run of a
killed parent is resumed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from ..config import ActorConfig, Config, LearnerConfig, ReplayConfig, SupervisionConfig
from ..control import BEATS, PID, READY, RESTARTS, STEPS, Control
from ..errors import MarlcoreError
from ..options import parse
from ..processes import end_with_parent
from ..shm import SHM_DIR, survey
from ..system import train
from .checked import CheckedAlgorithm, CheckedEnvironment, read_faults, read_rows

__all__ = ["Report", "main", "wreak"]

TIMEOUT_S = 10.0  # of silent workers
HUNG_S = 120.0  # without which a recovery is none
LOOK_S = 0.02
RUN = "run-to-be-struck"  # this module as the run itself: the folder and the process that strikes follow


@dataclass(frozen=True)
class ChaosOptions:
    """Kill and stop the processes of a real run at random, and check every row and every weight that is read."""

    seconds: float = 60.0
    """How long."""
    seed: int = 0
    """Of what is done, when and to whom."""
    pause: float = 2.0
    """Seconds between two blows, on average."""


@dataclass
class Report:
    """What became of a run.

    Attributes:
        blows: by what was done, how often.
        restarts: of workers and, by resuming, of the run.
        rows: that learners drew and checked. faults: torn or mixed ones, and weights; a line each.
        hung: recoveries that took longer than two minutes.
        repeated: steps that were taken again because their parent was killed before it had noted them.
        leaked: segments and processes that were left at the end.
        recoveries: seconds from each death to the successor's first round.
    """

    blows: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    rows: int = 0
    faults: list[str] = field(default_factory=list)
    hung: int = 0
    repeated: int = 0
    leaked: list[str] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.faults or self.hung or self.leaked) and self.rows > 0

    def __str__(self) -> str:
        p50, p99 = np.percentile(self.recoveries, (50, 99)) if self.recoveries else (0.0, 0.0)
        blows = ", ".join(f"{count} {what}" for what, count in sorted(self.blows.items()))
        lines = [
            f"blows: {blows or 'none'}",
            f"restarts: {self.restarts}; recovery p50 {p50:.2f} s, p99 {p99:.2f} s",
            f"rows checked: {self.rows:,}; torn or mixed rows and weights: {len(self.faults)}",
            f"hung: {self.hung}; steps taken again: {self.repeated:,}; left behind: {len(self.leaked)}",
        ]
        return "\n".join([*lines, *self.faults[:10], *self.leaked])


def main(arguments: list[str]) -> int:
    """Runs it with these arguments and prints the report.

    Returns: 0 when nothing was torn, hung or left behind, 1 otherwise, 2 for bad input.
    """
    try:
        options = parse(ChaosOptions, arguments, "chaos")
        for name, value in (("seconds", options.seconds), ("pause", options.pause)):
            if not 0 < value < float("inf"):
                raise ValueError(f"{name}: expected a number above 0, got {value!r}")
    except ValueError as error:
        sys.stderr.write(f"chaos: {error}\n")
        return 2
    report = wreak(options.seconds, options.seed, options.pause)
    sys.stdout.write(f"{report}\n")
    return 0 if report.good else 1


def wreak(seconds: float, seed: int = 0, pause: float = 2.0) -> Report:
    """A run with blows for so many seconds; what became of it."""
    with tempfile.TemporaryDirectory() as folder:
        chaos = _Chaos(Path(folder), random.Random(seed))
        try:
            chaos.start()
            end = time.monotonic() + seconds
            while time.monotonic() < end and not chaos.report.hung:
                time.sleep(min(chaos.dice.expovariate(1 / pause), max(end - time.monotonic(), 0.0)))
                chaos.strike()
            if not chaos.report.hung:
                chaos.finish()
        finally:
            chaos.end()
        chaos.report.rows = read_rows(Path(folder))
        chaos.report.faults += read_faults(Path(folder))
        return chaos.report


class _Chaos:
    """One run, and who strikes it."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.folder = folder
        self.dice = dice
        self.report = Report()
        self._parent: subprocess.Popen[bytes] | None = None
        self._control: Control | None = None
        self._before = {file.name for file in survey()}

    def start(self) -> None:
        """Starts the run, or resumes it, and waits until every worker works."""
        command = [sys.executable, "-m", "marlcore.testing.chaos", RUN, str(self.folder), str(os.getpid())]
        log = (self.folder / "log").open("ab")
        with log:
            self._parent = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        if not self._await(self._find_control):
            return
        for name in self._workers():
            if not self._await(partial(self._works, name, 0)):
                return

    def strike(self) -> None:
        """One blow to anyone, and what it takes until the run goes on."""
        assert self._parent is not None
        blow = self.dice.choices(("kill", "stop", "hang"), (8, 3, 1))[0]
        if self.dice.random() < 0.1:
            self._strike_parent(blow)
            return
        name = self.dice.choice(self._workers())
        role = name.partition("-")[0]
        assert self._control is not None
        notes = self._control.notes[name]
        pid, began = notes.load(PID), time.monotonic()
        attempt = notes.load(RESTARTS) + 1
        if notes.load(PID) != pid or not self._signal(pid, signal.SIGKILL if blow == "kill" else signal.SIGSTOP):
            return  # it is being replaced just now
        self.report.blows[f"{role} {blow}"] += 1
        if blow == "stop":
            time.sleep(self.dice.random())
            self._signal(pid, signal.SIGCONT)
            return
        if self._await(lambda: self._works(name, attempt)):
            self.report.restarts += 1
            self.report.recoveries.append(time.monotonic() - began - (TIMEOUT_S if blow == "hang" else 0.0))

    def _strike_parent(self, blow: str) -> None:
        assert self._parent is not None
        if blow != "kill":
            self.report.blows["parent stop"] += 1
            self._parent.send_signal(signal.SIGSTOP)
            time.sleep(self.dice.random())
            self._parent.send_signal(signal.SIGCONT)
            return
        self.report.blows["parent kill"] += 1
        began, group = time.monotonic(), self._parent.pid
        self._parent.kill()
        steps = self._steps()
        # Not reaped yet, so that its group is still nobody else's.
        if not self._await(lambda: not _living(group), alone=True):
            return
        self._parent.wait()
        noted = json.loads((self.folder / "run" / "checkpoints" / "run.json").read_text())["steps"]
        self.report.repeated += max(steps - sum(noted.values()), 0)
        self._let_go()
        self.start()
        self.report.restarts += 1
        self.report.recoveries.append(time.monotonic() - began)

    def finish(self) -> None:
        """Stops the run as Ctrl-C does; it must end, and well."""
        assert self._parent is not None
        self._parent.send_signal(signal.SIGINT)
        group = self._parent.pid
        if not self._await(self._ended, alone=True) or not self._await(lambda: not _living(group), alone=True):
            return
        if (code := self._parent.wait()) != 130:
            self.report.faults.append(f"the run ended with {code}: {(self.folder / 'log').read_text()[-2000:]}")

    def end(self) -> None:
        """Ends what is left, and notes which segments nobody has any more."""
        self._let_go()
        if self._parent is not None and self._parent.returncode is None:  # not reaped, so that the group is its still
            os.killpg(self._parent.pid, signal.SIGKILL)
            self._parent.wait()
        left = [file.name for file in survey() if not file.held and file.name not in self._before]
        self.report.leaked += [f"segment {name}" for name in left]

    def _ended(self) -> bool:
        """Whether the parent has ended; it is not reaped."""
        assert self._parent is not None
        return os.waitid(os.P_PID, self._parent.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def _let_go(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    def _find_control(self) -> bool:
        assert self._parent is not None
        for path in SHM_DIR.glob("marlcore-control-*"):
            try:
                control = Control.watch(path)
            except MarlcoreError:  # gone meanwhile
                continue
            if control.about.get("pid") == self._parent.pid:
                self._control = control
                return True
            control.close()
        return False

    def _workers(self) -> list[str]:
        assert self._control is not None
        return list(self._control.workers)

    def _works(self, name: str, attempt: int) -> bool:
        """Whether a later process than the `attempt`th does the worker's work, and has done a round."""
        assert self._control is not None
        counters = self._control.workers[name]
        return counters.load(READY) > attempt and counters.load(BEATS) > 0

    def _steps(self) -> int:
        assert self._control is not None
        return sum(counters.load(STEPS) for counters in self._control.workers.values())

    def _signal(self, pid: int, signum: int) -> bool:
        """Whether the process was there; one that has its number by now, but is none of the run's, is left alone."""
        assert self._parent is not None
        try:
            pidfd = os.pidfd_open(pid)
        except (ProcessLookupError, ValueError):
            return False
        try:
            if os.getpgid(pid) != self._parent.pid:
                return False
            signal.pidfd_send_signal(pidfd, signum)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        return True

    def _await(self, done: Callable[[], bool], alone: bool = False) -> bool:
        """Waits for it; False, and counted as hung, when that takes too long or the run ends instead.

        `alone` when the run's parent is to end, and not to be reaped.
        """
        assert self._parent is not None
        end = time.monotonic() + HUNG_S
        while not done():
            if not alone and self._parent.poll() is not None:
                self.report.faults.append(f"the run ended: {(self.folder / 'log').read_text()[-2000:]}")
            elif time.monotonic() < end:
                time.sleep(LOOK_S)
                continue
            self.report.hung += 1
            return False
        return True


def _living(group: int) -> list[int]:
    """The processes of a group, but for those that ended and wait for somebody to take note."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group = status.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of_group) == group and state != "Z":
            found.append(int(status.parent.name))
    return found


def _run(folder: Path, parent: int) -> None:
    """The run that is struck: in a process of its own, until it is stopped, or whoever strikes it is gone."""
    end_with_parent(parent)
    config = Config(
        total_steps=10**12,
        run_dir=str(folder / "run"),
        actor=ActorConfig(processes=2, envs=2, sync_interval=5),
        learner=LearnerConfig(batch_size=256, warmup=300, publish_interval=7, checkpoint_interval=200, device="cpu"),
        replay=ReplayConfig(capacity=2000),  # small, so that writers lap samplers
        supervision=SupervisionConfig(
            max_restarts=10**6, backoff=0.0, actor_timeout=TIMEOUT_S, learner_timeout=TIMEOUT_S
        ),
    )
    resume = folder / "run" if (folder / "run" / "config.json").exists() else None
    train(CheckedEnvironment, CheckedAlgorithm(str(folder)), config, progress=False, resume=resume)


if __name__ == "__main__":
    if sys.argv[1:2] == [RUN]:
        try:
            _run(Path(sys.argv[2]), int(sys.argv[3]))
        except KeyboardInterrupt:
            sys.exit(130)
    else:
        sys.exit(main(sys.argv[1:]))
