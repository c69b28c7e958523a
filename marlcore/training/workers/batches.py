"""A learner's batches, sampled from its policy's replay or read from its queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...interfaces import QueueSource, ReplaySource
from ...queue import TrajectoryQueue
from ...replay import Mixture, Prefetch, ReplayBuffer, Sampler
from ...transitions import Batch, TorchBatch
from ..config import Config
from ..loops import run_seed
from .blueprint import PolicyBlueprint
from .storage import OwnerOf, attach_storage
from .worker import Worker

RANDOM = ("generator", "batches")  # of a sampler's state, what does not concern the rows


def batches_of(
    policy: PolicyBlueprint, index: int, worker: Worker, updates: int, device: torch.device
) -> ReplayBatches | QueueBatches:
    """The batches of the index-th policy in its learner's worker, after so many updates, for a network's device."""
    storage = worker.hold(attach_storage(policy))
    if isinstance(policy.source, QueueSource):
        return QueueBatches(storage, policy.source, policy.name, worker)
    return ReplayBatches(storage, policy, worker, run_seed(worker.config, "sampler", index, updates), device)


def sampler_of(
    replay: ReplayBuffer, policy: PolicyBlueprint, source: ReplaySource, config: Config, seed: int
) -> Sampler | Mixture:
    """The sampler of a policy's replay, or of the mixture of its parts."""
    settings, shares = config.learner_of(policy.name), config.replay.mixture
    options: dict[str, Any] = {
        "stack": config.replay.frames,
        "n_step": source.n_step,
        "gamma": settings.gamma,
        "seed": seed,
        "pad": config.replay.pad,
        "prioritized": source.prioritized,
        "sequence": source.sequence,
    }
    if not shares:
        return replay.sampler(settings.batch_size, min_size=settings.warmup, **options)
    size = len(policy.agents) * config.lanes
    lanes = [range(part * size, (part + 1) * size) for part in range(len(shares))]
    total = sum(shares.values())
    fractions = [share / total for share in shares.values()]
    least = max(1, int(settings.warmup * min(fraction for fraction in fractions if fraction > 0)))
    return Mixture([replay] * len(shares), fractions, settings.batch_size, min_size=least, lanes=lanes, **options)


class ReplayBatches:
    """Batches that a sampler draws from a replay, perhaps ahead."""

    on_policy = False

    def __init__(
        self, replay: ReplayBuffer, policy: PolicyBlueprint, worker: Worker, seed: int, device: torch.device
    ) -> None:
        config = worker.config
        self._replay = replay
        self._policy = policy
        assert isinstance(policy.source, ReplaySource)
        self.prioritized = policy.source.prioritized is not None
        self._sampler = sampler_of(replay, policy, policy.source, config, seed)
        self._source: Sampler | Mixture | Prefetch[Any] = self._sampler
        ahead = config.learner_of(policy.name).prefetch if config.mode == "async" else 0
        if ahead:
            self._source = worker.hold(Prefetch(self._sampler, ahead, device))
        self._limited_ahead = bool(ahead) and config.updates_per_step is not None
        self.sample, self.clear = self._source.sample, self._source.clear
        self.update_priorities = self._source.update_priorities

    @property
    def due(self) -> bool:
        """See `Batches.due`; also whether a batch is drawn ahead."""
        return self._sampler.due or (self._limited_ahead and self._source.can_sample())

    def stats(self) -> dict[str, float]:
        """The samplers' counters."""
        each = [self._sampler.stats] if isinstance(self._sampler, Sampler) else self._sampler.stats
        counters = {"lapped": "lapped", "redrawn": "redrawn", "waited_s": "waited"}
        return {name: sum(getattr(stats, counter) for stats in each) for name, counter in counters.items()}

    def save(self) -> dict[str, Any]:
        """The sampler's state; first saves the replay, since one newer than its checkpoint does no harm."""
        if self._policy.saved_replay is not None:
            self._replay.save(self._policy.saved_replay, OwnerOf(self._policy.name))
        state = {name: torch.from_numpy(array) for name, array in self._source.state_dict().items()}
        return {"sampler": state, "replay": self._policy.transitions.nonce}

    def restore(self, state: Mapping[str, Any], again: bool) -> None:
        """Continues the sampler of a checkpoint; with priorities only if the replay has their rows.

        Args:
            again: updates were made since the checkpoint, whose random numbers must not be repeated.
        """
        fresh = self._sampler.state_dict()
        saved = {name: tensor.numpy() for name, tensor in state["sampler"].items()}
        if not self._policy.replay_was_saved and state.get("replay") != self._policy.transitions.nonce:
            saved = fresh | {name: value for name, value in saved.items() if _without_part(name) in RANDOM}
        if again:
            saved |= {name: value for name, value in fresh.items() if _without_part(name) == "generator"}
        self._sampler.load_state_dict(saved)


def _without_part(name: str) -> str:
    """The name of an entry of a sampler's state, without that of its part of a mixture."""
    return name.rpartition(".")[2]


class QueueBatches:
    """Batches that a reader takes from a queue; nothing of it is saved, and a resumed run begins with an empty one."""

    on_policy, prioritized, due = True, False, True

    def __init__(self, queue: TrajectoryQueue, source: QueueSource, policy: str, worker: Worker) -> None:
        config = worker.config
        self._reader = worker.hold(
            queue.reader(
                source.batch_size,
                length=source.length,
                stack=config.replay.frames,
                gamma=config.learner_of(policy).gamma,
                pad=config.replay.pad,
            )
        )

    def sample(self, timeout: float | None = None) -> Batch | TorchBatch:
        """The next batch; raises as `TrajectoryReader.read`."""
        batch: Batch = self._reader.read(timeout)
        return batch

    def update_priorities(self, index: Any, priority: Any) -> None:
        """A queue has no priorities."""

    def clear(self) -> None:
        """All but a few transitions in the queue are of the newest weights."""

    def stats(self) -> dict[str, float]:
        """The reader's counters."""
        stats = self._reader.stats
        return {"lapped": stats.lapped, "skipped": stats.skipped, "waited_s": stats.waited}

    def save(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any], again: bool) -> None:
        pass
