"""Which agents are trained as which policy, by which algorithm and in which worker; checked before anything starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...checks import did_you_mean
from ...interfaces import Algorithm
from ...processes import encoded_name
from ...spaces import Spaces
from .config import Config

EVALUATOR = "evaluator"
_LEARNER = "learner-"
METHODS = ("transition", "source", "make_model", "act", "make_trainer")  # schedules may be missing


@dataclass(frozen=True)
class AssignedPolicy:
    """A policy, the agents that act by it, their spaces and its algorithm."""

    name: str
    agents: tuple[str, ...]
    spaces: Spaces
    algorithm: Algorithm


def assign(
    spaces: Mapping[str, Spaces],
    policies: Mapping[str, str] | Callable[[str], str] | None,
    algorithm: Algorithm | str | Mapping[str, Algorithm | str],
    stack: int,
) -> tuple[AssignedPolicy, ...]:
    """The policies of an environment's agents, in the order of their first agents.

    Args:
        spaces: by agent.
        policies: the policy of each agent, in a dict or from a function; None gives each agent its own, of its name.
        algorithm: of every policy, or a dict by policy.
        stack: observations in a model's input.

    Raises: ValueError, TypeError: an agent or policy is unknown or missing, agents of one policy have different spaces,
        or an algorithm is none or cannot handle the spaces.
    """
    names = policy_names(list(spaces), policies)
    algorithms = _algorithms(list(dict.fromkeys(names.values())), algorithm)
    assigned = []
    for name, chosen in algorithms.items():
        agents = tuple(agent for agent in spaces if names[agent] == name)
        first = spaces[agents[0]]
        for agent in agents[1:]:
            if spaces[agent] != first:
                raise ValueError(
                    f"policies: expected agents of one policy to have equal spaces, got {first} for {agents[0]} and "
                    f"{spaces[agent]} for {agent} of {name!r}"
                )
        stacked = dataclasses.replace(first, stack=stack)
        chosen.transition(stacked)  # refuses spaces that it cannot handle
        assigned.append(AssignedPolicy(name, agents, stacked, chosen))
    return tuple(assigned)


def policy_names(agents: list[str], policies: Mapping[str, str] | Callable[[str], str] | None) -> dict[str, str]:
    """The policy of each agent. Raises ValueError, TypeError: see `assign`."""
    if policies is None:
        names = {agent: agent for agent in agents}
    elif isinstance(policies, Mapping):
        for agent in policies:
            if agent not in agents:
                hint = did_you_mean(agent, agents)
                raise ValueError(f"policies: expected agents of the environment, got {agent!r}{hint}")
        missing = [agent for agent in agents if agent not in policies]
        if missing:
            raise ValueError(f"policies: expected a policy for each agent, got none for {missing[0]!r}")
        names = {agent: policies[agent] for agent in agents}
    elif callable(policies):
        names = {agent: policies(agent) for agent in agents}
    else:
        raise TypeError(f"policies: expected the policy of each agent, got {policies!r}")
    for agent in agents:
        if not isinstance(names[agent], str) or not names[agent]:
            raise TypeError(f"policies: expected the name of a policy for {agent}, got {names[agent]!r}")
    for agent, policy in names.items():
        encoded_name("agent", agent)  # refuses what metrics cannot hold
        encoded_name("policies", policy)
    return names


def _algorithms(policies: list[str], algorithm: Any) -> dict[str, Algorithm]:
    if not isinstance(algorithm, Mapping):
        return dict.fromkeys(policies, _chosen(algorithm))
    for name in algorithm:
        if name not in policies:
            raise ValueError(f"algorithm: expected the policies {policies}, got {name!r}{did_you_mean(name, policies)}")
    missing = [name for name in policies if name not in algorithm]
    if missing:
        raise ValueError(f"algorithm: expected one for each policy, got none for {missing[0]!r}")
    return {name: _chosen(algorithm[name]) for name in policies}


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


# The names of a run's workers, which only these functions form


def actor_names(config: Config) -> list[str]:
    """The names of a run's actors."""
    return [f"actor-{i}" for i in range(config.actor.processes)]


def learner_names(config: Config, policies: Sequence[str]) -> dict[str, list[str]]:
    """The policies that each learner process trains, by its name; one each, unless the configuration says otherwise."""
    processes = config.learner.processes
    if processes is None:
        return {_LEARNER + policy: [policy] for policy in policies}
    count = min(processes, len(policies))
    return {f"{_LEARNER}{i}": list(policies[i::count]) for i in range(count)}


def is_learner(worker: str) -> bool:
    """Whether a worker of this name is a learner."""
    return worker.startswith(_LEARNER)


def policy_of(worker: str) -> str:
    """The policy of a learner that trains one."""
    return worker.removeprefix(_LEARNER)
