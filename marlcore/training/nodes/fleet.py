"""The machines of a Ray cluster, and the agents that this run starts on them. The only file here that imports Ray."""

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
from ...errors import MarlcoreError
from ...lazy import missing
from ...processes import Interrupts, handlers_kept
from ..config import ClusterConfig
from .agent import Agent, bury, make_once

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
    """A machine of the cluster."""

    id: str
    host: str
    resources: dict[str, float]

    def lacks(self, reserved: dict[str, float]) -> str:
        """What it has too little of, in words; empty if it has enough."""
        short = [name for name, amount in reserved.items() if self.resources.get(name, 0.0) < amount]
        return ", ".join(f"{self.resources.get(name, 0.0):g} of {reserved[name]:g} {name}" for name in short)


@dataclass(frozen=True)
class Job:
    """What agents are hired for.

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
    """An agent on a machine.

    Attributes:
        found: what it found there, once it has been checked.
        has_begun: whether it may hold anything there.
    """

    def __init__(self, machine: Machine, handle: Any, job: Job) -> None:
        self.machine, self.job = machine, job
        self.found: dict[str, Any] = {}
        self.has_begun = False
        self._handle = handle

    def call(self, method: str, *args: Any) -> Call:
        self.has_begun |= method == "begin"
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
        self, config: ClusterConfig, env_fn: Callable[[], Any], label: str, interrupts: Interrupts | None = None,
        trials: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:  # fmt: skip
        """`trials`: by policy of `config.learners`, what its learner's machine must be able to do."""
        self._interrupts = interrupts or Interrupts()
        self._path = [path for path in sys.path if path]
        trial, wants = partial(make_once, env_fn), f"an environment that can be made there, got {brief(label)}"
        self.acting = Job("cluster.nodes", config.reserved, cloudpickle.dumps(trial), f"env_fn: expected {wants}", True)
        self.learning = {
            policy: Job(f"cluster.learners: {policy}", config.reserved_for(policy), cloudpickle.dumps(trial))
            for policy, trial in (trials or {}).items()
        }
        self._losses: Counter[str] = Counter()  # of agents, by machine
        self._burials: list[Any] = []
        self._owns = _connect(str(config.address))
        self.hired: list[Hired] = []
        with ClosedAfterError(self):
            import ray

            context = ray.get_runtime_context()
            self.namespace: str = context.namespace
            self._own = context.get_node_id()
            first = config.nodes if config.nodes_at_start is None else config.nodes_at_start
            self._hire_first(first)

    def _hire_first(self, least: int) -> None:
        """Hires an agent for each learner, then as many for actors; those that fewest machines suit come first."""
        for job in sorted(self.learning.values(), key=lambda job: len([*self.free(job)])):
            machine = next(self.free(job), None)
            if machine is None:
                raise ValueError(self.lack(job))
            self.hire(machine, job)
        fit = [*self.free()]
        if len(fit) < least:
            expected = (
                f"{self.acting.label}: expected {least} beside this machine with {_amounts(self.acting.reserved)}"
            )
            raise ValueError(f"{expected}, got {len(fit)}{self._short(self.acting)}")
        for machine in fit[:least]:
            self.hire(machine, self.acting)
        calls = [(agent, self.checked(agent)) for agent in self.hired]
        deadline = time.monotonic() + START_S
        for agent, call in calls:
            job, host = agent.job, agent.machine.host
            while not call.wait(LOOK_S):
                self._interrupts.deliver()  # raises what a signal came for
                if time.monotonic() < deadline:
                    continue
                raise ValueError(
                    f"{job.label}: expected an agent on {host} within {START_S:g} s, got none; "
                    f"{_amounts(job.reserved)} may be in use there"
                )
            try:
                self.check(agent, call)
            except AgentLost as error:
                raise ValueError(f"{job.label}: expected an agent on {host}, got {error}") from None

    def machines(self) -> list[Machine]:
        """The living machines, with what is left there beside this run's agents."""
        import ray

        found = []
        for node in ray.nodes():
            if node["Alive"]:
                left = Counter(node["Resources"])
                for agent in self.hired:
                    if agent.machine.id == node["NodeID"]:
                        left.subtract(agent.job.reserved)
                host = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
                found.append(Machine(node["NodeID"], host, dict(left)))
        return found

    def free(self, job: Job | None = None) -> Iterator[Machine]:
        """Machines that may take another agent, by default for actors.

        Those that lost fewest agents come first, then others than this one, then those that have fewest.
        """
        job = job or self.acting
        taken = {agent.machine.id for agent in self.hired if agent.job is job}
        agents, losses = Counter(agent.machine.id for agent in self.hired), self._losses
        for machine in sorted(
            self.machines(), key=lambda each: (losses[each.id], each.id == self._own, agents[each.id])
        ):
            if not machine.lacks(job.reserved) and not (job.exclusive and machine.id in {*taken, self._own}):
                yield machine

    def lack(self, job: Job) -> str:
        """Says that no machine may take an agent for a job, and what each lacks."""
        return f"{job.label}: expected a machine with {_amounts(job.reserved)}, got none{self._short(job)}"

    def _short(self, job: Job) -> str:
        """What each machine that a job could be on lacks, in words."""
        could = [each for each in self.machines() if not (job.exclusive and each.id == self._own)]
        lacking = "; ".join(f"{each.host} has {lack}" for each in could if (lack := each.lacks(job.reserved)))
        return f" ({lacking})" if lacking else ""

    def hire(self, machine: Machine, job: Job) -> Hired:
        """Starts an agent on a machine, which is not restarted when it dies."""
        import ray

        options: dict[str, Any] = {_KINDS[name]: amount for name, amount in job.reserved.items() if name in _KINDS}
        options["resources"] = {name: amount for name, amount in job.reserved.items() if name not in _KINDS}
        handle = ray.remote(Agent).options(**options, **_there(machine.id), max_restarts=0, max_concurrency=4).remote()
        self.hired.append(Hired(machine, handle, job))
        return self.hired[-1]

    def checked(self, agent: Hired) -> Call:
        """Has an agent check its machine; `check` reads the answer."""
        return agent.call("check", self._path, agent.job.trial)

    def check(self, agent: Hired, call: Call) -> None:
        """Raises ValueError: the agent's machine cannot do the work. AgentLost."""
        agent.found, host, job = call.answer(), agent.machine.host, agent.job
        if agent.found["version"] != __version__:
            raise ValueError(f"cluster: expected marlcore {__version__} on {host}, got {agent.found['version']}")
        if error := agent.found["error"]:
            lacks = error.removeprefix("ValueError: ")
            raise ValueError(f"{job.wants} ({host}: {error})" if job.wants else f"{lacks} ({job.label}, {host})")
        if (nice := agent.found["nice"]) >= LOWEST:
            log.warning("%s: expected workers of niceness 0, got %d; start Ray with RAY_worker_niceness=0", host, nice)

    def dismiss(self, agent: Hired) -> None:
        """Ends an agent that is lost, and has its machine, if it lives, end its processes and remove its segments."""
        self.hired.remove(agent)
        self._losses[agent.machine.id] += 1
        agent.kill()
        self._bury(agent.machine, agent.found)

    def sweep(self) -> None:
        """Has the machines without an agent of this run remove what those of a killed driver left there."""
        taken = {agent.machine.id for agent in self.hired}
        for machine in self.machines():
            if machine.id not in taken:
                self._bury(machine, {})

    def _bury(self, machine: Machine, found: dict[str, Any]) -> None:
        import ray

        gone = ray.remote(bury).options(num_cpus=0, **_there(machine.id), max_retries=0)
        self._burials.append(gone.remote(found.get("pid", 0), found.get("began", "")))

    def end(self) -> None:
        """Ends all agents in order, or those that do not answer as lost ones."""
        import ray

        ends = {agent: agent.call("end") if agent.has_begun else None for agent in self.hired}
        deadline = time.monotonic() + END_S
        for agent, call in ends.items():
            if call is None or call.wait(max(0.0, deadline - time.monotonic())):
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
    told = str(error.__cause__ or "").splitlines()[-1:]  # such as that the token is refused
    said, advice, _ = " ".join([str(error), *told]).partition(" Ensure that the token")
    return _one_line(said) + (TOKENS if advice else "")


def _one_line(error: object) -> str:
    return shorten(str(error), 300, placeholder=" ...")
