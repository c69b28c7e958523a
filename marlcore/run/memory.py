"""The shared memory of a run on one machine: the parent creates its segments, and workers attach them by handle."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..checks import printable
from ..closing import ClosedAfterError
from ..config import AssignedPolicy, Config, Crew, actor_names, node_names, numbers_at, schedules_of
from ..errors import LayoutMismatch
from ..interfaces import RETURN, QueueSource
from ..memory import PREFIX, Segment, SegmentHandle, survey_segments, sync_directory
from ..processes import SHARE, STEPS, Control
from ..queue import TrajectoryQueue, TrajectoryReader, lane_rows_for
from ..record import Hold, checkpoint_path, durable_note, load_checkpoint, read_json, save_checkpoint, write_json
from ..replay import ReplayBuffer
from ..self_play import SelfPlay, odds_fields, published_numbers
from ..spec import Field, TransitionSpec
from ..transitions import Durable, TransitionLanes
from ..weights import ParameterStore

if TYPE_CHECKING:
    from ..loops import PolicyModel

log = logging.getLogger(__name__)

L = TypeVar("L", bound=TransitionLanes)

TRANSIENT = f"{PREFIX}of-a-run-"  # begins the names of files in replay.path that are useless after their run


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The handles of a run's segments on this machine, and the run's directory; each worker gets a copy."""

    crew: Crew  # the actors that write here
    run_dir: Path  # unused on machines that have only actors
    began: float  # in time.monotonic, which all processes of a machine share
    control: SegmentHandle
    telemetry: SegmentHandle
    transitions: Mapping[str, SegmentHandle]  # by policy, its replay or queue
    weights: Mapping[str, SegmentHandle]  # by policy
    saved: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by policy: names of the weights in checkpoints
    league: Sequence[SelfPlay] = ()  # in the order of the policies
    reloaded: Collection[str] = ()  # the policies whose replay an earlier part of the run has saved
    holds: Mapping[str, Hold] = field(default_factory=dict)  # by policy whose learner may move to another machine

    def checkpoint(self, policy: str) -> Path:
        return checkpoint_path(self.run_dir, policy)


@dataclass(frozen=True)
class OwnerOf:
    """Saves a policy's name, and the version of its weights, beside its replay's rows.

    The replay is saved before the checkpoint. If a run is killed between the two saves, some saved rows have newer
    versions than the checkpoint.
    """

    policy: str
    version: int = 0

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"policy": np.frombuffer(self.policy.encode(), np.uint8), "version": np.array([self.version])}

    def check(self, replay: ReplayBuffer, path: Path) -> None:
        """Raises ValueError if a loaded replay belongs to another policy."""
        owner = (replay.sampler_state or {}).get("policy")
        if owner is None or owner.tobytes() != self.policy.encode():
            got = None if owner is None else owner.tobytes().decode(errors="replace")
            raise ValueError(f"resume: expected a replay of {self.policy}, got {str(path)!r}, a replay of {got}")


def transition_spec(policy: AssignedPolicy, config: Config) -> TransitionSpec:
    """Returns a policy's transition spec. Raises ValueError if learner.reward_norm is set and an extra is RETURN."""
    spec = policy.transition
    if config.learner_of(policy.name).reward_norm == "off":
        return spec
    if RETURN in spec.extras:
        raise ValueError(f"transition of {policy.name}: expected no extra {RETURN!r}, which learner.reward_norm stores")
    return replace(spec, extras={**spec.extras, RETURN: Field()})


def create_transitions(
    stack: ExitStack, policy: AssignedPolicy, config: Config, saved: Path
) -> tuple[SegmentHandle, int]:
    """Makes or loads a policy's queue or replay; returns its handle and the newest version of weights in its rows.

    Raises ValueError if a saved replay does not match the settings, SharedMemoryFull without room.
    """
    source, durable = policy.source, config.replay.durable
    if os.path.lexists(saved if durable else durable_note(saved)):
        expected = f"resume: expected replay.durable {not durable}, as in the run so far, got {durable}"
        raise ValueError(f"{expected}; {_begin_empty(saved, not durable)}")
    try:
        if isinstance(source, QueueSource):
            queue = _create_queue(stack, policy, source, config, saved)
            return queue.handle, queue.newest_version() if queue.durable else 0
        replay = _create_replay(stack, policy, config, saved)
    except LayoutMismatch as error:
        expected = f"resume: expected an algorithm whose transitions fit the kept rows of {printable(policy.name)}"
        raise LayoutMismatch(f"{expected}, got another ({error}); {_begin_empty(saved, durable)}") from None
    (version,) = (replay.sampler_state or {}).get("version", [0])
    return replay.handle, max(int(version), replay.newest_version() if replay.durable else 0)


def _create_queue(
    stack: ExitStack, policy: AssignedPolicy, source: QueueSource, config: Config, saved: Path
) -> TrajectoryQueue:
    """Makes a policy's queue, or attaches to its durable one.

    Each lane of a durable queue has room for a whole batch, and for as many read rows that await the next checkpoint.
    The queue's cursor is set to the last checkpoint's before actors add rows (see `TrajectoryReader.commit`).
    """
    lanes, config = len(policy.agents) * config.lanes, config.of(policy.name)
    durable, spec = config.replay.durable, transition_spec(policy, config)
    block = spec.state_every
    sharing = (1, 1) if durable else (lanes, config.actor.envs)
    rows = lane_rows_for(source.batch_size, *sharing, source.length, config.replay.frames, block)
    rows = -(-rows * (1 + durable) // block) * block
    unread = source.ahead * source.batch_size * (source.length or 1)
    create = partial(TrajectoryQueue.create, spec, rows * lanes, lanes, max_unread=unread)
    if not durable:
        return stack.enter_context(create(name=f"queue.{policy.index}"))
    queue = _durable_lanes(stack, policy, config, saved, TrajectoryQueue, create)
    if queue.lanes != lanes or queue.capacity < rows * lanes:
        expected = f"resume: expected a configuration that fits {policy.name}'s queue of {queue.lanes} lanes and"
        got = f"got {lanes} lanes and {rows * lanes} rows"
        raise ValueError(f"{expected} {queue.capacity} rows, {got}; {_begin_empty(saved)}")
    _agree(queue, source, config, saved)
    return queue


def _agree(queue: TrajectoryQueue, source: QueueSource, config: Config, saved: Path) -> None:
    """Brings a durable queue's cursor and its policy's checkpoint into agreement.

    Commits the checkpoint's cursor to the queue. If a power cut has lost rows that the checkpoint counts, writes the
    queue's cursor into the checkpoint. Raises ValueError if the checkpoint does not fit the queue.
    """
    checkpoint = saved.with_suffix(".pt")
    state = load_checkpoint(checkpoint)
    try:
        with closing(reader_of(queue, source, config, state)) as reader:
            cursor = reader.state_dict()["cursor"]
    except ValueError as error:
        expected = f"resume: expected a checkpoint for the queue {printable(queue.handle.path)}"
        raise ValueError(f"{expected}, got {str(checkpoint)!r} ({error}); {_begin_empty(saved)}") from None
    if _knows(state, queue) and (state["reader"]["cursor"].numpy() != cursor).any():
        state["reader"]["cursor"].numpy()[:] = cursor
        save_checkpoint(checkpoint, state)
        sync_directory(checkpoint.parent)  # before actors use the numbers of the lost rows again


def _begin_empty(saved: Path, durable: bool = True) -> str:
    return f"to begin without these rows, remove {str(durable_note(saved) if durable else saved)!r}"


def _knows(state: Mapping[str, Any], queue: TrajectoryQueue) -> bool:
    """Whether a checkpoint's state is of this queue's reader, not of another run's (init_from)."""
    return "reader" in state and state.get("replay") == queue.handle.nonce


def reader_of(
    queue: TrajectoryQueue, source: QueueSource, config: Config, state: Mapping[str, Any]
) -> TrajectoryReader:
    """Returns a queue's reader; it continues from the checkpoint's state if that belongs to this queue."""
    options: dict[str, Any] = {"stack": config.replay.frames, "gamma": config.learner.gamma, "pad": config.replay.pad}
    reader = queue.reader(source.batch_size, length=source.length, **options)
    if _knows(state, queue):
        with ClosedAfterError(reader):
            reader.commit({name: tensor.numpy() for name, tensor in state["reader"].items()})
    return reader


def _create_replay(stack: ExitStack, policy: AssignedPolicy, config: Config, saved: Path) -> ReplayBuffer:
    lanes, config = len(policy.agents) * config.lanes, config.of(policy.name)
    limiter, settings, durable = config.limiter(policy.name, lanes), config.replay, config.replay.durable
    lanes *= settings.parts
    options: dict[str, Any] = {"lanes": lanes, "limiter": limiter}
    if durable:
        create = partial(ReplayBuffer.create, transition_spec(policy, config), settings.capacity, **options)
        replay = _durable_lanes(stack, policy, config, saved, ReplayBuffer, create)
    else:
        replay = _transient_replay(stack, policy, config, saved, options)
    expected = f"resume: expected a configuration that gives {policy.name} the"
    if replay.lanes != lanes:
        raise ValueError(f"{expected} {replay.lanes} lanes of its saved replay, got {lanes} (cluster.address)")
    if replay.limiter != limiter:
        names = "learner.batch_size, learner.warmup, updates_per_step and updates_tolerance as before"
        got = f"{limiter} instead of {replay.limiter}"
        raise ValueError(f"{expected} limiter of its saved replay ({names}), got {got}; {_begin_empty(saved, durable)}")
    return replay


def _transient_replay(
    stack: ExitStack, policy: AssignedPolicy, config: Config, saved: Path, options: dict[str, Any]
) -> ReplayBuffer:
    """Makes a replay that is removed when the run ends; loads the rows of an earlier part of the run, if saved."""
    settings, spec = config.replay, transition_spec(policy, config)
    name, file = f"replay.{policy.index}", None
    if settings.path is not None:
        directory = Path(settings.path)
        survey_segments(directory, TRANSIENT, remove=True)  # files of runs that were killed
        file = directory / f"{TRANSIENT}{secrets.token_hex(4)}-{saved.name}"
    if not os.path.lexists(saved):
        replay = ReplayBuffer.create(spec, settings.capacity, name=name, path=file, **options)
        stack.enter_context(replay)
    else:
        replay = stack.enter_context(ReplayBuffer.load(saved, spec, name=name, into=file))
        OwnerOf(policy.name).check(replay, saved)
    if file is not None:
        stack.callback(replay.unlink)
    return replay


def _durable_lanes(
    stack: ExitStack, policy: AssignedPolicy, config: Config, saved: Path, kind: type[L], create: Callable[..., L]
) -> L:
    """Makes a replay or queue that outlives the run, or attaches to it; a note in the run's directory has its path."""
    settings, spec, note = config.replay, transition_spec(policy, config), durable_note(saved)
    assert settings.path is not None
    known = Path(read_json(note)["path"]) if note.exists() else None
    file = Path(settings.path) / (f"{saved.stem}-{secrets.token_hex(4)}.marlcore" if known is None else known.name)
    if known is not None and known.exists() and not file.exists():
        raise ValueError(f"replay.path: expected {known.parent}, where the run's replays are, got {settings.path}")
    if file != known:
        write_json(note, {"path": str(file)})  # first: if the run is killed now, its resumption finds this path
    if known is not None and file.exists():
        attached = kind.attach(file, spec)
        stack.enter_context(attached)
        return attached
    if known is not None:
        log.warning("resume: the %s of %s is missing and begins empty: %s", kind.kind, printable(policy.name), file)
    try:
        lanes = create(path=file, durable=Durable())
    except ValueError as error:  # of the path or the capacity
        raise ValueError(f"replay.{error}") from None
    stack.enter_context(lanes)
    stack.callback(_remove_unused, lanes)
    return lanes


def _remove_unused(lanes: TransitionLanes) -> None:
    """Removes the file if the run failed before its first row."""
    if not lanes.inserted:
        lanes.unlink()


def attach_transitions(handle: SegmentHandle) -> ReplayBuffer | TrajectoryQueue:
    segment = Segment.attach(handle)
    kind = TrajectoryQueue if segment.description.get("kind") == TrajectoryQueue.kind else ReplayBuffer
    return kind(segment)


def rows_in(handle: SegmentHandle) -> int:
    with attach_transitions(handle) as lanes:
        return len(lanes)


def create_weights(policy: AssignedPolicy, config: Config, model: PolicyModel, begins_after: int) -> ParameterStore:
    """Makes a store for a policy's weights; its versions follow `begins_after`. Raises SharedMemoryFull."""
    extras = published_numbers(policy.algorithm, config.of(policy.name)) | odds_fields(config.self_play)
    mode, name = config.learner_of(policy.name).publish_mode, f"weights.{policy.index}"
    return ParameterStore.create(model.acting, mode, extras, begins_after=begins_after, name=name)


def publish_untrained(store: ParameterStore, policy: AssignedPolicy, config: Config, model: PolicyModel) -> None:
    """Publishes a new run's first weights, so that actors can begin while the learners still import torch."""
    numbers = numbers_at(schedules_of(policy.algorithm, config.of(policy.name)), 0, 0)
    with store.publisher(model.acting) as publisher:
        publisher.publish(**numbers, updates=0, step=0)


def deal_steps(control: Control, config: Config, nodes: Sequence[str]) -> None:
    """Distributes a run's remaining steps among this machine's actors and the given nodes; other nodes get none."""
    weights = dict.fromkeys(actor_names(config), 1) | dict.fromkeys(nodes, config.cluster.actors_per_node)
    steps = {name: control.workers[name].load(STEPS) for name in [*actor_names(config), *node_names(config)]}
    by_others = sum(count for name, count in steps.items() if name not in weights)
    shares = dealt(config.total_steps - by_others, [steps[name] for name in weights], [*weights.values()])
    for name, share in (dict.fromkeys(steps, 0) | dict(zip(weights, shares, strict=True))).items():
        control.notes[name].store(SHARE, share)


def dealt(total: int, steps: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Returns the workers' step counts at the run's end, whose sum is `total`; `steps` are their counts so far.

    The remaining steps are divided in proportion to the weights; the remainder of the division goes to the workers with
    the fewest steps per weight.
    """
    left, whole = max(0, total - sum(steps)), sum(weights)
    parts = [left * weight // whole for weight in weights]
    behind = sorted(range(len(parts)), key=lambda i: steps[i] / weights[i])
    for i in behind[: left - sum(parts)]:
        parts[i] += 1
    return [count + part for count, part in zip(steps, parts, strict=True)]
