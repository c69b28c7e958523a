"""The learner's loop: sample, update, publish; it waits for data, and where a limiter holds the ratio."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any, Protocol

import numpy as np
import torch

from ...checks import came
from ...errors import NotEnoughData, TimedOut
from ...interfaces import BatchSource, Trainer, Update
from ...observations import rows_at
from ...transitions import Batch, TorchBatch
from ..config import LearnerConfig
from .finite import FiniteCheck
from .normalizer import Normalizer
from .publications import Publications

WAIT_S = 0.1  # for data, between two heartbeats
SHARED_WAIT_S = 0.005  # for that of one policy among several
FROZEN_AFTER = 100  # updates


class Feed(BatchSource, Protocol):
    """The batches of a policy, from its replay or its queue.

    Attributes:
        prioritized: it takes the priorities that updates return.
        on_policy: weights are published after each batch.
    """

    prioritized: bool
    on_policy: bool

    @property
    def due(self) -> bool:
        """Whether an update is due by `updates_per_step`, or may be possible at once; never when the run is free."""

    def stats(self) -> dict[str, float]:
        """Counters, by name."""


class LearnerRun(Protocol):
    """The worker of a learner's loop."""

    def learning(self) -> bool:
        """Whether the run was not told to stop."""

    def count_updates(self) -> None:
        """Counts the updates of a round, and shows that the worker does not hang."""


def learn_until_stopped(learners: Sequence[Learner], run: LearnerRun) -> None:
    """Updates the policies that have data in turn; waits a while if none has."""
    waiting, wait_s = cycle(learners), WAIT_S if len(learners) == 1 else 0.0
    while run.learning():
        updated = [learn(learner, wait_s) for learner in learners]
        if not any(updated) and not wait_s:
            learn(next(waiting), SHARED_WAIT_S)
        run.count_updates()


def catch_up(learners: Sequence[Learner], run: LearnerRun) -> None:
    """Makes the due updates."""
    for learner in learners:
        while learner.feed.due and learn(learner):
            run.count_updates()


def learn(learner: Learner, wait_s: float = 0.0) -> bool:
    """Makes one update of a policy; False if there still is too little data after `wait_s` seconds."""
    feed = learner.feed
    try:
        batch = feed.sample(timeout=wait_s or None)
    except (NotEnoughData, TimedOut):
        return False
    tensors = batch.torch(learner.device) if isinstance(batch, Batch) else batch
    learner.normalize(tensors)
    tensors.numbers = learner.publications.numbers
    update = learner.trainer.update(tensors)
    learner.count(update)
    if feed.prioritized and update.priority is not None:
        try:
            feed.update_priorities(batch.index, update.priority)
        except ValueError:
            learner.check_loss()  # which may be why a priority is not finite
            raise
    for due in learner.due_after(update.updates, batch):
        due()
    return True


class Learner:
    """One policy's learning: what its updates need, their count, and what follows them at intervals.

    Args:
        feed: its batches.
        trainer: updates the model that is published.
        publications: of its weights.
        config: the settings.
        device: of the network.
        norm: of observations; None leaves them.
        report: called with (name, value).
        save: called with a checkpoint's contents.
        finite: checks the loss, the weights and the checkpoints.
        further_reports: called after the learner's own.
        clears: the feed forgets the transitions of earlier stages.
        updates, stage: what its predecessor had reached.

    Raises: Diverged, also from each method: a number that would be published or saved is not finite.

    Attributes:
        updates: made so far, by all its processes.
    """

    def __init__(
        self,
        feed: Feed,
        trainer: Trainer,
        publications: Publications,
        config: LearnerConfig,
        device: torch.device,
        norm: Normalizer | None,
        report: Callable[[str, float], None],
        save: Callable[[dict[str, Any]], None],
        finite: FiniteCheck,
        further_reports: Callable[[], None] | None = None,
        clears: bool = False,
        updates: int = 0,
        stage: int = 0,
    ) -> None:
        self.feed = feed
        self.trainer = trainer
        self.publications = publications
        self.device = device
        self._config = config
        self._norm = norm
        self._report = report
        self._save = save
        self._finite = finite
        self._further_reports = further_reports
        self._sums: dict[str, torch.Tensor] = {}
        self._summed = 0
        self._last_report = self._last_save = time.monotonic()
        self._clears = clears
        self._stage = stage
        self.updates = self._reported = updates
        self.publish()

    def normalize(self, batch: TorchBatch) -> None:
        """Takes the observations into the statistics, as long as the settings say, and normalizes them."""
        norm = self._norm
        if norm is None:
            return
        if self._config.obs_norm == "running" or self.updates < FROZEN_AFTER:
            norm.update(batch.obs if batch.mask is None else rows_at(batch.obs, batch.valid[..., -1]))
        batch.obs, batch.next_obs = norm(batch.obs), norm(batch.next_obs)

    def count(self, update: Update) -> None:
        """Adds an update's metrics to the averages. Raises TypeError, ValueError: it is none, or has no loss."""
        if not self._sums:
            _check_update(update)
        for name, value in update.metrics.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._summed += 1
        self.updates += update.updates

    def due_after(self, made: int, batch: Batch | TorchBatch) -> Iterator[Callable[[], None]]:
        """What follows the last `made` updates: publishing, reporting and saving, each at its interval."""
        config = self._config

        def passed(interval: int) -> bool:
            return self.updates // interval > (self.updates - made) // interval

        if self.feed.on_policy or passed(config.publish_interval):
            yield self.publish
        if passed(config.log_interval):
            yield lambda: self._report_averages(batch)
        if passed(config.checkpoint_interval) or time.monotonic() - self._last_save > config.checkpoint_seconds:
            yield self.save

    def _report_averages(self, batch: Batch | TorchBatch) -> None:
        self.check_loss()
        now, count = time.monotonic(), self.updates - self._reported
        for name, total in self._sums.items():
            self._report(name, float(total) / self._summed)
        self._sums.clear()
        self._summed = 0
        self._reported = self.updates
        acted = batch.policy_version if isinstance(batch, Batch) else batch.policy_version.cpu().numpy()
        lag = (self.publications.version - acted) % 2**32
        lag[lag >= 2**31] = 0  # rows newer than the checkpoint from which the learner resumed
        p50, p99 = np.percentile(lag, (50, 99))
        lags = {"policy_lag": lag.mean(), "policy_lag_p50": p50, "policy_lag_p99": p99}
        rate = count / max(now - self._last_report, 1e-9)
        for name, value in {**self.publications.numbers, **lags, "updates_per_s": rate, **self.feed.stats()}.items():
            self._report(name, float(value))
        if self._further_reports is not None:
            self._further_reports()
        self._last_report = now

    def publish(self) -> None:
        """Publishes the current weights; in a new stage, clears the feed."""
        self.check_loss()
        self._finite.check_published(self.updates)
        self.publications.publish(self.updates)
        stage = int(self.publications.numbers.get("stage", 0))
        if self._clears and stage != self._stage:
            self.feed.clear()
        self._stage = stage

    def save(self) -> None:
        """Passes a checkpoint to `save`."""
        self._last_save = time.monotonic()
        trainer = self.trainer.state_dict()
        self.check_loss()
        self._finite.check_saved(trainer, self.updates)
        self._save(
            {
                "updates": self.updates,
                "version": self.publications.version,
                "step": self.publications.steps(),
                "stage": self._stage,
                "trainer": trainer,
            }
        )
        self._finite.note_saved(self.updates)

    def check_loss(self) -> None:
        """Checks the mean loss since the last report."""
        if "loss" in self._sums:
            self._finite.check_loss(float(self._sums["loss"]) / self._summed, self.updates)


def _check_update(update: Any) -> None:
    """Raises TypeError, ValueError: the trainer returned something else than an Update with a loss."""
    if not isinstance(update, Update):
        raise TypeError(f"update of the trainer: expected an mc.Update, got {came(update)}")
    if "loss" not in update.metrics:
        raise ValueError(f"update of the trainer: expected the metric 'loss', got {sorted(update.metrics)}")
