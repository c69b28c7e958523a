"""A learner's batches, sampled from its policy's replay or read from its queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from ...interfaces import QueueSource, ReplaySource
from ...queue import TrajectoryQueue
from ...replay import Mixture, Prefetch, ReplayBuffer, Sampler
from ...transitions import Batch, TorchBatch
from ..config import Config
from ..loops import Feed
from .blueprint import PolicyPlan, run_seed
from .memories import OwnerOf, attach_memory
from .worker import Worker

RANDOM = ("generator", "batches")  # of a sampler's state, what does not concern the rows


class SavedFeed(Feed, Protocol):
    """A feed whose state is part of its learner's checkpoints."""

    def save(self) -> dict[str, Any]:
        """The state for a checkpoint; saves the transitions where the run keeps them."""

    def restore(self, state: Mapping[str, Any], again: bool) -> None:
        """Continues from a checkpoint.

        Args:
            again: updates were made since the checkpoint, whose random numbers must not be repeated.
        """


def feed_of(
    plan: PolicyPlan, index: int, config: Config, worker: Worker, updates: int, device: torch.device
) -> SavedFeed:
    """The feed of the index-th policy in its learner's worker.

    Args:
        updates: made so far.
        device: of the network.
    """
    memory = worker.hold(attach_memory(plan))
    if isinstance(plan.source, QueueSource):
        return QueueFeed(memory, plan.source, plan.name, config, worker)
    sampler = sampler_of(memory, plan, config, plan.source, run_seed(config, "sampler", index, updates))
    return ReplayFeed(memory, sampler, plan, config, worker, device)


def sampler_of(
    replay: ReplayBuffer, plan: PolicyPlan, config: Config, source: ReplaySource, seed: int
) -> Sampler | Mixture:
    """The sampler of a policy's replay, or of the mixture of its parts."""
    settings, shares = config.learner_of(plan.name), config.replay.mixture
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
    size = len(plan.agents) * config.lanes
    lanes = [range(part * size, (part + 1) * size) for part in range(len(shares))]
    total = sum(shares.values())
    fractions = [share / total for share in shares.values()]
    least = max(1, int(settings.warmup * min(fraction for fraction in fractions if fraction > 0)))
    return Mixture([replay] * len(shares), fractions, settings.batch_size, min_size=least, lanes=lanes, **options)


class ReplayFeed:
    """Batches that a sampler draws from a replay, perhaps ahead."""

    on_policy = False

    def __init__(
        self,
        replay: ReplayBuffer,
        sampler: Sampler | Mixture,
        plan: PolicyPlan,
        config: Config,
        worker: Worker,
        device: torch.device,
    ) -> None:
        self._replay = replay
        self._plan = plan
        self._sampler = sampler
        assert isinstance(plan.source, ReplaySource)
        self.prioritized = plan.source.prioritized is not None
        self._batches: Sampler | Mixture | Prefetch[Any] = sampler
        ahead = config.learner_of(plan.name).prefetch if config.mode == "async" else 0
        if ahead:
            self._batches = worker.hold(Prefetch(sampler, ahead, device))
        self._limited_ahead = bool(ahead) and config.updates_per_step is not None
        self.sample, self.clear = self._batches.sample, self._batches.clear
        self.update_priorities = self._batches.update_priorities

    @property
    def due(self) -> bool:
        """See `Feed.due`; also whether a batch is drawn ahead."""
        return self._sampler.due or (self._limited_ahead and self._batches.can_sample())

    def stats(self) -> dict[str, float]:
        """The samplers' counters."""
        each = [self._sampler.stats] if isinstance(self._sampler, Sampler) else self._sampler.stats
        counters = {"lapped": "lapped", "redrawn": "redrawn", "waited_s": "waited"}
        return {name: sum(getattr(stats, counter) for stats in each) for name, counter in counters.items()}

    def save(self) -> dict[str, Any]:
        """The sampler's state; first saves the replay, since one newer than its checkpoint does no harm."""
        if self._plan.saved_replay is not None:
            self._replay.save(self._plan.saved_replay, OwnerOf(self._plan.name))
        state = {name: torch.from_numpy(array) for name, array in self._batches.state_dict().items()}
        return {"sampler": state, "replay": self._plan.transitions.nonce}

    def restore(self, state: Mapping[str, Any], again: bool) -> None:
        """Continues the sampler of a checkpoint; priorities only if the replay has their rows."""
        saved = {name: tensor.numpy() for name, tensor in state["sampler"].items()}
        same_rows = self._plan.replay_was_saved or state.get("replay") == self._plan.transitions.nonce
        self._sampler.load_state_dict(resumed_state(saved, self._sampler.state_dict(), same_rows, again))


def resumed_state(saved: dict[str, Any], fresh: dict[str, Any], same_rows: bool, again: bool) -> dict[str, Any]:
    """The state from which a sampler continues.

    Args:
        saved: of a checkpoint. fresh: of a new sampler.
        same_rows: the replay holds the rows of the checkpoint; otherwise its priorities are of others.
        again: see `SavedFeed.restore`.
    """

    def without_part(name: str) -> str:
        return name.rpartition(".")[2]  # of a mixture

    if not same_rows:
        saved = fresh | {name: value for name, value in saved.items() if without_part(name) in RANDOM}
    if again:
        saved = saved | {name: value for name, value in fresh.items() if without_part(name) == "generator"}
    return saved


class QueueFeed:
    """Batches that a reader takes from a queue; nothing of it is saved, and a resumed run begins with an empty one."""

    on_policy, prioritized, due = True, False, True

    def __init__(
        self, queue: TrajectoryQueue, source: QueueSource, policy: str, config: Config, worker: Worker
    ) -> None:
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
        """Nothing is saved."""
        return {}

    def restore(self, state: Mapping[str, Any], again: bool) -> None:
        """Nothing was saved."""
