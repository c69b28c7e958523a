"""A run's policies: agents, algorithms, workers, and which settings apply to them; checked before anything starts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ...checks import brief, did_you_mean
from ...interfaces import MEMBER_REWARDS, Algorithm, QueueSource, ReplaySource
from ...processes import encoded_name
from ...spaces import Spaces
from .config import ActorConfig, Config, ExplorationConfig, LearnerConfig, ReplayConfig
from .schedules import Schedule, check_free
from .sections import EPSILON
from .self_play import SelfPlayConfig

EVALUATOR = "evaluator"
TEAM = "team"  # the name of the team of all agents
OF_LEARNER = ("batch_size", "n_step", "warmup", "prefetch", "publish_interval")
OF_RUN = ("updates_per_step", "updates_tolerance")
OF_ACTOR = ("sync_interval", "max_policy_lag")
SCRIPT = "exploration.script"
NO_SELF_PLAY = SelfPlayConfig()
OF_EXPLORATION = ("epsilon", "ladder")
OF_REPLAY = [name for name in ReplayConfig.__dataclass_fields__ if name not in ("stack", "pad")]
METHODS = ("transition", "source", "make_model", "act", "make_trainer")  # schedules may be missing


@dataclass(frozen=True)
class AssignedPolicy:
    """A policy, the agents that act by it, their spaces and its algorithm."""

    name: str
    agents: tuple[str, ...]
    spaces: Spaces
    algorithm: Algorithm
    source: ReplaySource | QueueSource = field(default_factory=ReplaySource)  # of its batches, by `source_of`
    index: int = 0  # among the run's policies; seeds and devices follow it

    @classmethod
    def of(cls, policy: "AssignedPolicy") -> "AssignedPolicy":
        """The policy alone, of one that is placed in memory."""
        return cls(**{each.name: getattr(policy, each.name) for each in fields(AssignedPolicy)})


def assign(
    spaces: Mapping[str, Spaces],
    policies: Mapping[str, str] | Callable[[str], str] | None,
    algorithm: Algorithm | str | Mapping[str, Algorithm | str],
    stack: int,
    self_play: SelfPlayConfig = NO_SELF_PLAY,
) -> tuple[AssignedPolicy, ...]:
    """The policies of agents with these spaces, in the order of their first agents. Raises ValueError, TypeError.

    The policies that have roles in self-play, if there are some, each act for all agents.
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
        except ValueError as error:  # it cannot handle the spaces
            raise ValueError(f"{error} for {agents[0]}") from error
        assigned.append(AssignedPolicy(name, agents, stacked, chosen, index=index))
    return tuple(assigned)


def policy_names(agents: list[str], policies: Mapping[str, str] | Callable[[str], str] | None) -> dict[str, str]:
    """The policy of each agent. Raises ValueError, TypeError: see `assign`."""
    if policies is None:
        names = {agent: agent for agent in agents}
    elif isinstance(policies, Mapping):
        _check_names("policies", policies, agents, "agents of the environment", "a policy for each agent")
        names = {agent: policies[agent] for agent in agents}
    elif callable(policies):
        names = {agent: policies(agent) for agent in agents}
    else:
        raise TypeError(f"policies: expected the policy of each agent, got {brief(policies)}")
    for agent, policy in names.items():
        if not isinstance(policy, str) or not policy:
            raise TypeError(f"policies: expected the name of a policy for {agent}, got {policy!r}")
        encoded_name("agent", agent)  # refuses names that metrics cannot hold
        encoded_name("policies", policy)
    return names


def wants_teams(algorithm: Any) -> bool:
    """Whether an algorithm, or one of them by policy, trains teams. Raises ValueError, TypeError: it is none."""
    given = algorithm.values() if isinstance(algorithm, Mapping) else [algorithm]
    return any(getattr(_chosen(each), "wants_team", False) for each in given)


def teams_of(
    agents: Sequence[str], teams: Mapping[str, str] | Callable[[str], str] | None
) -> dict[str, tuple[str, ...]]:
    """The members of each team; by default of one of all agents. Raises ValueError, TypeError: see `Config.teams`."""
    if teams is None:
        return {TEAM: tuple(agents)}
    if callable(teams):
        teams = {agent: teams(agent) for agent in agents}
    if not isinstance(teams, Mapping):
        raise TypeError(f"teams: expected the team of each member, got {brief(teams)}")
    for agent, team in teams.items():
        if agent not in agents:
            hint = did_you_mean(agent, agents)
            raise ValueError(f"teams: expected agents of the environment, {list(agents)}, got {agent!r}{hint}")
        if not isinstance(team, str) or not team:
            raise TypeError(f"teams: expected the name of a team for {agent}, got {team!r}")
        if team in agents and team not in teams:
            raise ValueError(f"teams: expected names that no other agent has, got {team!r}")
    there = [agent for agent in agents if agent in teams]  # whose order is that of members, whatever that of `teams`
    return {teams[first]: tuple(agent for agent in there if teams[agent] == teams[first]) for first in there}


def _algorithms(policies: list[str], algorithm: Any) -> dict[str, Algorithm]:
    if not isinstance(algorithm, Mapping):
        return dict.fromkeys(policies, _chosen(algorithm))
    _check_names("algorithm", algorithm, policies, f"the policies {policies}", "one for each policy")
    return {name: _chosen(algorithm[name]) for name in policies}


def _check_names(label: str, values: Mapping[str, Any], names: list[str], known: str, complete: str) -> None:
    """Raises ValueError: the values by name are not those of exactly these names."""
    for name in values:
        if name not in names:
            raise ValueError(f"{label}: expected {known}, got {name!r}{did_you_mean(name, names)}")
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(f"{label}: expected {complete}, got none for {missing[0]!r}")


def _chosen(algorithm: Any) -> Algorithm:
    """Raises ValueError, TypeError: it is not an algorithm."""
    if isinstance(algorithm, str):
        from ...algos import make  # which imports torch

        return make(algorithm)
    missing = [name for name in METHODS if not hasattr(algorithm, name)]
    if missing or isinstance(algorithm, type):
        what = f"the class {algorithm.__name__}" if isinstance(algorithm, type) else f"{algorithm!r}"
        lacks = f", which has no {missing[0]}" if missing else ""
        raise TypeError(f"algorithm: expected an Algorithm, such as marlcore.DQN(), or its name, got {what}{lacks}")
    chosen: Algorithm = algorithm
    return chosen


def source_of(policy: AssignedPolicy, config: Config) -> ReplaySource | QueueSource:
    """How the policy's learner gets its batches. Raises TypeError: its algorithm says something else."""
    from ...replay import Hindsight, Prioritized  # here, so that settings load without Numba

    config = config.of(policy.name)
    replay = config.replay
    prioritized = Prioritized(replay.alpha, replay.beta, beta_steps=replay.beta_steps) if replay.prioritized else None
    hindsight = None if replay.hindsight == "off" else Hindsight(replay.hindsight_k, replay.hindsight)
    chosen = ReplaySource(config.learner.n_step, prioritized, hindsight=hindsight)
    source = policy.algorithm.source(chosen)
    if not isinstance(source, (ReplaySource, QueueSource)):
        raise TypeError(f"source of {policy.name}: expected a ReplaySource or a QueueSource, got {brief(source)}")
    return source


def schedules_of(algorithm: Algorithm, config: Config) -> dict[str, Schedule]:
    """The numbers that a policy's learner publishes with its weights; on-policy, epsilon only if it is its own."""
    own: Mapping[str, Any] = getattr(algorithm, "schedules", dict)()  # an algorithm need not derive from Algorithm
    check_free(f"schedules of {type(algorithm).__name__}", own)
    schedules = {name: Schedule.from_value(name, value) for name, value in own.items()} | config.schedules
    if "epsilon" in own or not isinstance(algorithm.source(ReplaySource()), QueueSource):
        return {"epsilon": EPSILON} | schedules
    schedules.pop("epsilon", None)
    return schedules


def with_own_epsilons(policies: tuple[AssignedPolicy, ...], config: Config) -> Config:
    """The settings in which the run's epsilon is of none whose algorithm has its own, if it is of others."""
    has_own = {p.name: "epsilon" in getattr(p.algorithm, "schedules", dict)() for p in policies}
    if config.exploration.epsilon is None or len({*has_own.values()}) == 1:
        return config
    without = dict.fromkeys([name for name in has_own if has_own[name]], replace(config.exploration, epsilon=None))
    return replace(config, explorations=without | config.explorations)


def check_applied(policies: tuple[AssignedPolicy, ...], config: Config) -> None:
    """Raises ValueError: a replay has too few rows, or a setting that applies to no policy differs from its default."""
    for policy in policies:
        learner = config.learner_of(policy.name)
        why = "makes its returns itself"
        if MEMBER_REWARDS in policy.algorithm.transition(policy.spaces).extras:
            why = "learns from each member's own reward, by returns of one step"
            _check("learner.", ("reward_norm",), learner, LearnerConfig(), policy, why)
        if isinstance(policy.source, QueueSource):
            _check("learner.", OF_LEARNER, learner, LearnerConfig(), policy)
            continue
        if not config.offline:
            config.check_rows(policy.name, len(policy.agents))
        if config.of(policy.name).replay.hindsight != "off":
            _check_hindsight(policy, policy.source, config.of(policy.name))
        if policy.source.n_step != learner.n_step:
            _check("learner.", ("n_step",), learner, LearnerConfig(), policy, why)
    if all(isinstance(policy.source, QueueSource) for policy in policies):
        _check("", OF_RUN, config, Config(), policies[0])
        _check("replay.", OF_REPLAY, config.replay, ReplayConfig(), policies[0])
        why = "acts with the newest weights in every round"
        _check("actor.", OF_ACTOR, config.actor, ActorConfig(), policies[0], why)
    if not any("epsilon" in schedules_of(policy.algorithm, config.of(policy.name)) for policy in policies):
        why = "draws its actions without an epsilon"
        _check("exploration.", OF_EXPLORATION, config.exploration, ExplorationConfig(), policies[0], why)


def check_offline(config: Config) -> None:
    """Raises ValueError: a setting of acting, or of a replay that a run makes, differs from its default."""
    usual, why = Config(), "a run on recorded data has no use for it"
    of_actor = [name for name in ActorConfig.__dataclass_fields__ if name != "device"]  # on which an evaluator acts
    of_replay = ("capacity", "save", "clear_at_stage", "mixture", "path", "hindsight")
    _check_unused("", ("total_steps", *OF_RUN, "stages", "self_play", "cluster"), config, usual, why)
    _check_unused("actor.", of_actor, config.actor, usual.actor, why)
    _check_unused("replay.", of_replay, config.replay, usual.replay, why)
    _check_unused("exploration.", OF_EXPLORATION, config.exploration, usual.exploration, why)
    of_policies = {f"learners.{name}.": learner for name, learner in config.learners.items()}
    for label, learner in ({"learner.": config.learner} | of_policies).items():
        _check_unused(label, ("warmup",), learner, usual.learner, why)
    _check_unused("stop.", ("episodes",), config.stop, usual.stop, why)
    if config.stop.judges and any(part.startswith("episode_") for part in config.stop.metric.split("/")):
        raise ValueError(f"stop.metric: expected one of a run without actors' episodes, got {config.stop.metric!r}")


def _check_hindsight(policy: AssignedPolicy, source: ReplaySource, config: Config) -> None:
    if source.hindsight is None or source.sequence is not None:
        why = "draws sequences" if source.sequence is not None else "draws without it"
        _check("replay.", ("hindsight",), config.replay, ReplayConfig(), policy, why)
    if source.n_step != 1:
        raise ValueError(f"learner.n_step: expected 1 with replay.hindsight, got {source.n_step}")


def _check(
    section: str,
    names: Iterable[str],
    chosen: Any,
    default: Any,
    policy: AssignedPolicy,
    why: str = "reads each transition once and has no use for it",
) -> None:
    algorithm = f"{type(policy.algorithm).__name__}, the algorithm of {policy.name!r}, {why}"
    _check_unused(section, names, chosen, default, algorithm)


def _check_unused(section: str, names: Iterable[str], chosen: Any, default: Any, why: str) -> None:
    for name in names:
        value, usual = getattr(chosen, name), getattr(default, name)
        if value != usual:
            raise ValueError(f"{section}{name}: expected the default {usual!r}, since {why}, got {brief(value)}")


def learner_names(config: Config, policies: Sequence[str]) -> dict[str, list[str]]:
    """The policies that each learner process trains, by its name; one each, unless the configuration says otherwise."""
    processes = config.learner.processes
    if processes is None:
        return {f"learner-{policy}": [policy] for policy in policies}
    count = min(processes, len(policies))
    return {f"learner-{i}": list(policies[i::count]) for i in range(count)}
