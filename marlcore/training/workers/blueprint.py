"""A run's picklable data, from which each worker builds its part."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...interfaces import QueueSource, ReplaySource
from ...memory import SegmentHandle
from ..config import AssignedPolicy, Config
from ..self_play import SelfPlay


@dataclass(frozen=True)
class PolicyBlueprint(AssignedPolicy):
    """A policy, and the places of its transitions, weights and files."""

    checkpoint: Path
    saved_replay: Path | None  # None if the replay is not saved
    source: ReplaySource | QueueSource  # of its learner's batches
    transitions: SegmentHandle  # its replay, or its queue; see `lanes_of`
    weights: SegmentHandle
    replay_was_saved: bool = False  # by an earlier part of the run

    @property
    def run_dir(self) -> Path:
        """The run's directory."""
        return self.checkpoint.parents[1]

    def lanes_of(self, agent: str, actor: int, copies: int, actors: int, part: int = 0) -> range:
        """The lanes of an agent in an actor's copies of the environment, in a part of the replay."""
        first = ((part * len(self.agents) + self.agents.index(agent)) * actors + actor) * copies
        return range(first, first + copies)


@dataclass(frozen=True)
class Blueprint:
    """A run's data for its workers."""

    env_fn: Callable[[], Any]
    config: Config
    policies: tuple[PolicyBlueprint, ...]
    control: SegmentHandle
    telemetry: SegmentHandle
    began: float  # in time.monotonic, which all processes of a machine share
    self_play: SelfPlay | None = None
