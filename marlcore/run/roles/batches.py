"""A learner's batches: drawn from a replay, or read from a queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...config import AssignedPolicy, Config
from ...interfaces import QueueSource, ReplaySource
from ...loops import Batches, run_seed, with_functions_of
from ...memory import sync_directory
from ...queue import TrajectoryQueue, TrajectoryReader
from ...replay import Mixture, Prefetch, ReplayBuffer, Sampler
from ..memory import OwnerOf, reader_of
from .role import Role


class ReplayBatches:
    """Draws a learner's batches from a replay or a mixture of its parts; with `learner.prefetch`, a thread draws ahead.

    `updates` is the number of updates made so far. With a checkpoint's `state`, the sampler continues from the
    checkpoint; with an empty `state`, a new sampler starts.
    """

    on_policy = False
    save_due = False

    def __init__(
        self, policy: AssignedPolicy, source: ReplaySource, role: Role, updates: int, device: torch.device,
        state: Mapping[str, Any],
    ) -> None:  # fmt: skip
        config, learner = role.config.of(policy.name), role.config.learner_of(policy.name)
        self._name, self._memory, self._saves = policy.name, role.memory, config.replay.save
        self._handle = role.memory.transitions[policy.name]
        self._replay = replay = role.hold(ReplayBuffer.attach(self._handle))
        self._fastest = config.pace.bounds[1] if config.pace else 1.0
        self._steps_per_row = 1.0 / role.control.about["policies"][policy.name]["share"]
        self.prioritized = source.prioritized is not None
        options: dict[str, Any] = {
            "stack": config.replay.frames, "n_step": source.n_step, "gamma": learner.gamma,
            "seed": run_seed(config, "sampler", policy.index, updates),
            "pad": config.replay.pad, "prioritized": source.prioritized, "sequence": source.sequence,
        }  # fmt: skip
        if source.hindsight is not None:
            env = role.hold(role.spec.env_fn())
            options["hindsight"] = with_functions_of(env, source.hindsight, replay.spec)
        self._sampler: Sampler | Mixture
        if config.replay.mixture:
            self._sampler = _mixture_of(replay, len(policy.agents) * config.lanes, config, options)
        else:
            if config.replay.durable:  # recorded data are the user's: no file is written beside them
                options["name"] = "learner"  # under this name it continues where the last learner ended
            self._sampler = replay.sampler(learner.batch_size, min_size=learner.warmup, **options)
        if "sampler" in state and "name" not in options:  # an empty state, or another run's (init_from), has no sampler
            self._restore(state, updates != state.get("updates"))  # before a thread draws ahead
        ahead = learner.prefetch if config.mode == "async" else 0
        self._limited_ahead = bool(ahead) and config.updates_per_step is not None and not config.offline
        self._source = role.hold(Prefetch(self._sampler, depth=ahead, device=device)) if ahead else self._sampler
        self.sample, self.clear = self._source.sample, self._source.clear
        self.update_priorities = self._source.update_priorities

    @property
    def due(self) -> bool:
        """Whether an update is due (see `Batches.due`), or a batch that was drawn ahead is ready."""
        return self._sampler.due or (self._limited_ahead and self._source.can_sample())

    def follow(self, pace: Callable[[float], float]) -> None:
        self._sampler.limit_to(lambda rows: min(pace(rows * self._steps_per_row) / self._fastest, 1.0))

    def stats(self) -> dict[str, float]:
        each = [self._sampler.stats] if isinstance(self._sampler, Sampler) else self._sampler.stats
        counters = {"lapped": "lapped", "redrawn": "redrawn", "waited_s": "waited"}
        sums = {name: sum(getattr(stats, counter) for stats in each) for name, counter in counters.items()}
        return {"rows": len(self._replay), **sums}

    def save(self, version: int) -> dict[str, Any]:
        """Saves the replay, whose rows come from weights up to `version`; then returns the sampler's state.

        It does no harm if a kill leaves a replay that is newer than its checkpoint.
        """
        if self._saves:
            saved = self._memory.checkpoint(self._name).with_suffix(".replay")
            hold = self._memory.holds.get(self._name)
            self._replay._save(saved, OwnerOf(self._name, version), hold and hold.check)
        state = {name: torch.from_numpy(array) for name, array in self._source.state_dict().items()}
        return {"sampler": state, "replay": self._handle.nonce}

    def commit(self, checkpoint: Path) -> None:
        """Does nothing: a replay's rows may be drawn again."""

    def _restore(self, state: Mapping[str, Any], other_draws: bool) -> None:
        """Restores the sampler from a checkpoint, with its priorities if they still fit: their rows and its options.

        `other_draws`: draw with other random numbers, since updates were made after the checkpoint.
        """
        fresh = self._sampler.state_dict()
        saved = {name: tensor.numpy() for name, tensor in state["sampler"].items()}
        lost = self._name not in self._memory.reloaded and state.get("replay") != self._handle.nonce
        kind = _entries(fresh, "exponents", "window")  # a resumed run may have others
        if lost or not all(np.array_equal(saved.get(name, value), value) for name, value in kind.items()):
            independent_of_rows = _entries(saved, "generator", "batches")
            saved = fresh | {name: value for name, value in independent_of_rows.items() if name in fresh}
        if other_draws:
            saved |= _entries(fresh, "generator")
        self._sampler.load_state_dict(saved)


def _mixture_of(replay: ReplayBuffer, size: int, config: Config, options: Mapping[str, Any]) -> Mixture:
    """Returns a mixture of a replay's parts, which have `size` lanes each; `config` is the policy's."""
    shares, learner = np.array([*config.replay.mixture.values()]), config.learner
    fractions = shares / shares.sum()
    lanes = [range(part * size, (part + 1) * size) for part in range(len(shares))]
    least = max(1, int(learner.warmup * fractions[fractions > 0].min()))
    parts = [replay] * len(shares)
    return Mixture(parts, fractions.tolist(), learner.batch_size, min_size=least, lanes=lanes, **options)


def _entries(state: dict[str, Any], *names: str) -> dict[str, Any]:
    """Returns the entries with these names from the state of a sampler, or of each part of a mixture."""
    return {name: value for name, value in state.items() if name.rpartition(".")[2] in names}


class QueueBatches(Batches):
    """Reads a learner's batches from a queue: each transition once, almost all from the newest weights.

    A durable queue keeps its rows until a checkpoint with the reader's cursor is saved; a later learner continues
    from this cursor. Other queues are not saved: a resumed run begins with an empty queue.
    """

    on_policy = True

    def __init__(self, policy: AssignedPolicy, source: QueueSource, role: Role, state: Mapping[str, Any]) -> None:
        self._queue = queue = role.hold(TrajectoryQueue.attach(role.memory.transitions[policy.name]))
        self._reader: TrajectoryReader = role.hold(reader_of(queue, source, role.config.of(policy.name), state))
        self._saved: dict[str, Any] | None = None  # the reader's state in the newest checkpoint
        self.sample = self._reader.read

    @property
    def due(self) -> bool:
        return self._reader.may_be_ready

    def stats(self) -> dict[str, float]:
        stats = self._reader.stats
        counters = {"lapped": stats.lapped, "skipped": stats.skipped, "waited_s": stats.waited}
        return {"rows": len(self._queue), **counters}

    @property
    def save_due(self) -> bool:
        return self._queue.durable is not None and self._reader.commit_due

    def save(self, version: int) -> dict[str, Any]:
        if self._queue.durable is None:
            return {}
        self._saved = self._reader.state_dict()
        state = {name: torch.from_numpy(array) for name, array in self._saved.items()}
        return {"reader": state, "replay": self._queue.handle.nonce}

    def commit(self, checkpoint: Path) -> None:
        """Puts the saved checkpoint's name on disk, then lets actors overwrite the rows that it covers."""
        if self._saved is not None:
            sync_directory(checkpoint.parent)
            self._reader.commit(self._saved)
