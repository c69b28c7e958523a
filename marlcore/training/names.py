"""The names of a run's workers: actor-0, actor-1, ... and learner-AGENT; only this module forms them."""

from __future__ import annotations

from .config import Config

__all__ = ["actor_names", "agent_of", "learner_name"]

_LEARNER = "learner-"


def actor_names(config: Config) -> list[str]:
    """The names of a run's actors."""
    return [f"actor-{i}" for i in range(config.actor.processes)]


def learner_name(agent: str) -> str:
    """The name of an agent's learner."""
    return _LEARNER + agent


def agent_of(worker: str) -> str | None:
    """The agent of a learner; None for an actor."""
    return worker.removeprefix(_LEARNER) if worker.startswith(_LEARNER) else None
