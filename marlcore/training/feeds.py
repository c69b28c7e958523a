"""A learner's batches, drawn from its policy's replay or read from its queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from ..interfaces import BatchSource, QueueSource, ReplaySource
from ..queue import TrajectoryQueue, TrajectoryReader
from ..replay import Prefetch, ReplayBuffer, Sampler
from ..transitions import Batch
from .blueprint import PolicyPlan, run_seed
from .config import Config
from .drawing import Draws, make_draws, resumed_draws
from .memories import OwnerOf, attach_memory
from .worker import Worker

__all__ = ["Feed", "QueueFeed", "ReplayFeed", "feed_of"]


class Feed(Protocol):
    """Where a learner's batches come from.

    Attributes:
        prioritized: it takes the priorities that updates return.
        on_policy: weights are published after each batch.
    """

    prioritized: bool
    on_policy: bool

    @property
    def batches(self) -> BatchSource:
        """What gives them."""

    @property
    def due(self) -> bool:
        """Whether an update is due by `updates_per_step`, or may be possible at once; never when the run is free."""

    def stats(self) -> dict[str, float]:
        """Counters, by name."""

    def save(self) -> dict[str, Any]:
        """The state for a checkpoint; saves the transitions where the run keeps them."""

    def restore(self, state: Mapping[str, Any], again: bool) -> None:
        """Continues from a checkpoint.

        Args:
            again: updates were made since the checkpoint, whose random numbers must not be repeated.
        """


def feed_of(plan: PolicyPlan, index: int, config: Config, worker: Worker, updates: int, device: torch.device) -> Feed:
    """The feed of the index-th policy in its learner's worker.

    Args:
        updates: made so far.
        device: of the network.
    """
    memory = worker.hold(attach_memory(plan))
    if isinstance(plan.source, QueueSource):
        return QueueFeed(memory, plan.source, plan.name, config, worker)
    return ReplayFeed(memory, plan, plan.source, index, config, worker, updates, device)


class ReplayFeed:
    """Batches that a sampler draws from a replay, perhaps ahead."""

    on_policy = False

    def __init__(
        self,
        replay: ReplayBuffer,
        plan: PolicyPlan,
        source: ReplaySource,
        index: int,
        config: Config,
        worker: Worker,
        updates: int,
        device: torch.device,
    ) -> None:
        settings = config.learner_of(plan.name)
        self._replay = replay
        self._plan = plan
        self._draws = make_draws(replay, plan, config, source, run_seed(config, "sampler", index, updates))
        self.prioritized = source.prioritized is not None
        self._batches: Draws | Prefetch[Any] = self._draws
        if settings.prefetch and config.mode == "async":
            self._batches = worker.hold(Prefetch(self._draws, settings.prefetch, device))
        self._limited = config.updates_per_step is not None and self._batches is not self._draws

    @property
    def batches(self) -> BatchSource:
        """The sampler, or the thread that draws ahead."""
        return self._batches

    @property
    def due(self) -> bool:
        """Whether an update is due by `updates_per_step`, or drawn ahead; never when the run is free."""
        return self._draws.due or (self._limited and self._batches.can_sample())

    def stats(self) -> dict[str, float]:
        """The samplers' counters."""
        each = [self._draws.stats] if isinstance(self._draws, Sampler) else self._draws.stats
        counters = {"lapped": "lapped", "redrawn": "redrawn", "waited_s": "waited"}
        return {name: sum(getattr(one, counter) for one in each) for name, counter in counters.items()}

    def save(self) -> dict[str, Any]:
        """The state of the draws; first saves the replay, since one newer than its checkpoint does no harm."""
        if self._plan.saved_replay is not None:
            self._replay.save(self._plan.saved_replay, OwnerOf(self._plan.name))
        drawing = {name: torch.from_numpy(array) for name, array in self._batches.state_dict().items()}
        return {"sampler": drawing, "replay": self._plan.transitions.nonce}

    def restore(self, state: Mapping[str, Any], again: bool) -> None:
        """Continues the draws of a checkpoint; priorities only if the replay has their rows."""
        drawn = {name: one.numpy() for name, one in state["sampler"].items()}
        same_rows = self._plan.replay_was_saved or state.get("replay") == self._plan.transitions.nonce
        self._draws.load_state_dict(resumed_draws(drawn, self._draws.state_dict(), same_rows, again))


class QueueFeed:
    """Batches that a reader takes from a queue; nothing of it is saved, and a resumed run begins with an empty one."""

    on_policy, prioritized = True, False

    def __init__(
        self, queue: TrajectoryQueue, source: QueueSource, policy: str, config: Config, worker: Worker
    ) -> None:
        self._reader: TrajectoryReader = worker.hold(
            queue.reader(
                source.batch_size,
                length=source.length,
                stack=config.replay.frames,
                gamma=config.learner_of(policy).gamma,
                pad=config.replay.pad,
            )
        )

    @property
    def batches(self) -> BatchSource:
        """This object itself."""
        return self

    @property
    def due(self) -> bool:
        """A try tells."""
        return True

    def sample(self, timeout: float | None = None) -> Batch:
        """The next batch; raises as `TrajectoryReader.read`."""
        return self._reader.read(timeout)

    def update_priorities(self, index: Any, priority: Any) -> None:
        """There are none."""

    def clear(self) -> None:
        """Transitions in the queue are of the newest weights but for a few."""

    def stats(self) -> dict[str, float]:
        """The reader's counters."""
        stats = self._reader.stats
        return {"lapped": stats.lapped, "skipped": stats.skipped, "waited_s": stats.waited}

    def save(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def restore(self, state: Mapping[str, Any], again: bool) -> None:
        """Nothing was saved."""
