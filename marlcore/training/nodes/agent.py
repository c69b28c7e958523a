"""The agent of a node: the actor of Ray that holds the node's part of a run, and answers its controller."""

import errno
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ... import __version__
from ...envs import vectorize
from ...errors import Fenced, WorkerFailed, suppress_failed_calls
from ...memory import sweep
from ...processes import failure_of
from .node import SUPERVISOR, Report

LOOK_S = 0.2  # between looks at its own state
ABANDONED_S = 30.0  # without a word of the controller, after which the agent ends
BURIALS = 10  # sweeps after an agent that was lost


class Agent:
    """A node's agent. Its methods return at once; a thread of its own makes the node's part, and ends it if fenced."""

    def __init__(self) -> None:
        sweep()
        self._lock = threading.Lock()
        self._making = threading.Lock()  # held while the node's part is made, whose segments nobody else knows
        self._node: Any = None  # a Node or a LearnerNode
        self._failed: WorkerFailed | None = None
        self._ends = False
        self._heard = time.monotonic()
        self._abandoned_s = ABANDONED_S

    def check(self, path: list[str], trial: bytes) -> dict[str, Any]:
        """Calls what shows whether the machine can do the work; says what it found, or what it lacks."""
        sys.path += [entry for entry in path if entry not in sys.path]
        found = {"pid": os.getpid(), "began": began(os.getpid()), "version": __version__, "nice": os.nice(0)}
        try:
            pickle.loads(trial)()
            return found | {"error": ""}
        except Exception as error:  # the environment's own code may raise anything
            return found | {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}

    def begin(self, task: bytes, orders: Any) -> None:
        """Starts to make the node's part of a run, by its plan."""
        plan = pickle.loads(task)
        self._heard = time.monotonic()
        self._abandoned_s = max(ABANDONED_S, 10 * plan.config.cluster.lease_seconds)
        threading.Thread(target=self._work, args=(plan, orders), name="marlcore-node", daemon=True).start()

    def beat(self, orders: Any) -> Report | None:
        """The report of the node's part; None while it is being made."""
        self._heard = time.monotonic()
        with self._lock:
            if self._failed is not None:
                return Report(failed=self._failed)
            return None if self._node is None else self._node.beat(orders)

    def end(self) -> None:
        """Ends the node's part, and removes its segments, and those of agents that were lost here."""
        self._ends = True
        with self._making, self._lock:
            node, self._node = self._node, None
            if node is not None:
                node.close()
        sweep()

    def _work(self, plan: Any, orders: Any) -> None:
        with self._making:
            if self._ends or (node := self._made(plan, orders)) is None:
                return
        while not self._ends:
            time.sleep(LOOK_S)
            if node.error is not None or time.monotonic() - self._heard > self._abandoned_s:
                self.end()
                os._exit(1)  # the controller has given this agent up

    def _made(self, plan: Any, orders: Any) -> Any:
        """The node's part; None if that failed."""
        try:
            node = plan.start(orders)
        except (ConnectionError, Fenced) as error:
            self._failed = WorkerFailed(SUPERVISOR, "death", str(error))  # another agent may have more luck
            return None
        except Exception as error:  # the algorithm's own code may raise anything
            self._failed = failure_of("agent", error)
            return None
        with self._lock:
            self._node = node
        return node


def make_once(env_fn: Callable[[], Any]) -> None:
    """Makes a copy of an environment, to see whether this machine can."""
    vectorize(env_fn, 1).close()


def began(pid: int) -> str:
    """The time at which a process began, which tells it from a later one with its number; empty if there is none."""
    with suppress_failed_calls():
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def bury(pid: int, its_beginning: str) -> None:
    """Kills a lost agent of this node, upon which the kernel kills its actors, and removes their segments."""
    if its_beginning and began(pid) == its_beginning:
        with suppress_failed_calls(errno.ESRCH):
            os.kill(pid, signal.SIGKILL)
    for _ in range(BURIALS):
        time.sleep(LOOK_S)  # for the kernel to end them
        sweep()
