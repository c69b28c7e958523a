"""What the workers of a run are called, here alone: actor-0, actor-1, ... and learner-AGENT."""

from __future__ import annotations

from .config import Config

__all__ = ["actor_names", "agent_of", "learner_name"]

_LEARNER = "learner-"


def actor_names(config: Config) -> list[str]:
    """The actors of a run."""
    return [f"actor-{i}" for i in range(config.actor.processes)]


def learner_name(agent: str) -> str:
    """The learner of an agent."""
    return _LEARNER + agent


def agent_of(worker: str) -> str | None:
    """The agent of a learner; None of an actor."""
    return worker.removeprefix(_LEARNER) if worker.startswith(_LEARNER) else None
