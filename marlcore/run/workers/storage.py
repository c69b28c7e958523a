"""A policy's transitions, in a replay or a queue as its algorithm's source says, and a learner's batches of them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...config import AssignedPolicy, Config
from ...interfaces import RETURN, QueueSource, ReplaySource
from ...loops import Batches, PolicyModel, run_seed, with_functions_of
from ...memory import PREFIX, SegmentHandle, survey_segments
from ...queue import TrajectoryQueue, TrajectoryReader, lane_rows_for
from ...replay import Mixture, Prefetch, ReplayBuffer, Sampler
from ...self_play import odds_fields, published_numbers
from ...spec import Field, TransitionSpec
from ...weights import ParameterStore
from .worker import PolicyBlueprint, Worker

TRANSIENT = f"{PREFIX}of-a-run-"  # files in replay.path that no longer matter when no process holds them


@dataclass(frozen=True)
class OwnerOf:
    """The name of a saved replay's policy, beside its rows."""

    policy: str

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"policy": np.frombuffer(self.policy.encode(), np.uint8)}

    def check(self, replay: ReplayBuffer, path: Path) -> None:
        """Raises ValueError: the loaded replay is of another policy."""
        owner = (replay.sampler_state or {}).get("policy")
        if owner is None or owner.tobytes() != self.policy.encode():
            got = None if owner is None else owner.tobytes().decode(errors="replace")
            raise ValueError(f"resume: expected a replay of {self.policy}, got {str(path)!r}, which is one of {got}")


def spec_of(policy: AssignedPolicy, config: Config) -> TransitionSpec:
    """What a row of a policy's transitions holds. Raises ValueError: an extra of the algorithm has a taken name."""
    spec = policy.algorithm.transition(policy.spaces)
    if config.learner_of(policy.name).reward_norm == "off":
        return spec
    if RETURN in spec.extras:
        raise ValueError(f"transition of {policy.name}: {RETURN!r} is the extra of learner.reward_norm")
    return replace(spec, extras={**spec.extras, RETURN: Field()})


def create_storage(stack: ExitStack, policy: AssignedPolicy, config: Config, saved: Path) -> SegmentHandle:
    """A policy's queue, or its replay, perhaps a saved one. Raises: ValueError: that does not fit. SharedMemoryFull."""
    source, lanes, config = policy.source, len(policy.agents) * config.lanes, config.of(policy.name)
    spec = spec_of(policy, config)
    if isinstance(source, QueueSource):
        rows = lane_rows_for(
            source.batch_size, lanes, config.actor.envs, source.length, config.replay.frames, spec.state_every
        )
        rows = -(-rows // spec.state_every) * spec.state_every
        unread = source.ahead * source.batch_size * (source.length or 1)
        queue = TrajectoryQueue.create(spec, rows * lanes, lanes, max_unread=unread, name=f"queue.{policy.index}")
        return stack.enter_context(queue).handle
    limiter, name = config.limiter(policy.name, lanes), f"replay.{policy.index}"
    file = None
    if config.replay.path is not None:
        directory = Path(config.replay.path)
        survey_segments(directory, TRANSIENT, remove=True)  # files of runs that were killed
        file = directory / f"{TRANSIENT}{secrets.token_hex(4)}-{saved.name}"
    if os.path.lexists(saved):
        replay = stack.enter_context(ReplayBuffer.load(saved, spec, name=name, into=file))
        OwnerOf(policy.name).check(replay, saved)
        if replay.lanes != lanes * config.replay.parts:
            raise ValueError(
                f"resume: expected a configuration that gives {policy.name} the {replay.lanes} lanes of its saved "
                f"replay, got {lanes * config.replay.parts} (cluster.address)"
            )
        if replay.limiter != limiter:
            raise ValueError(
                f"resume: expected a configuration that gives {policy.name} the limiter of its saved replay, "
                f"{replay.limiter}, got {limiter}"
            )
    else:
        lanes *= config.replay.parts
        replay = ReplayBuffer.create(spec, config.replay.capacity, lanes, limiter=limiter, name=name, path=file)
        stack.enter_context(replay)
    if file is not None:
        stack.callback(replay.unlink)
    return replay.handle


def create_weights(policy: AssignedPolicy, config: Config, model: PolicyModel, begins_after: int) -> ParameterStore:
    """A store for a policy's weights, whose versions follow a given one. Raises SharedMemoryFull."""
    extras = published_numbers(policy.algorithm, config.of(policy.name)) | odds_fields(config.self_play)
    mode, name = config.learner_of(policy.name).publish_mode, f"weights.{policy.index}"
    return ParameterStore.create(model.acting, mode, extras, begins_after=begins_after, name=name)


def attach_storage(policy: PolicyBlueprint) -> ReplayBuffer | TrajectoryQueue:
    """A policy's transitions, in a worker."""
    return (TrajectoryQueue if policy.queued else ReplayBuffer).attach(policy.transitions)


class ReplayBatches:
    """Batches that a sampler draws from a replay, or from a mixture of its parts, perhaps ahead.

    After so many `updates`, they continue those of a checkpoint's `state`; an empty one begins anew.
    """

    on_policy = False

    def __init__(
        self, policy: PolicyBlueprint, source: ReplaySource, worker: Worker, updates: int, device: torch.device,
        state: Mapping[str, Any],
    ) -> None:  # fmt: skip
        config, learner = worker.config.of(policy.name), worker.config.learner_of(policy.name)
        self._replay = replay = worker.hold(ReplayBuffer.attach(policy.transitions))
        self._policy, self._saves = policy, config.replay.save
        self._fastest = config.pace.bounds[1] if config.pace else 1.0
        self._steps_per_row = 1.0 / worker.control.about["policies"][policy.name]["share"]
        self.prioritized = source.prioritized is not None
        options: dict[str, Any] = {
            "stack": config.replay.frames, "n_step": source.n_step, "gamma": learner.gamma,
            "seed": run_seed(config, "sampler", policy.index, updates),
            "pad": config.replay.pad, "prioritized": source.prioritized, "sequence": source.sequence,
        }  # fmt: skip
        if source.hindsight is not None:
            env = worker.hold(worker.blueprint.env_fn())
            options["hindsight"] = with_functions_of(env, source.hindsight, replay.spec)
        self._sampler: Sampler | Mixture
        if config.replay.mixture:
            shares = np.array([*config.replay.mixture.values()])
            size, fractions = len(policy.agents) * config.lanes, shares / shares.sum()
            lanes = [range(part * size, (part + 1) * size) for part in range(len(shares))]
            options |= {"min_size": max(1, int(learner.warmup * fractions[fractions > 0].min())), "lanes": lanes}
            self._sampler = Mixture([replay] * len(shares), fractions.tolist(), learner.batch_size, **options)
        else:
            self._sampler = replay.sampler(learner.batch_size, min_size=learner.warmup, **options)
        if "sampler" in state:  # else it is empty, or another run's from which this one starts
            self._restore(state, updates != state.get("updates"))  # before a thread draws ahead
        ahead = learner.prefetch if config.mode == "async" else 0
        self._limited_ahead = bool(ahead) and config.updates_per_step is not None and not config.offline
        self._source = worker.hold(Prefetch(self._sampler, ahead, device)) if ahead else self._sampler
        self.sample, self.clear = self._source.sample, self._source.clear
        self.update_priorities = self._source.update_priorities

    @property
    def due(self) -> bool:
        """See `Batches.due`; also whether a batch is drawn ahead."""
        return self._sampler.due or (self._limited_ahead and self._source.can_sample())

    def follow(self, pace: Callable[[float], float]) -> None:
        self._sampler.limit_to(lambda rows: min(pace(rows * self._steps_per_row) / self._fastest, 1.0))

    def stats(self) -> dict[str, float]:
        each = [self._sampler.stats] if isinstance(self._sampler, Sampler) else self._sampler.stats
        counters = {"lapped": "lapped", "redrawn": "redrawn", "waited_s": "waited"}
        sums = {name: sum(getattr(stats, counter) for stats in each) for name, counter in counters.items()}
        return {"rows": len(self._replay), **sums}

    def save(self) -> dict[str, Any]:
        """The sampler's state; first saves the replay, since one newer than its checkpoint does no harm."""
        if self._saves:
            self._replay.save(self._policy.checkpoint.with_suffix(".replay"), OwnerOf(self._policy.name))
        state = {name: torch.from_numpy(array) for name, array in self._source.state_dict().items()}
        return {"sampler": state, "replay": self._policy.transitions.nonce}

    def _restore(self, state: Mapping[str, Any], again: bool) -> None:
        """Continues the sampler of a checkpoint, with its priorities if the replay has their rows.

        `again`: updates were made since, whose random numbers must not be repeated.
        """
        fresh = self._sampler.state_dict()
        saved = {name: tensor.numpy() for name, tensor in state["sampler"].items()}
        if not self._policy.replay_was_saved and state.get("replay") != self._policy.transitions.nonce:
            of_no_rows = _entries(saved, "generator", "batches")
            saved = fresh | {name: value for name, value in of_no_rows.items() if name in fresh}
        if again:
            saved |= _entries(fresh, "generator")
        self._sampler.load_state_dict(saved)


def _entries(state: dict[str, Any], *names: str) -> dict[str, Any]:
    """The entries of these names in a sampler's state, or in those of all parts of a mixture."""
    return {name: value for name, value in state.items() if name.rpartition(".")[2] in names}


class QueueBatches(Batches):
    """Batches that a reader takes from a queue: each transition once, and all but a few are of the newest weights.

    Nothing of it is saved, and a resumed run begins with an empty one.
    """

    on_policy = True

    def __init__(self, policy: PolicyBlueprint, source: QueueSource, worker: Worker) -> None:
        replay, gamma = worker.config.replay, worker.config.learner_of(policy.name).gamma
        options: dict[str, Any] = {"stack": replay.frames, "gamma": gamma, "pad": replay.pad}
        self._queue = queue = worker.hold(TrajectoryQueue.attach(policy.transitions))
        self._reader: TrajectoryReader = worker.hold(queue.reader(source.batch_size, length=source.length, **options))
        self.sample = self._reader.read

    @property
    def due(self) -> bool:
        return self._reader.may_be_ready

    def stats(self) -> dict[str, float]:
        stats = self._reader.stats
        counters = {"lapped": stats.lapped, "skipped": stats.skipped, "waited_s": stats.waited}
        return {"rows": len(self._queue), **counters}

    def save(self) -> dict[str, Any]:
        return {}
