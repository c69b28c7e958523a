"""The agent of a machine: an actor of Ray that runs the workers there, and answers the controller."""

import errno
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ... import __version__
from ...envs import vectorize
from ...errors import Fenced, WorkerFailed, suppress_failed_calls
from ...memory import sweep
from ...processes import failure_of
from .actors import Status
from .program import SUPERVISOR

LOOK_S = 0.2  # between looks at its own state
ABANDONED_S = 30.0  # without a word of the controller, after which the agent ends
SWEEPS = 10  # after an agent that was lost


class Agent:
    """A machine's agent. Its methods return at once; a thread makes the run's part there, and ends it if fenced."""

    def __init__(self) -> None:
        sweep()
        self._lock = threading.Lock()
        self._making = threading.Lock()  # held while the run's part is made, whose segments nobody else knows
        self._stack = ExitStack()  # of the part
        self._node: Any = None  # an ActorNode or a LearnerNode
        self._failed: WorkerFailed | None = None
        self._ends = False
        self._heard = time.monotonic()

    def check(self, path: list[str], trial: bytes) -> dict[str, Any]:
        """Runs the trial that checks this machine; says what it found, or what the machine lacks."""
        sys.path += [entry for entry in path if entry not in sys.path]
        found = {"pid": os.getpid(), "began": began(os.getpid()), "version": __version__, "nice": os.nice(0)}
        try:
            pickle.loads(trial)()
            return found | {"error": ""}
        except Exception as error:  # the environment's own code may raise anything
            return found | {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}

    def begin(self, make: bytes, orders: Any, lease_s: float) -> None:
        """Starts to make a run's part here: `make`, a pickled function, takes an ExitStack and orders."""
        self._heard = time.monotonic()
        args = pickle.loads(make), orders, max(ABANDONED_S, 10 * lease_s)
        threading.Thread(target=self._work, args=args, name="marlcore-node", daemon=True).start()

    def beat(self, orders: Any) -> Status | None:
        """The status of the run's part; None while it is being made."""
        self._heard = time.monotonic()
        with self._lock:
            if self._failed is not None:
                return Status(failed=self._failed)
            return None if self._node is None else self._node.beat(orders)

    def end(self) -> None:
        """Ends the run's part, and removes its segments, and those of agents that were lost here."""
        self._ends = True
        with self._making, self._lock:
            self._node = None
            self._stack.close()
        sweep()

    def _work(self, make: Callable[[ExitStack, Any], Any], orders: Any, abandoned_s: float) -> None:
        with self._making:
            if self._ends or (node := self._made(make, orders)) is None:
                return
        while not self._ends:
            time.sleep(LOOK_S)
            if node.error is not None or time.monotonic() - self._heard > abandoned_s:
                self.end()
                os._exit(1)  # the controller has given this agent up

    def _made(self, make: Callable[[ExitStack, Any], Any], orders: Any) -> Any:
        """The run's part; None if that failed."""
        try:
            with ExitStack() as stack:
                node = make(stack, orders)
                with self._lock:
                    self._node, self._stack = node, stack.pop_all()
            return node
        except (ConnectionError, Fenced) as error:
            self._failed = WorkerFailed(SUPERVISOR, "death", str(error))  # another agent may have more luck
        except Exception as error:  # the algorithm's own code may raise anything
            self._failed = failure_of("agent", error)
        return None


def make_once(env_fn: Callable[[], Any]) -> None:
    """Makes a copy of an environment, to see whether this machine can."""
    vectorize(env_fn, 1).close()


def began(pid: int) -> str:
    """The time at which a process began, which tells it from a later one with its number; empty if there is none."""
    with suppress_failed_calls():
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def clean_up(pid: int, its_beginning: str) -> None:
    """Kills a lost agent of this machine, upon which the kernel kills its workers, and removes their segments."""
    if its_beginning and began(pid) == its_beginning:
        with suppress_failed_calls(errno.ESRCH):
            os.kill(pid, signal.SIGKILL)
    for _ in range(SWEEPS):
        time.sleep(LOOK_S)  # for the kernel to end them
        sweep()
