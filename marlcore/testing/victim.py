"""A real run in separate processes, for tests that watch, stop and kill it from outside."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import MarlcoreError
from ..memory import SHM_DIR
from ..processes import BEATS, PID, READY, RESTARTS, Control

HUNG_S = 300.0  # seconds after which a run counts as hung; the supervisor allows 120 s for a start
LOOK_S = 0.02


class Lost(Exception):
    """The run hung or ended unexpectedly."""


@dataclass
class Victim:
    """A run in its own process group."""

    command: Sequence[str]  # starts the run, and restarts it after its parent was killed
    log: Path
    parent: subprocess.Popen[bytes] = field(init=False, repr=False)
    control: Control = field(init=False, repr=False)  # while the run works

    def start(self) -> None:
        """Starts the run, and waits until every worker works. Raises Lost."""
        self._others = {*SHM_DIR.glob(Control.files)}  # not to be opened, since that would hold them
        with self.log.open("ab") as log:
            self.parent = subprocess.Popen(self.command, stdout=log, stderr=log, start_new_session=True)
        self.wait(self._find_control)
        self.wait(lambda: all(self.works(name, 0) for name in self.workers))

    def _find_control(self) -> bool:
        for path in {*SHM_DIR.glob(Control.files)} - self._others:
            try:
                control = Control.watch(path)
            except MarlcoreError:  # removed meanwhile
                continue
            if control.about.get("pid") == self.parent.pid:
                self.control = control
                return True
            control.close()
        return False

    @property
    def workers(self) -> list[str]:
        return list(self.control.workers)

    def pid(self, name: str) -> int:
        return self.control.notes[name].load(PID)

    def attempt(self, name: str) -> int:
        return self.control.notes[name].load(RESTARTS) + 1

    def works(self, name: str, attempt: int) -> bool:
        """Whether a successor of the worker's process number `attempt` has completed a round of work."""
        counters = self.control.workers[name]
        return counters.load(READY) > attempt and counters.load(BEATS) > 0

    def signal(self, pid: int, signum: int) -> bool:
        """Signals a process of the run; returns False if it is gone, even if another program has its pid now."""
        with suppress(ProcessLookupError), ExitStack() as opened:
            if pid:
                pidfd = os.pidfd_open(pid)
                opened.callback(os.close, pidfd)
                if os.getpgid(pid) == self.parent.pid:
                    signal.pidfd_send_signal(pidfd, signum)
                    return True
        return False

    def wait(self, done: Callable[[], bool], alone: bool = False) -> None:
        """Waits until `done()` is True. With `alone`, the parent may end, and is not reaped. Raises Lost."""
        end = time.monotonic() + HUNG_S
        while not done():
            if not alone and self.parent.poll() is not None:
                raise Lost(f"the run ended with {self.parent.returncode}: {self.log.read_text()[-2000:]}")
            if time.monotonic() > end:
                raise Lost(f"nothing happened for {HUNG_S:g} s: {self.log.read_text()[-2000:]}")
            time.sleep(LOOK_S)

    def kill(self) -> None:
        """Kills the parent, and waits until all processes of the run are gone. Raises Lost."""
        self.parent.kill()
        # The parent is not reaped yet, so its group id cannot be reused.
        self.wait(lambda: not living(self.parent.pid), alone=True)
        self.parent.wait()
        self._let_go()

    def interrupt(self) -> int:
        """Ends the run as Ctrl-C does; returns its exit code. Raises Lost."""
        self.parent.send_signal(signal.SIGINT)
        self.wait(lambda: not living(self.parent.pid), alone=True)
        return self.parent.wait()

    def close(self) -> None:
        self._let_go()
        parent: subprocess.Popen[bytes] | None = vars(self).get("parent")
        if parent is not None and parent.returncode is None:  # not reaped, so the group id is still its own
            os.killpg(parent.pid, signal.SIGKILL)
            parent.wait()

    def _let_go(self) -> None:
        if "control" in vars(self):
            self.control.close()
            del self.control  # a remaining view would hold the segment


def living(group: int) -> list[int]:
    pids = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group = status.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of_group) == group and state != "Z":
            pids.append(int(status.parent.name))
    return pids


def parent_of(pid: int) -> int:
    """Returns the pid of a process's parent. Raises OSError if the process does not exist."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
