"""Assigns a policy to each agent, and an algorithm and a learner process to each policy; checks all of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import cloudpickle

from ..checks import brief, check_type, did_you_mean
from ..devices import choose_device
from ..interfaces import Algorithm, CompiledPolicy, QueueSource, ReplaySource
from ..processes import encoded_name
from ..spaces import JOINT, Spaces
from ..spec import TransitionSpec
from .config import Config
from .schedules import Schedule, check_free
from .sections import EPSILON
from .self_play import SelfPlayConfig

EVALUATOR = "evaluator"
TEAM = "team"  # the name of the team of all agents
SCRIPT = "exploration.script"
NO_SELF_PLAY = SelfPlayConfig()
METHODS = ("transition", "source", "make_model", "act", "make_trainer")  # schedules may be missing


@dataclass(frozen=True)
class AssignedPolicy:
    """A policy with its agents, their spaces and its algorithm."""

    name: str
    agents: tuple[str, ...]
    spaces: Spaces
    algorithm: Algorithm
    source: ReplaySource | QueueSource = field(default_factory=ReplaySource)  # from `source_of`
    index: int = 0  # among the run's policies; seeds and devices depend on it
    compiled: CompiledPolicy | None = field(default=None, compare=False)  # from `compiled_of`; None if torch acts

    @property
    def hides_joint(self) -> bool:
        """See the function `hides_joint`. Unpickles the algorithm only if the observation has the part JOINT."""
        return any(part.name == JOINT for part in self.spaces.parts) and hides_joint(self.algorithm, self.spaces)

    @cached_property
    def transition(self) -> TransitionSpec:
        """The spec of a step, as the algorithm wants it."""
        return self.algorithm.transition(self.spaces)

    def for_a_worker(self) -> "AssignedPolicy":
        """Returns a copy that unpickles its algorithm, which imports torch, only when the algorithm is used."""
        if self.compiled is None:
            return self
        copy = object.__new__(AssignedPolicy)
        pickled = self.__dict__.get("_pickled") or cloudpickle.dumps(self.algorithm)  # a cluster's node has "_pickled"
        copy.__dict__.update(self.__dict__, _pickled=pickled, transition=self.transition)
        copy.__dict__.pop("algorithm", None)
        return copy

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name != "algorithm" or "_pickled" not in self.__dict__:
                return object.__getattribute__(self, name)  # raises again what a property raised
            self.__dict__["algorithm"] = cloudpickle.loads(self.__dict__["_pickled"])
            return self.__dict__["algorithm"]


def compiled_of(policy: AssignedPolicy, config: Config) -> CompiledPolicy | None:
    """Returns the form of a policy that acts without torch; None if the policy has none or acts on a GPU.

    Raises ValueError if `learner.engine` is "compiled" but the policy cannot be compiled; the message says why.
    """
    settings = config.learner_of(policy.name)
    if settings.engine == "torch":
        return None
    compile_own = getattr(policy.algorithm, "compiled", None)  # an algorithm need not derive from Algorithm
    compiled: CompiledPolicy | None = compile_own(policy.spaces, settings) if compile_own else None
    if compiled is None:
        from ..algos.compiled import compiled_policy  # imports torch

        compiled = compiled_policy(policy.algorithm, policy.spaces, settings.engine)
    kinds = {choose_device(name).type if name == "auto" else name.partition(":")[0] for name in config.actor.devices}
    return compiled if kinds == {"cpu"} else None


def hides_joint(algorithm: Algorithm | None, spaces: Spaces) -> bool:
    """Whether the part JOINT is for the algorithm's critics alone; other algorithms treat it as an ordinary part."""
    wants = getattr(algorithm, "wants_joint", False) or getattr(algorithm, "wants_team", False)
    return wants and any(part.name == JOINT for part in spaces.parts)


def assign(
    spaces: Mapping[str, Spaces],
    policies: Mapping[str, str] | Callable[[str], str] | None,
    algorithm: Algorithm | str | Mapping[str, Algorithm | str],
    stack: int,
    self_play: SelfPlayConfig = NO_SELF_PLAY,
) -> tuple[AssignedPolicy, ...]:
    """Makes the policies of agents with these spaces, in the order of their first agents.

    In a league (`self_play.roles`), each policy acts for all agents. Raises ValueError or TypeError if the agents,
    policies, algorithms and spaces do not fit together.
    """
    roles, setting = self_play.roles, "self_play" if self_play.pool else "policies"
    agents_of = dict.fromkeys(roles, tuple(spaces))
    for agent, name in () if roles else policy_names(list(spaces), policies).items():
        agents_of[name] = (*agents_of.get(name, ()), agent)
    algorithms = _algorithms([*agents_of], algorithm)
    assigned = []
    for index, (name, chosen) in enumerate(algorithms.items()):
        agents = agents_of[name]
        first = spaces[agents[0]]
        for agent in agents[1:]:
            if spaces[agent] != first:
                raise ValueError(
                    f"{setting}: expected agents of one policy to have equal spaces, got {first} for {agents[0]} and "
                    f"{spaces[agent]} for {agent} of {name!r}"
                )
        stacked = replace(first, stack=stack)
        try:
            chosen.transition(stacked)
        except ValueError as error:  # the algorithm cannot handle the spaces
            raise ValueError(f"{error} for {agents[0]}") from error
        assigned.append(AssignedPolicy(name, agents, stacked, chosen, index=index))
    return tuple(assigned)


def policy_names(agents: list[str], policies: Mapping[str, str] | Callable[[str], str] | None) -> dict[str, str]:
    """Returns the name of each agent's policy. Raises ValueError, TypeError: see `assign`."""
    if policies is None or callable(policies):
        policies = {agent: agent if policies is None else policies(agent) for agent in agents}
    check_type("policies", policies, Mapping, expected="the policy of each agent")
    _check_names("policies", policies, agents, "agents of the environment", "a policy for each agent")
    for agent in agents:
        if not isinstance(policies[agent], str) or not policies[agent]:
            raise TypeError(f"policies: expected the name of a policy for {agent}, got {brief(policies[agent])}")
        encoded_name("agent", agent)  # refuses names that metrics cannot hold
        encoded_name("policies", policies[agent])
    return {agent: policies[agent] for agent in agents}


def wants_teams(algorithm: Any) -> bool:
    """Whether any of the given algorithms trains teams. Raises ValueError or TypeError if one is not an algorithm."""
    given = algorithm.values() if isinstance(algorithm, Mapping) else [algorithm]
    return any(getattr(_chosen(each), "wants_team", False) for each in given)


def teams_of(
    agents: Sequence[str], teams: Mapping[str, str] | Callable[[str], str] | None
) -> dict[str, tuple[str, ...]]:
    """Returns each team's members; by default all agents form one team. Raises ValueError or TypeError."""
    if teams is None:
        return {TEAM: tuple(agents)}
    if callable(teams):
        teams = {agent: teams(agent) for agent in agents}
    check_type("teams", teams, Mapping, expected="the team of each member")
    for agent, team in teams.items():
        if agent not in agents:
            hint = did_you_mean(agent, agents)
            raise ValueError(f"teams: expected agents of the environment, {list(agents)}, got {brief(agent)}{hint}")
        if not isinstance(team, str) or not team:
            raise TypeError(f"teams: expected the name of a team for {agent}, got {brief(team)}")
        if team in agents and team not in teams:
            raise ValueError(f"teams: expected names that no other agent has, got {brief(team)}")
    members = [agent for agent in agents if agent in teams]  # in the environment's order
    return {teams[first]: tuple(agent for agent in members if teams[agent] == teams[first]) for first in members}


def _algorithms(policies: list[str], algorithm: Any) -> dict[str, Algorithm]:
    if not isinstance(algorithm, Mapping):
        return dict.fromkeys(policies, _chosen(algorithm))
    _check_names("algorithm", algorithm, policies, f"the policies {policies}", "an algorithm for each policy")
    return {name: _chosen(algorithm[name]) for name in policies}


def _check_names(label: str, values: Mapping[str, Any], names: list[str], known: str, complete: str) -> None:
    for name in values:
        if name not in names:
            raise ValueError(f"{label}: expected {known}, got {brief(name)}{did_you_mean(name, names)}")
    for name in names:
        if name not in values:
            raise ValueError(f"{label}: expected {complete}, got none for {name!r}")


def _chosen(algorithm: Any) -> Algorithm:
    """Returns an algorithm, which may be given by name. Raises ValueError or TypeError if it does not exist."""
    if isinstance(algorithm, str):
        from ..algos import make  # imports torch

        return make(algorithm)
    missing = [name for name in METHODS if not hasattr(algorithm, name)]
    if missing or isinstance(algorithm, type):
        what = f"the class {algorithm.__name__}" if isinstance(algorithm, type) else brief(algorithm)
        lacks = f", which has no {missing[0]}" if missing else ""
        raise TypeError(f"algorithm: expected an Algorithm, such as marlcore.DQN(), or its name, got {what}{lacks}")
    chosen: Algorithm = algorithm
    return chosen


def source_of(policy: AssignedPolicy, config: Config) -> ReplaySource | QueueSource:
    """Returns where a policy's batches come from; drops hindsight if they are sequences.

    Raises TypeError if the algorithm returns no source.
    """
    from ..replay import Hindsight, Prioritized  # here, so that settings load without Numba

    config = replace(config, ratios={}).of(policy.name)  # `applied` refuses a ratio of None in serial mode
    replay = config.replay
    prioritized = Prioritized(replay.alpha, replay.beta, beta_steps=replay.beta_steps) if replay.prioritized else None
    hindsight = None if replay.hindsight == "off" else Hindsight(replay.hindsight_k, replay.hindsight)
    chosen = ReplaySource(config.learner.n_step, prioritized, hindsight=hindsight)
    source = policy.algorithm.source(chosen)
    if not isinstance(source, (ReplaySource, QueueSource)):
        raise TypeError(f"source of {policy.name}: expected a ReplaySource or a QueueSource, got {brief(source)}")
    if isinstance(source, ReplaySource) and source.sequence is not None:
        return replace(source, hindsight=None)
    return source


def schedules_of(algorithm: Algorithm, config: Config) -> dict[str, Schedule]:
    """Returns the schedules of the numbers that a policy's learner publishes.

    A policy that learns from a queue has an epsilon only if its algorithm's schedules set one.
    """
    given: Mapping[str, Any] = getattr(algorithm, "schedules", dict)()  # an algorithm need not derive from Algorithm
    check_free(f"schedules of {type(algorithm).__name__}", given)
    schedules = {name: Schedule.from_value(name, value) for name, value in given.items()} | config.schedules
    if "epsilon" in given or not isinstance(algorithm.source(ReplaySource()), QueueSource):
        return {"epsilon": EPSILON} | schedules
    schedules.pop("epsilon", None)
    return schedules


def numbers_at(schedules: Mapping[str, Schedule], steps: int, updates: int) -> dict[str, float]:
    """Returns the schedules' values at these counts. Raises ValueError if a function returns no finite number."""
    counts, numbers = {"steps": steps, "updates": updates}, {}
    for name, schedule in schedules.items():
        try:
            numbers[name] = schedule.at(counts[schedule.of])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return numbers


def with_own_epsilons(policies: tuple[AssignedPolicy, ...], config: Config) -> Config:
    """Removes the run's epsilon for policies whose algorithms set their own, unless all algorithms do."""
    having = [each.name for each in policies if "epsilon" in getattr(each.algorithm, "schedules", dict)()]
    if config.exploration.epsilon is None or len(having) == len(policies):
        return config
    without = dict.fromkeys(having, replace(config.exploration, epsilon=None))
    return replace(config, explorations=without | config.explorations)


def learner_names(config: Config, policies: Sequence[str]) -> dict[str, list[str]]:
    """Returns, by the process's name, the policies of each learner process; by default each process has one."""
    processes = config.learner.processes
    if processes is None:
        return {f"learner-{policy}": [policy] for policy in policies}
    count = min(processes, len(policies))
    return {f"learner-{i}": list(policies[i::count]) for i in range(count)}
