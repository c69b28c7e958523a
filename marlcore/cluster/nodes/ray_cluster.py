"""The machines of a Ray cluster, and this run's agents on them; of the control, this file alone imports Ray."""

from __future__ import annotations

import logging
import secrets
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from textwrap import shorten
from typing import Any

import cloudpickle

from ... import __version__
from ...checks import brief
from ...closing import ClosedAfterError, Closing
from ...config import ClusterConfig
from ...errors import MarlcoreError
from ...lazy import missing
from ...processes import Interrupts, handlers_kept
from .agent import Agent, clean_up, make_once

CONNECT_S = 5.0
START_S = 120.0  # for Ray to start an agent, and for this to import what a run needs
LOOK_S = 0.2  # between looks at signals meanwhile
END_S = 15.0  # for an agent to end in order
LOWEST = 15  # the niceness that Ray gives its workers
TOKENS = " Export RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN unless ~/.ray/auth_token holds the cluster's token"
_KINDS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}

log = logging.getLogger(__name__)


class AgentLost(MarlcoreError):
    """An agent, or its machine, is gone."""


@dataclass(frozen=True)
class Machine:
    """A machine of the cluster, and what is left there beside this run's agents."""

    id: str
    host: str
    resources: dict[str, float]

    def lacks(self, reserved: dict[str, float]) -> str:
        """What it has too little of, in words; empty if it has enough."""
        short = [name for name, amount in reserved.items() if self.resources.get(name, 0.0) < amount]
        return ", ".join(f"{self.resources.get(name, 0.0):g} of {reserved[name]:g} {name}" for name in short)


@dataclass(frozen=True)
class Role:
    """What agents are for: all actors of a machine, or a policy's learner.

    Attributes:
        label: the setting that asks for them.
        reserved: what Ray reserves for each.
        trial: pickled, a function without arguments that each machine calls first, and that raises what it lacks.
        wants: what the trial is for, in words; empty if its error says all.
        exclusive: whether a machine may have one of them only; and this machine none.
    """

    label: str
    reserved: dict[str, float]
    trial: bytes
    wants: str = ""
    exclusive: bool = False


class AgentHandle:
    """An agent on a machine, as the driver has it; of its calls, the last one's answer may be awaited.

    Attributes:
        found: what it found there, once it has been checked.
        has_begun: whether it may hold anything there.
    """

    def __init__(self, machine: Machine, actor: Any, role: Role) -> None:
        self.machine, self.role, self._actor = machine, role, actor
        self.found: dict[str, Any] = {}
        self.has_begun = False
        self._awaited: Any = None

    def call(self, method: str, *args: Any) -> None:
        self.has_begun |= method == "begin"
        self._awaited = getattr(self._actor, method).remote(*args)

    @property
    def is_awaited(self) -> bool:
        """Whether the answer of a call is still to be taken."""
        return self._awaited is not None

    def has_answered(self, seconds: float = 0.0) -> bool:
        """Whether an answer can be taken, perhaps after a wait."""
        import ray

        return self.is_awaited and bool(ray.wait([self._awaited], timeout=seconds)[0])

    def answer(self) -> Any:
        """Takes the answer, for which it waits. Raises AgentLost; what the call raised."""
        import ray

        awaited, self._awaited = self._awaited, None
        try:
            return ray.get(awaited)
        except ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except ray.exceptions.RayError as error:
            raise AgentLost(_one_line(error)) from None

    def take_check(self) -> None:
        """Takes the answer to its first call. Raises ValueError: its machine cannot do the work. AgentLost."""
        self.found, host, role = self.answer(), self.machine.host, self.role
        if self.found["version"] != __version__:
            raise ValueError(f"cluster: expected marlcore {__version__} on {host}, got {self.found['version']}")
        if error := self.found["error"]:
            lacks = error.removeprefix("ValueError: ")
            raise ValueError(f"{role.wants} ({host}: {error})" if role.wants else f"{lacks} ({role.label}, {host})")
        if (nice := self.found["nice"]) >= LOWEST:
            log.warning("%s: expected workers of niceness 0, got %d; start Ray with RAY_worker_niceness=0", host, nice)

    def kill(self) -> None:
        import ray

        ray.kill(self._actor)


class RayCluster(Closing):
    """A connection to a Ray cluster, and the agents of this run on its machines, each of which was checked.

    Raises ValueError: there is no such cluster, or its machines are fewer or others than the run asks for; in one line,
    and nothing was left running.

    Attributes:
        acting: the role of machines with actors. learning: by policy, that of its learner.
        agents: those that are living, as far as is known.
    """

    def __init__(
        self, config: ClusterConfig, env_fn: Callable[[], Any], label: str, interrupts: Interrupts | None = None,
        trials: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:  # fmt: skip
        """`trials`: by policy of `config.learners`, what its learner's machine must be able to do."""
        self._interrupts = interrupts or Interrupts()
        self._path = [path for path in sys.path if path]
        trial = cloudpickle.dumps(partial(make_once, env_fn))
        wants = f"env_fn: expected an environment that can be made there, got {brief(label)}"
        self.acting = Role("cluster.nodes", config.reserved, trial, wants, exclusive=True)
        self.learning = {
            policy: Role(f"cluster.learners: {policy}", config.reserved_for(policy), cloudpickle.dumps(trial))
            for policy, trial in (trials or {}).items()
        }
        self.agents: list[AgentHandle] = []
        self._losses: Counter[str] = Counter()  # of agents, by machine
        self._cleanups: list[Any] = []
        self._owns = _connect(str(config.address))
        with ClosedAfterError(self):
            import ray

            context = ray.get_runtime_context()
            self.namespace: str = context.namespace
            self._own = context.get_node_id()
            self._start_first(config.nodes if config.nodes_at_start is None else config.nodes_at_start)

    def _start_first(self, least: int) -> None:
        """Starts an agent for each learner, then as many for actors; roles that fewest machines suit come first."""
        for role in sorted(self.learning.values(), key=lambda role: len([*self.free(role)])):
            machine = next(self.free(role), None)
            if machine is None:
                raise ValueError(self.lack(role))
            self.start(machine, role)
        fit = [*self.free(self.acting)]
        if len(fit) < least:
            raise ValueError(self.lack(self.acting, f"{least} beside this machine", str(len(fit))))
        for machine in fit[:least]:
            self.start(machine, self.acting)
        deadline = time.monotonic() + START_S
        for agent in self.agents:
            self._await_check(agent, deadline)

    def _await_check(self, agent: AgentHandle, deadline: float) -> None:
        label, host = agent.role.label, agent.machine.host
        while not agent.has_answered(LOOK_S):
            self._interrupts.deliver()  # raises what a signal came for
            if time.monotonic() >= deadline:
                raise ValueError(
                    f"{label}: expected an agent on {host} within {START_S:g} s, got none; "
                    f"{_amounts(agent.role.reserved)} may be in use there"
                )
        try:
            agent.take_check()
        except AgentLost as error:
            raise ValueError(f"{label}: expected an agent on {host}, got {error}") from None

    def machines(self) -> list[Machine]:
        """The living machines."""
        import ray

        found = []
        for node in ray.nodes():
            if node["Alive"]:
                left = Counter(node["Resources"])
                for agent in self.agents:
                    if agent.machine.id == node["NodeID"]:
                        left.subtract(agent.role.reserved)
                host = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
                found.append(Machine(node["NodeID"], host, dict(left)))
        return found

    def free(self, role: Role) -> Iterator[Machine]:
        """Machines that may take another agent.

        Those that lost fewest agents come first, then others than this one, then those that have fewest.
        """
        occupied = {agent.machine.id for agent in self.agents if agent.role is role}
        agents, losses = Counter(agent.machine.id for agent in self.agents), self._losses
        for machine in sorted(
            self.machines(), key=lambda each: (losses[each.id], each.id == self._own, agents[each.id])
        ):
            if not machine.lacks(role.reserved) and not (role.exclusive and machine.id in {*occupied, self._own}):
                yield machine

    def lack(self, role: Role, expected: str = "a machine", got: str = "none") -> str:
        """Says that too few machines may take an agent of a role, and what each lacks."""
        could = [each for each in self.machines() if not (role.exclusive and each.id == self._own)]
        lacking = "; ".join(f"{each.host} has {lack}" for each in could if (lack := each.lacks(role.reserved)))
        said = f"{role.label}: expected {expected} with {_amounts(role.reserved)}, got {got}"
        return f"{said} ({lacking})" if lacking else said

    def start(self, machine: Machine, role: Role) -> AgentHandle:
        """Starts an agent on a machine, which it checks first. It is not restarted when it dies."""
        import ray

        options: dict[str, Any] = {_KINDS[name]: amount for name, amount in role.reserved.items() if name in _KINDS}
        options["resources"] = {name: amount for name, amount in role.reserved.items() if name not in _KINDS}
        actor = ray.remote(Agent).options(**options, **_there(machine.id), max_restarts=0, max_concurrency=4).remote()
        self.agents.append(AgentHandle(machine, actor, role))
        self.agents[-1].call("check", self._path, role.trial)
        return self.agents[-1]

    def discard(self, agent: AgentHandle) -> None:
        """Ends an agent that is lost, and has its machine, if it lives, end its processes and remove its segments."""
        self.agents.remove(agent)
        self._losses[agent.machine.id] += 1
        agent.kill()
        self._clean_up(agent.machine, agent.found)

    def sweep(self) -> None:
        """Has the machines without an agent of this run remove what those of a killed driver left there."""
        occupied = {agent.machine.id for agent in self.agents}
        for machine in self.machines():
            if machine.id not in occupied:
                self._clean_up(machine, {})

    def _clean_up(self, machine: Machine, found: dict[str, Any]) -> None:
        import ray

        task = ray.remote(clean_up).options(num_cpus=0, **_there(machine.id), max_retries=0)
        self._cleanups.append(task.remote(found.get("pid", 0), found.get("began", "")))

    def end_agents(self) -> None:
        """Ends all agents in order, or those that do not answer as lost ones."""
        import ray

        for agent in self.agents:
            if agent.has_begun:
                agent.call("end")
        deadline = time.monotonic() + END_S
        for agent in [*self.agents]:
            if not agent.has_begun or agent.has_answered(max(0.0, deadline - time.monotonic())):
                self.agents.remove(agent)
                agent.kill()
            else:
                log.warning("%s: its agent did not end within %g s", agent.machine.host, END_S)
                self.discard(agent)
        if self._cleanups:
            ray.wait(self._cleanups, num_returns=len(self._cleanups), timeout=END_S)

    def close(self) -> None:
        """Ends all agents and the connection."""
        import ray

        self.end_agents()
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
        except (OSError, UnicodeError) as error:  # UnicodeError: of a host that is no name
            raise ValueError(f"{expected}, got {error}") from None
    namespace = f"marlcore-{secrets.token_hex(4)}"
    try:
        with handlers_kept():
            ray.init(address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise ValueError(f"{expected}, got {_refusal(error)}") from None
    return True


def _amounts(resources: dict[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in resources.items())


def _refusal(error: Exception) -> str:
    """What Ray says in one line; of tokens, what to set instead of its advice."""
    causes = str(error.__cause__ or "").splitlines()[-1:]  # such as that the token is refused
    said, advice, _ = " ".join([str(error), *causes]).partition(" Ensure that the token")
    return _one_line(said) + (TOKENS if advice else "")


def _one_line(error: object) -> str:
    return shorten(str(error), 300, placeholder=" ...")
