"""The agent of a machine: a Ray actor that runs the workers there, and answers the controller."""

import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ... import __version__
from ...envs import vectorize
from ...errors import Fenced, WorkerFailed
from ...memory import sweep
from ...processes import failure_of
from .actors import Status
from .program import SUPERVISOR
from .remains import began

LOOK_S = 0.2  # seconds between the thread's checks of the agent's state
ABANDONED_S = 30.0  # seconds without a call from the controller after which an agent ends; at least 10 leases

log = logging.getLogger(__name__)


class Agent:
    """A machine's agent.

    `begin` returns at once; a thread makes the machine's part of the run. If this part is fenced, or if the controller
    falls silent, the thread ends the part and this process. `beat` tells the controller of any other failure.
    """

    def __init__(self) -> None:
        sweep()
        self._lock = threading.Lock()
        self._making = threading.Lock()  # held while the thread makes the run's part, so that `end` waits for this
        self._stack = ExitStack()  # of the run's part
        self._node: Any = None  # an ActorNode or a LearnerNode
        self._failed: WorkerFailed | None = None
        self._ends = False
        self._heard = time.monotonic()

    def check(self, path: list[str], trial: bytes) -> dict[str, Any]:
        """Runs the trial that checks this machine; returns facts about this process, and the trial's "error" or ""."""
        sys.path += [entry for entry in path if entry not in sys.path]
        found = {"pid": os.getpid(), "began": began(os.getpid()), "version": __version__, "nice": os.nice(0)}
        try:
            pickle.loads(trial)()
            return found | {"error": ""}
        except Exception as error:  # the environment may raise anything
            return found | {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}

    def begin(self, make: bytes, orders: Any, lease_s: float) -> None:
        """Starts a thread that makes the run's part here: it calls `make`, a pickled function of a stack and orders."""
        self._heard = time.monotonic()
        args = pickle.loads(make), orders, max(ABANDONED_S, 10 * lease_s)
        threading.Thread(target=self._work, args=args, name="marlcore-node", daemon=True).start()

    def beat(self, orders: Any) -> Status | None:
        """Passes orders to the run's part, and returns its status, or None while the part is being made."""
        self._heard = time.monotonic()
        with self._lock:
            if self._failed is None and self._node is not None:
                try:
                    status: Status = self._node.beat(orders)
                    return status
                except Exception as error:  # the exception that ended a relay or a mirror
                    self._fail(error)
            return None if self._failed is None else Status(failed=self._failed)

    def end(self) -> None:
        """Ends the run's part; removes its segments, and the segments of agents that were lost on this machine."""
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
            if node.error is not None and self._failed is None:
                self._fail(node.error)
            if isinstance(node.error, Fenced) or time.monotonic() - self._heard > abandoned_s:
                try:
                    self.end()
                except Exception:
                    log.exception("this machine's part of the run did not end in order")
                finally:
                    os._exit(1)  # the controller has given up this agent

    def _made(self, make: Callable[[ExitStack, Any], Any], orders: Any) -> Any:
        try:
            with ExitStack() as stack:
                node = make(stack, orders)
                with self._lock:
                    self._node, self._stack = node, stack.pop_all()
            return node
        except Exception as error:  # the algorithm may raise anything
            self._fail(error)
        return None

    def _fail(self, error: BaseException) -> None:
        log.warning("this machine's part of the run failed", exc_info=error)
        if isinstance(error, ConnectionError | Fenced):
            self._failed = WorkerFailed(SUPERVISOR, "death", str(error))  # counts as a lost agent, which is replaced
        else:
            self._failed = failure_of("agent", error)


def make_once(env_fn: Callable[[], Any]) -> None:
    """Makes an environment and closes it, to check that this machine can make it."""
    vectorize(env_fn, 1).close()
