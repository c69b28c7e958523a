"""A run's picklable data, from which each worker builds its part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from ...interfaces import Algorithm, QueueSource, ReplaySource, Turn, VectorEnvironment
from ...memory import SegmentHandle
from ...spaces import Spaces
from ..config import AssignedPolicy, Config
from ..loops import (
    ActingModel,
    Candidate,
    Ended,
    Games,
    Normalizer,
    PolicyModel,
    PublishedPolicy,
    Seat,
)
from .worker import Worker


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


class Assignment(Protocol):
    """What an episode's beginning decides for the seats: the part of the replay, and who acts."""

    def begin(self, turn: Turn) -> None:
        """Fills the columns of the seats in the copies in which an episode begins."""

    def note(self, ended: Ended) -> None:
        """Takes in the outcome of episodes."""


class League(Protocol):
    """The opponents of a policy, as its learner keeps them."""

    def publish(self, numbers: Mapping[str, float]) -> Mapping[str, Any]:
        """What is published with the policy's weights, beside these numbers."""

    def report(self) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def write(self) -> None:
        """Writes what the last checkpoint has, for readers."""


class Opponents(Protocol):
    """Where self-play joins the workers; the room self_play, above this one, has it. It is picklable."""

    def join_league(
        self, blueprint: Blueprint, plan: PolicyPlan, model: ActingModel, worker: Worker, state: Mapping[str, Any]
    ) -> League:
        """The league of a policy's learner; `state` is of its checkpoint."""

    def join_matches(
        self,
        blueprint: Blueprint,
        worker: Worker,
        index: int,
        env: VectorEnvironment,
        seats: Mapping[str, Seat],
        policy: PublishedPolicy,
    ) -> Assignment:
        """The matches of the index-th actor, whose seats the policy that learns shares with its opponents."""

    def join_games(
        self,
        blueprint: Blueprint,
        worker: Worker,
        env: VectorEnvironment,
        candidate: Candidate,
        seed: Callable[[int], int],
    ) -> Games:
        """The games in which the evaluator measures the policy."""


@dataclass(frozen=True)
class Blueprint:
    """A run's data for its workers."""

    env_fn: Callable[[], Any]
    config: Config
    policies: tuple[PolicyPlan, ...]
    control: SegmentHandle
    telemetry: SegmentHandle
    began: float  # in time.monotonic, which all processes of a machine share
    self_play: Opponents | None = None


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
