"""A real run in processes of its own, to be watched, stopped and killed from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import MarlcoreError
from ..memory import SHM_DIR
from ..processes import BEATS, PID, READY, RESTARTS, Control

__all__ = ["Lost", "Victim", "living", "parent_of"]

HUNG_S = 300.0  # without which something will not happen any more; what starts is given 120 by its supervisor
LOOK_S = 0.02


class Lost(Exception):
    """The run did not do in time what it had to do, or ended instead."""


class Victim:
    """A run.

    Args:
        command: starts it, in a process group of its own; after its parent was killed, again.
        log: where its output goes.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._parent: subprocess.Popen[bytes] | None = None
        self._control: Control | None = None

    def start(self) -> None:
        """Starts it, and waits until every worker works. Raises: Lost."""
        self._others = {*SHM_DIR.glob("marlcore-control-*")}  # to look into one is to hold it
        with self._log.open("ab") as log:
            self._parent = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        self.wait(self._find_control)
        self.wait(lambda: all(self.works(name, 0) for name in self.workers))

    def _find_control(self) -> bool:
        for path in {*SHM_DIR.glob("marlcore-control-*")} - self._others:
            try:
                control = Control.watch(path)
            except MarlcoreError:  # gone meanwhile
                continue
            if control.about.get("pid") == self.parent.pid:
                self._control = control
                return True
            control.close()
        return False

    @property
    def parent(self) -> subprocess.Popen[bytes]:
        """The process that trains, and watches the others."""
        assert self._parent is not None
        return self._parent

    @property
    def control(self) -> Control:
        """Its control block."""
        assert self._control is not None
        return self._control

    @property
    def workers(self) -> list[str]:
        """By name."""
        return list(self.control.workers)

    def pid(self, name: str) -> int:
        """Of a worker's process; 0 while it has none."""
        return self.control.notes[name].load(PID)

    def attempt(self, name: str) -> int:
        """How many processes a worker has had."""
        return self.control.notes[name].load(RESTARTS) + 1

    def works(self, name: str, attempt: int) -> bool:
        """Whether a later process than the `attempt`th does the worker's work, and has done a round."""
        counters = self.control.workers[name]
        return counters.load(READY) > attempt and counters.load(BEATS) > 0

    def signal(self, pid: int, signum: int) -> bool:
        """Whether the process was there; one that has its number by now, but is none of the run's, is left alone."""
        if not pid:
            return False
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        try:
            if os.getpgid(pid) != self.parent.pid:
                return False
            signal.pidfd_send_signal(pidfd, signum)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        return True

    def wait(self, done: Callable[[], bool], alone: bool = False) -> None:
        """Waits for it; `alone` when the run's parent is to end, and not to be reaped. Raises: Lost."""
        end = time.monotonic() + HUNG_S
        while not done():
            if not alone and self.parent.poll() is not None:
                raise Lost(f"the run ended with {self.parent.returncode}: {self._log.read_text()[-2000:]}")
            if time.monotonic() > end:
                raise Lost(f"nothing happened for {HUNG_S:g} s: {self._log.read_text()[-2000:]}")
            time.sleep(LOOK_S)

    def kill(self) -> None:
        """Kills its parent, and waits until all its processes are gone. Raises: Lost."""
        self.parent.kill()
        # Not reaped yet, so that its group is still nobody else's.
        self.wait(lambda: not living(self.parent.pid), alone=True)
        self.parent.wait()
        self._let_go()

    def interrupt(self) -> int:
        """Ends it as Ctrl-C does; its exit code. Raises: Lost."""
        self.parent.send_signal(signal.SIGINT)
        self.wait(lambda: not living(self.parent.pid), alone=True)
        return self.parent.wait()

    def close(self) -> None:
        """Ends all that is left of it."""
        self._let_go()
        if self._parent is not None and self._parent.returncode is None:  # not reaped, so that the group is its still
            os.killpg(self._parent.pid, signal.SIGKILL)
            self._parent.wait()

    def _let_go(self) -> None:
        if self._control is not None:
            self._control.close()
        self._control = None  # whoever has a view of a segment holds it


def living(group: int) -> list[int]:
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


def parent_of(pid: int) -> int:
    """A process's parent. Raises OSError: there is no such process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
