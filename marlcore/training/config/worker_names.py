"""The names of a run's workers: actor-0, learner-POLICY or learner-0, evaluator; only this module forms them."""

from __future__ import annotations

from collections.abc import Sequence

from .config import Config

EVALUATOR = "evaluator"
_LEARNER = "learner-"


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
