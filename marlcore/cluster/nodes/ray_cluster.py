"""The machines of a Ray cluster, and this run's agents on them; the only file of this folder that imports Ray."""

from __future__ import annotations

import logging
import secrets
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from textwrap import shorten
from typing import Any

from ... import __version__
from ...checks import brief
from ...closing import ClosedAfterError, Closing
from ...config import ClusterConfig
from ...errors import MarlcoreError
from ...lazy import missing
from ...processes import Interrupts, dumps, handlers_kept
from .agent import Agent, make_once
from .remains import clean_up

CONNECT_S = 5.0
START_S = 120.0  # seconds in which Ray must start an agent, and the agent must import the run's modules
LOOK_S = 0.2  # seconds between checks for signals while an agent starts
END_S = 15.0  # seconds in which an agent must end
LOWEST = 15  # the niceness that Ray gives its workers
TOKENS = " Export RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN unless ~/.ray/auth_token holds the cluster's token"
_KINDS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}

log = logging.getLogger(__name__)


class AgentLost(MarlcoreError):
    """An agent, or its machine, is gone."""


@dataclass(frozen=True)
class Machine:
    """A machine of the cluster, with the resources that this run's agents have left."""

    id: str
    host: str
    resources: dict[str, float]

    def lacks(self, reserved: dict[str, float]) -> str:
        """Returns, in words, the resources that the machine has too little of; "" if it has enough."""
        short = [name for name, amount in reserved.items() if self.resources.get(name, 0.0) < amount]
        return ", ".join(f"{self.resources.get(name, 0.0):g} of {reserved[name]:g} {name}" for name in short)


@dataclass(frozen=True)
class Role:
    """The purpose of agents: to run all actors of a machine, or a policy's learner."""

    label: str  # the setting that asks for these agents
    reserved: dict[str, float]  # the resources that Ray reserves for each agent
    trial: bytes  # a pickled function that each machine calls first; it raises if the machine cannot do the work
    wants: str = ""  # what the trial expects, in words; empty if its error says this
    exclusive: bool = False  # whether a machine may have at most one such agent, and the driver's machine none


class AgentHandle:
    """The driver's handle of an agent on a machine. Take each call's answer before the next call."""

    def __init__(self, ray: Any, machine: Machine, actor: Any, role: Role) -> None:
        self.machine, self.role, self._ray, self._actor = machine, role, ray, actor
        self.found: dict[str, Any] = {}  # the result of the agent's check of its machine, once it has come
        self.has_begun = False  # whether the agent was told to begin, so it may own segments and processes
        self._awaited: Any = None

    def call(self, method: str, *args: Any) -> None:
        self.has_begun |= method == "begin"
        with self._losing():
            self._awaited = getattr(self._actor, method).remote(*args)

    @property
    def is_awaited(self) -> bool:
        """Whether the answer of the last call was not taken yet."""
        return self._awaited is not None

    def has_answered(self, seconds: float = 0.0) -> bool:
        """Waits at most `seconds` for the answer; returns whether it has come and was not taken yet."""
        with self._losing():
            return self.is_awaited and bool(self._ray.wait([self._awaited], timeout=seconds)[0])

    def answer(self) -> Any:
        """Waits for the answer and returns it. Raises AgentLost, or any exception of the call."""
        awaited, self._awaited = self._awaited, None
        with self._losing():
            return self._ray.get(awaited)

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Passes on exceptions that the agent's method raised; turns Ray's errors into AgentLost."""
        try:
            yield
        except self._ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except (self._ray.exceptions.RayError, OSError) as error:  # OSError: this node's raylet is dead
            raise AgentLost(_one_line(error)) from None

    def take_check(self) -> None:
        """Takes the answer of the call `check`. Raises AgentLost, or ValueError if the machine cannot do the work."""
        self.found, host, role = self.answer(), self.machine.host, self.role
        if self.found["version"] != __version__:
            raise ValueError(f"cluster: expected marlcore {__version__} on {host}, got {self.found['version']}")
        if error := self.found["error"]:
            lacks = error.removeprefix("ValueError: ")
            raise ValueError(f"{role.wants} ({host}: {error})" if role.wants else f"{lacks} ({role.label}, {host})")
        if (nice := self.found["nice"]) >= LOWEST:
            log.warning("%s: expected workers of niceness 0, got %d; start Ray with RAY_worker_niceness=0", host, nice)

    def kill(self) -> None:
        self._ray.kill(self._actor)


class RayCluster(Closing):
    """A connection to a Ray cluster, and this run's agents on its machines; each agent checks its machine first.

    Raises ValueError, in one line, if there is no such cluster, or if the cluster lacks machines for the run. Nothing
    is then left running.
    """

    def __init__(
        self, config: ClusterConfig, env_fn: Callable[[], Any], label: str, interrupts: Interrupts | None = None,
        trials: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:  # fmt: skip
        """`trials`: by policy of `config.learners`, a function that raises if a machine cannot run the learner."""
        self._interrupts = interrupts or Interrupts()
        self._path = [path for path in sys.path if path]
        trial = dumps(partial(make_once, env_fn))
        wants = f"env_fn: expected an environment that other machines can make, got {brief(label)}"
        self.acting = Role("cluster.nodes", config.reserved, trial, wants, exclusive=True)  # of agents with actors
        self.learning = {  # by policy, the role of its learner's agent
            policy: Role(f"cluster.learners: {policy}", config.reserved_for(policy), dumps(trial))
            for policy, trial in (trials or {}).items()
        }
        self.agents: list[AgentHandle] = []  # all agents not known to be dead
        self._losses: Counter[str] = Counter()  # by machine: the number of lost agents
        self._cleanups: list[Any] = []
        self._ray, self._owns = _connect(str(config.address))
        with ClosedAfterError(self):
            context = self._ray.get_runtime_context()
            self.namespace: str = context.namespace
            self._own = context.get_node_id()
            self._start_first(config.nodes if config.nodes_at_start is None else config.nodes_at_start)

    def _start_first(self, least: int) -> None:
        """Starts agents for learners (hardest to place first) and `least` agents for actors; awaits their checks."""
        for role in sorted(self.learning.values(), key=lambda role: len([*self.free(role)])):
            machine = next(self.free(role), None)
            if machine is None:
                raise ValueError(self.lack(role))
            self.start(machine, role)
        fit = [*self.free(self.acting)]
        if len(fit) < least:
            raise ValueError(self.lack(self.acting, f"{least} other machines", str(len(fit))))
        for machine in fit[:least]:
            self.start(machine, self.acting)
        deadline = time.monotonic() + START_S
        for agent in self.agents:
            self._await_check(agent, deadline)

    def _await_check(self, agent: AgentHandle, deadline: float) -> None:
        label, host = agent.role.label, agent.machine.host
        while not agent.has_answered(LOOK_S):
            self._interrupts.deliver()  # raises if a signal has come
            if time.monotonic() >= deadline:
                raise ValueError(
                    f"{label}: expected an agent on {host} within {START_S:g} s, got none; "
                    f"{_amounts(agent.role.reserved)} may be in use there"
                )
        try:
            agent.take_check()
        except AgentLost as error:
            raise ValueError(f"{label}: expected an agent on {host}, got {error}") from None

    def nodes(self) -> list[dict[str, Any]]:
        """Asks Ray for the cluster's live nodes, which takes a call to the head."""
        return [node for node in self._ray.nodes() if node["Alive"]]

    def machines(self, nodes: list[dict[str, Any]] | None = None) -> list[Machine]:
        """Returns the live machines of the cluster. `nodes`: the result of `nodes`, if the caller has it."""
        found = []
        for node in self.nodes() if nodes is None else nodes:
            left = Counter(node["Resources"])
            for agent in self.agents:
                if agent.machine.id == node["NodeID"]:
                    left.subtract(agent.role.reserved)
            host = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
            found.append(Machine(node["NodeID"], host, dict(left)))
        return found

    def free(self, role: Role, nodes: list[dict[str, Any]] | None = None) -> Iterator[Machine]:
        """Yields the machines that have room for another agent of a role; for `nodes` see `machines`.

        Machines on which fewer agents were lost come first, then machines other than this one, then machines with fewer
        agents.
        """
        occupied = {agent.machine.id for agent in self.agents if agent.role is role}
        agents, losses = Counter(agent.machine.id for agent in self.agents), self._losses
        for machine in sorted(
            self.machines(nodes), key=lambda each: (losses[each.id], each.id == self._own, agents[each.id])
        ):
            if not machine.lacks(role.reserved) and not (role.exclusive and machine.id in {*occupied, self._own}):
                yield machine

    def lack(self, role: Role, expected: str = "a machine", got: str = "none") -> str:
        """Returns the text for an error: too few machines have room for a role's agent, and what each machine lacks."""
        candidates = [each for each in self.machines() if not (role.exclusive and each.id == self._own)]
        lacking = "; ".join(f"{each.host} has {lack}" for each in candidates if (lack := each.lacks(role.reserved)))
        said = f"{role.label}: expected {expected} with {_amounts(role.reserved)}, got {got}"
        return f"{said} ({lacking})" if lacking else said

    def start(self, machine: Machine, role: Role) -> AgentHandle:
        """Starts an agent on a machine, and calls its `check`. Ray does not restart the agent when it dies."""
        options: dict[str, Any] = {_KINDS[name]: amount for name, amount in role.reserved.items() if name in _KINDS}
        options["resources"] = {name: amount for name, amount in role.reserved.items() if name not in _KINDS}
        options |= {**_there(machine.id), "max_restarts": 0, "max_concurrency": 4}
        actor = self._ray.remote(Agent).options(**options).remote()
        self.agents.append(AgentHandle(self._ray, machine, actor, role))
        self.agents[-1].call("check", self._path, role.trial)
        return self.agents[-1]

    def discard(self, agent: AgentHandle) -> None:
        """Kills a lost agent; its machine, if alive, then kills the agent's processes and removes its segments."""
        self.agents.remove(agent)
        self._losses[agent.machine.id] += 1
        agent.kill()
        self._clean_up(agent.machine, agent.found)

    def sweep(self) -> None:
        """Removes the segments that a killed driver's agents left on machines without an agent of this run."""
        occupied = {agent.machine.id for agent in self.agents}
        for machine in self.machines():
            if machine.id not in occupied:
                self._clean_up(machine, {})

    def _clean_up(self, machine: Machine, found: dict[str, Any]) -> None:
        task = self._ray.remote(clean_up).options(num_cpus=0, **_there(machine.id), max_retries=0)
        self._cleanups.append(task.remote(found.get("pid", 0), found.get("began", "")))

    def end_agents(self) -> None:
        """Asks all agents to end. An agent that does not answer within 15 s is discarded as lost."""
        for agent in self.agents:
            if agent.has_begun:
                with suppress(AgentLost):  # it does not answer, either
                    agent.call("end")
        deadline = time.monotonic() + END_S
        for agent in [*self.agents]:
            ended = not agent.has_begun
            with suppress(AgentLost):
                ended = ended or agent.has_answered(max(0.0, deadline - time.monotonic()))
            if ended:
                self.agents.remove(agent)
                agent.kill()
            else:
                log.warning("%s: its agent did not end within %g s", agent.machine.host, END_S)
                self.discard(agent)
        if self._cleanups:
            self._ray.wait(self._cleanups, num_returns=len(self._cleanups), timeout=END_S)

    def close(self) -> None:
        """Ends all agents, and the connection if this object made it."""
        self.end_agents()
        if self._owns:
            self._ray.shutdown()


def _there(node: str) -> dict[str, Any]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def _connect(address: str) -> tuple[Any, bool]:
    """Connects this process to the cluster; returns the module ray, and whether the connection is new.

    Raises: ValueError: there is no such cluster. ModuleNotFoundError: Ray is not installed.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise missing("cluster", error) from None
    if ray.is_initialized():
        return ray, False
    expected = f"cluster.address: expected a Ray cluster at {address!r} that this machine is part of"
    if address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), CONNECT_S).close()  # Ray itself would try for a minute
        except (OSError, UnicodeError) as error:  # UnicodeError: the host is not a valid name
            raise ValueError(f"{expected}, got {error}") from None
    namespace = f"marlcore-{secrets.token_hex(4)}"
    try:
        with handlers_kept():
            ray.init(address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        ray.shutdown()
        causes = str(error.__cause__ or "").splitlines()[-1:]  # for example, that the token is refused
        said, advice, _ = " ".join([str(error), *causes]).partition(" Ensure that the token")
        raise ValueError(f"{expected}, got {_one_line(said)}{TOKENS if advice else ''}") from None
    return ray, True


def _amounts(resources: dict[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in resources.items())


def _one_line(error: object) -> str:
    return shorten(str(error), 300, placeholder=" ...")
