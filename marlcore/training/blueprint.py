"""A run's picklable data, from which each worker builds its part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..interfaces import Algorithm
from ..memory import SegmentHandle
from ..spaces import Spaces
from .config import Config
from .normalizer import Normalizer
from .policies import AssignedPolicy
from .policy import PolicyModel

__all__ = ["Blueprint", "PolicyPlan", "build_model", "run_seed"]


@dataclass(frozen=True)
class PolicyPlan:
    """One policy: its agents, its algorithm, and the places of its transitions and weights.

    Attributes:
        spaces: of each of its agents.
        replay: one lane for each copy of each of its agents; see `lanes_of`.
        saved_replay: None if the replay is not saved.
        replay_was_saved: the replay is one that an earlier part of the run saved.
    """

    name: str
    agents: tuple[str, ...]
    spaces: Spaces
    algorithm: Algorithm
    checkpoint: Path
    saved_replay: Path | None
    replay: SegmentHandle
    weights: SegmentHandle
    replay_was_saved: bool = False

    def lanes_of(self, agent: str, actor: int, copies: int, actors: int) -> range:
        """The lanes of an agent in an actor's copies of the environment."""
        first = (self.agents.index(agent) * actors + actor) * copies
        return range(first, first + copies)


@dataclass(frozen=True)
class Blueprint:
    """A run's data for its workers."""

    env_fn: Callable[[], Any]
    config: Config
    policies: tuple[PolicyPlan, ...]
    control: SegmentHandle
    telemetry: SegmentHandle
    began: float  # in time.monotonic, which all processes of a machine share


def build_model(policy: AssignedPolicy | PolicyPlan, config: Config, index: int) -> PolicyModel:
    """The untrained model of the index-th policy, the same for the same seed; torch's generator is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run_seed(config, "network", index))
        norm = None if config.learner_of(policy.name).obs_norm == "off" else Normalizer(policy.spaces)
        return PolicyModel(policy.algorithm.make_model(policy.spaces), norm)


def run_seed(config: Config, what: str, index: int, begin: int = 0) -> int:
    """An independent seed for each use of randomness in a run, and for each point of restart."""
    key = [config.seed, index, *what.encode(), *([begin] if begin else [])]
    return int(np.random.SeedSequence(key).generate_state(1)[0])
