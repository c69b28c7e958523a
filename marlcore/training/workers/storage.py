"""The storage of a policy's transitions: a replay or a queue, as its algorithm's source says."""

import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...interfaces import QueueSource
from ...memory import PREFIX, SegmentHandle, survey_names
from ...queue import TrajectoryQueue, lane_rows_for
from ...replay import ReplayBuffer
from ..config import AssignedPolicy, Config, source_of
from ..record import RunDirectory
from .blueprint import PolicyBlueprint

TRANSIENT = f"{PREFIX}of-a-run-"  # files in replay.path that no longer matter when no process holds them


@dataclass(frozen=True)
class OwnerOf:
    """What a saved replay says of its policy, beside its rows."""

    policy: str

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"policy": np.frombuffer(self.policy.encode(), np.uint8)}

    def check(self, replay: ReplayBuffer, path: Path) -> None:
        """Raises ValueError: the loaded replay is of another policy."""
        owner = (replay.sampler_state or {}).get("policy")
        if owner is None or owner.tobytes() != self.policy.encode():
            got = None if owner is None else owner.tobytes().decode(errors="replace")
            raise ValueError(f"resume: expected a replay of {self.policy}, got {str(path)!r}, which is one of {got}")


def attach_storage(policy: PolicyBlueprint) -> ReplayBuffer | TrajectoryQueue:
    """A policy's transitions, in a worker."""
    kind = TrajectoryQueue if isinstance(policy.source, QueueSource) else ReplayBuffer
    return kind.attach(policy.transitions)


def create_storage(
    stack: ExitStack, policy: AssignedPolicy, index: int, config: Config, run: RunDirectory
) -> SegmentHandle:
    """A policy's replay or queue, closed with the stack.

    Raises: ValueError: the run saved a replay that does not fit. SharedMemoryFull: there is no room for it.
    """
    source = source_of(policy, config)
    if isinstance(source, QueueSource):
        return stack.enter_context(_queue(policy, source, index, config)).handle
    return _replay(stack, policy, index, config, run.replay_path(policy.name)).handle


def _queue(policy: AssignedPolicy, source: QueueSource, index: int, config: Config) -> TrajectoryQueue:
    spec, lanes = policy.algorithm.transition(policy.spaces), len(policy.agents) * config.lanes
    rows = lane_rows_for(
        source.batch_size, lanes, config.actor.envs, source.length, config.replay.frames, spec.state_every
    )
    rows = -(-rows // spec.state_every) * spec.state_every
    unread = source.ahead * source.batch_size * (source.length or 1)
    return TrajectoryQueue.create(spec, rows * lanes, lanes, max_unread=unread, name=f"queue.{index}")


def _replay(stack: ExitStack, policy: AssignedPolicy, index: int, config: Config, saved: Path) -> ReplayBuffer:
    """The replay that the run saved, if there is one."""
    lanes = len(policy.agents) * config.lanes
    file = None if config.replay.path is None else _new_file(Path(config.replay.path), saved.name)
    spec, limiter = policy.algorithm.transition(policy.spaces), config.limiter(policy.name, lanes)
    if saved.exists():
        replay = stack.enter_context(ReplayBuffer.load(saved, spec, name=f"replay.{index}", into=file))
        OwnerOf(policy.name).check(replay, saved)
        if replay.limiter != limiter:
            raise ValueError(
                f"resume: expected a configuration that gives {policy.name} the limiter of its saved replay, "
                f"{replay.limiter}, got {limiter}"
            )
    else:
        replay = stack.enter_context(
            ReplayBuffer.create(
                spec, config.replay.capacity, lanes * config.replay.parts, limiter=limiter, name=f"replay.{index}",
                path=file,
            )
        )  # fmt: skip
    if file is not None:
        stack.callback(replay.unlink)
    return replay


def _new_file(directory: Path, name: str) -> Path:
    """A new name for a replay's file; first removes such files of runs that were killed."""
    survey_names(directory, TRANSIENT, remove=True)
    return directory / f"{TRANSIENT}{secrets.token_hex(4)}-{name}"
