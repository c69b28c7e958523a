"""A run's picklable data, from which each worker builds its part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..interfaces import Algorithm, QueueSource, ReplaySource
from ..memory import SegmentHandle
from ..spaces import Spaces
from .config import Config
from .normalizer import Normalizer
from .policies import AssignedPolicy
from .policy import PolicyModel
from .schedules import Schedule
from .sections import EPSILON

__all__ = ["Blueprint", "PolicyPlan", "SelfPlayPlan", "build_model", "run_seed", "schedules_of"]


@dataclass(frozen=True)
class PolicyPlan:
    """One policy: its agents, its algorithm, and the places of its transitions and weights.

    Attributes:
        spaces: of each of its agents.
        source: how its learner gets its batches.
        transitions: its replay, or its queue if `source` is a QueueSource; one lane for each copy of each of its
            agents, in each part; see `lanes_of`.
        saved_replay: None if the replay is not saved.
        replay_was_saved: the replay is one that an earlier part of the run saved.
    """

    name: str
    agents: tuple[str, ...]
    spaces: Spaces
    algorithm: Algorithm
    checkpoint: Path
    saved_replay: Path | None
    source: ReplaySource | QueueSource
    transitions: SegmentHandle
    weights: SegmentHandle
    replay_was_saved: bool = False

    def lanes_of(self, agent: str, actor: int, copies: int, actors: int, part: int = 0) -> range:
        """The lanes of an agent in an actor's copies of the environment, in a part of the replay."""
        first = ((part * len(self.agents) + self.agents.index(agent)) * actors + actor) * copies
        return range(first, first + copies)


@dataclass(frozen=True)
class SelfPlayPlan:
    """The places of what self-play needs: the pool of opponents, and the results of games, a lane for each actor."""

    pool: SegmentHandle
    results: SegmentHandle


@dataclass(frozen=True)
class Blueprint:
    """A run's data for its workers."""

    env_fn: Callable[[], Any]
    config: Config
    policies: tuple[PolicyPlan, ...]
    control: SegmentHandle
    telemetry: SegmentHandle
    began: float  # in time.monotonic, which all processes of a machine share
    self_play: SelfPlayPlan | None = None


def build_model(policy: AssignedPolicy | PolicyPlan, config: Config, index: int) -> PolicyModel:
    """The untrained model of the index-th policy, the same for the same seed; torch's generator is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run_seed(config, "network", index))
        norm = None if config.learner_of(policy.name).obs_norm == "off" else Normalizer(policy.spaces)
        return PolicyModel(policy.algorithm.make_model(policy.spaces), norm)


def schedules_of(algorithm: Algorithm, config: Config) -> dict[str, Schedule]:
    """The numbers that a policy's learner publishes with its weights, by name.

    On-policy algorithms draw their actions, so there is an epsilon for them only if they name one themselves.

    Raises: ValueError, TypeError: one of the algorithm's is no schedule.
    """
    its_own: Mapping[str, Any] = getattr(algorithm, "schedules", dict)()  # an algorithm need not derive from Algorithm
    named = {name: Schedule.from_value(name, value) for name, value in its_own.items()}
    found = {"epsilon": EPSILON, **named, **config.schedules}
    if isinstance(algorithm.source(ReplaySource()), QueueSource) and "epsilon" not in named:
        del found["epsilon"]
    return found


def run_seed(config: Config, what: str, index: int, begin: int = 0) -> int:
    """An independent seed for each use of randomness in a run, and for each point of restart."""
    key = [config.seed, index, *what.encode(), *([begin] if begin else [])]
    return int(np.random.SeedSequence(key).generate_state(1)[0])
