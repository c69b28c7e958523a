"""The machines of a Ray cluster, and the agents that this run starts on them. The only file here that imports Ray."""

from __future__ import annotations

import logging
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cloudpickle

from ... import __version__
from ...checks import brief
from ...closing import ClosedAfterError, Closing
from ...errors import MarlcoreError
from ...lazy import missing
from ...processes import Interrupts
from ..config import ClusterConfig
from .agent import Agent, bury

CONNECT_S = 5.0
START_S = 120.0  # for Ray to start an agent, and for this to import what a run needs
LOOK_S = 0.2  # between looks at signals meanwhile
END_S = 15.0  # for an agent to end in order
LOWEST = 15  # the niceness that Ray gives its workers
_KINDS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}

log = logging.getLogger(__name__)


class AgentLost(MarlcoreError):
    """An agent, or its machine, is gone."""


@dataclass(frozen=True)
class Machine:
    """A machine of the cluster."""

    id: str
    host: str
    resources: dict[str, float]

    def lacks(self, reserved: dict[str, float]) -> str:
        """What it has too little of, in words; empty if it has enough."""
        short = [name for name, amount in reserved.items() if self.resources.get(name, 0.0) < amount]
        return ", ".join(f"{self.resources.get(name, 0.0):g} of {reserved[name]:g} {name}" for name in short)


class Call:
    """A call of an agent whose answer may still come."""

    def __init__(self, ref: Any) -> None:
        self._ref = ref

    def wait(self, seconds: float = 0.0) -> bool:
        """Whether the answer has come."""
        import ray

        return bool(ray.wait([self._ref], timeout=seconds)[0])

    def answer(self) -> Any:
        """Waits for the answer. Raises AgentLost; what the call raised."""
        import ray

        try:
            return ray.get(self._ref)
        except ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except ray.exceptions.RayError as error:
            raise AgentLost(_one_line(error)) from None


class Hired:
    """An agent on a machine; what it `found` there is known once it has been checked."""

    def __init__(self, machine: Machine, handle: Any) -> None:
        self.machine = machine
        self.found: dict[str, Any] = {}
        self._handle = handle

    def call(self, method: str, *args: Any) -> Call:
        return Call(getattr(self._handle, method).remote(*args))

    def kill(self) -> None:
        import ray

        ray.kill(self._handle)


class Fleet(Closing):
    """A connection to a Ray cluster, and the agents of this run on its machines, each of which was checked.

    Raises ValueError: there is no such cluster, or its machines are fewer or others than the run asks for; in one line,
    and nothing was left running.
    """

    def __init__(
        self, config: ClusterConfig, env_fn: Callable[[], Any], label: str, interrupts: Interrupts | None = None
    ) -> None:
        self._config, self._label, self._interrupts = config, label, interrupts or Interrupts()
        self._check = [path for path in sys.path if path], cloudpickle.dumps(env_fn)
        self._burials: list[Any] = []
        self._owns = _connect(str(config.address))
        self.hired: list[Hired] = []
        with ClosedAfterError(self):
            import ray

            context = ray.get_runtime_context()
            self.namespace: str = context.namespace
            self._own = context.get_node_id()
            self._hire_first(config.nodes if config.nodes_at_start is None else config.nodes_at_start)

    def _hire_first(self, count: int) -> None:
        machines, reserved = self.machines(), self._config.reserved
        fit = [machine for machine in machines if not machine.lacks(reserved)]
        if len(fit) < count:
            short = "; ".join(f"{each.host} has {lack}" for each in machines if (lack := each.lacks(reserved)))
            raise ValueError(
                f"cluster.nodes: expected {count} beside this machine with {_amounts(reserved)}, "
                f"got {len(fit)}{f' ({short})' if short else ''}"
            )
        calls = [(agent, self.checked(agent)) for agent in [self.hire(machine) for machine in fit[:count]]]
        deadline = time.monotonic() + START_S
        for agent, call in calls:
            while not call.wait(LOOK_S):
                self._interrupts.deliver()  # raises what a signal came for
                if time.monotonic() < deadline:
                    continue
                raise ValueError(
                    f"cluster.nodes: expected an agent on {agent.machine.host} within {START_S:g} s, got none; "
                    f"{_amounts(reserved)} may be in use there"
                )
            try:
                self.check(agent, call)
            except AgentLost as error:
                raise ValueError(f"cluster.nodes: expected an agent on {agent.machine.host}, got {error}") from None

    def machines(self) -> list[Machine]:
        """The living machines beside this one."""
        import ray

        return [
            Machine(node["NodeID"], f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})", node["Resources"])
            for node in ray.nodes()
            if node["Alive"] and node["NodeID"] != self._own
        ]

    def free(self) -> Iterator[Machine]:
        """Machines that have enough, and no agent of this run."""
        taken = {agent.machine.id for agent in self.hired}
        return (each for each in self.machines() if each.id not in taken and not each.lacks(self._config.reserved))

    def hire(self, machine: Machine) -> Hired:
        """Starts an agent on a machine, which is not restarted when it dies."""
        import ray

        reserved = self._config.reserved
        options: dict[str, Any] = {_KINDS[name]: amount for name, amount in reserved.items() if name in _KINDS}
        options["resources"] = {name: amount for name, amount in reserved.items() if name not in _KINDS}
        handle = ray.remote(Agent).options(**options, **_there(machine.id), max_restarts=0, max_concurrency=4).remote()
        self.hired.append(Hired(machine, handle))
        return self.hired[-1]

    def checked(self, agent: Hired) -> Call:
        """Has an agent check its machine; `check` reads the answer."""
        return agent.call("check", *self._check)

    def check(self, agent: Hired, call: Call) -> None:
        """Raises ValueError: the agent's machine cannot do the work. AgentLost."""
        agent.found, host = call.answer(), agent.machine.host
        if agent.found["version"] != __version__:
            raise ValueError(f"cluster: expected marlcore {__version__} on {host}, got {agent.found['version']}")
        if agent.found["error"]:
            what = f"expected an environment that can be made on {host}, got {brief(self._label)}"
            raise ValueError(f"env_fn: {what} ({agent.found['error']})")
        if (nice := agent.found["nice"]) >= LOWEST:
            log.warning("%s: expected actors of niceness 0, got %d; start Ray with RAY_worker_niceness=0", host, nice)

    def dismiss(self, agent: Hired) -> None:
        """Ends an agent that is lost, and has its machine, if it lives, end its processes and remove its segments."""
        import ray

        self.hired.remove(agent)
        agent.kill()
        gone = ray.remote(bury).options(num_cpus=0, **_there(agent.machine.id), max_retries=0)
        self._burials.append(gone.remote(agent.found.get("pid", 0), agent.found.get("began", "")))

    @staticmethod
    def kill(handle: Any) -> None:
        import ray

        ray.kill(handle)

    def end(self) -> None:
        """Ends all agents in order, or those that do not answer as lost ones."""
        import ray

        ends = {agent: agent.call("end") for agent in self.hired}
        deadline = time.monotonic() + END_S
        for agent, call in ends.items():
            if call.wait(max(0.0, deadline - time.monotonic())):
                self.hired.remove(agent)
                agent.kill()
            else:
                log.warning("%s: its agent did not end within %g s", agent.machine.host, END_S)
                self.dismiss(agent)
        if self._burials:
            ray.wait(self._burials, num_returns=len(self._burials), timeout=END_S)

    def close(self) -> None:
        """Ends all agents and the connection."""
        import ray

        self.end()
        if self._owns:
            ray.shutdown()


def _there(node: str) -> dict[str, Any]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def _connect(address: str) -> bool:
    """Connects this process to the cluster; False if it was. Raises ValueError, ModuleNotFoundError, in one line."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise missing("cluster", error) from None
    if ray.is_initialized():
        return False
    expected = f"cluster.address: expected a Ray cluster at {address!r} that this machine is part of"
    if address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), CONNECT_S).close()  # Ray would try for a minute
        except OSError as error:
            raise ValueError(f"{expected}, got {error}") from None
    namespace = f"marlcore-{secrets.token_hex(4)}"
    try:
        with _own_signals():
            ray.init(address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise ValueError(f"{expected}, got {_one_line(error)}") from None
    return True


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps this program's handlers of signals, some of which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _amounts(resources: dict[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in resources.items())


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
