"""The learner's loop: sample, update, publish. It waits for data and, if updates per step are limited, for actors."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Protocol

import numpy as np
import torch

from ..checks import brief
from ..config import LearnerConfig, Schedule, numbers_at
from ..errors import NotEnoughData, TimedOut
from ..interfaces import RETURN, Trainer, Update
from ..observations import rows_at
from ..transitions import Batch, TorchBatch
from ..weights import Publisher
from .model import FiniteCheck, Normalizer, RewardNormalizer, RunningMoments

WAIT_S = 0.1  # longest wait for data between two heartbeats
SHARED_WAIT_S = 0.005  # shortest wait if several policies have no data
PATIENCE = 10  # that wait as a multiple of the time of an idle round, so that many idle policies load no core
FROZEN_AFTER = 100  # batches


class Batches(Protocol):
    """A policy's source of batches: a `Sampler`, `Mixture`, `Prefetch` or queue; the defaults are those of a queue."""

    sample: Callable[..., Batch | TorchBatch]  # takes a `timeout`
    prioritized: bool = False  # whether to use the priorities that updates return
    on_policy: bool = False  # whether to publish weights after each batch

    def update_priorities(self, index: Any, priority: Any) -> None:
        return

    def clear(self) -> None:
        return

    def follow(self, pace: Callable[[float], float]) -> None:
        """Limits batches to `pace`, which maps a number of steps from now (negative: steps ago) to updates per step."""
        return

    @property
    def due(self) -> bool:
        """Whether `updates_per_step`, if set, makes an update due. For a queue: whether a batch may be ready."""

    @property
    def save_due(self) -> bool:
        """Whether a checkpoint must be saved before the next batch."""
        return False

    def stats(self) -> dict[str, float]: ...


def learn_while(learning: Callable[[], bool], learners: Sequence[Learner], count_updates: Callable[[], None]) -> None:
    """Updates in turn each policy that has data, and counts each round; waits briefly if no policy has data."""
    waiting, wait_s = cycle(learners), WAIT_S if len(learners) == 1 else 0.0
    while learning():
        began = time.monotonic()
        updated = [learn(learner, wait_s) for learner in learners]
        if not any(updated) and not wait_s:
            learn(next(waiting), min(max(SHARED_WAIT_S, PATIENCE * (time.monotonic() - began)), WAIT_S))
        count_updates()


def catch_up(learners: Sequence[Learner], count_updates: Callable[[], None]) -> None:
    for learner in learners:
        while learner.batches.due and learn(learner):
            count_updates()


def learn(learner: Learner, wait_s: float = 0.0) -> bool:
    """Updates a policy once; returns False if it lacks data even after `wait_s` seconds."""
    batches = learner.batches
    try:
        sampled = batches.sample(timeout=wait_s or None)
    except (NotEnoughData, TimedOut):
        return False
    batch: Any = sampled
    if isinstance(sampled, Batch) and not learner.takes_arrays:
        batch = sampled.torch(learner.device)
    learner.normalize(batch)
    batch.numbers = learner.published
    update = learner.trainer.update(batch)
    learner.count(update)
    if batches.prioritized and update.priority is not None:
        try:
            batches.update_priorities(sampled.index, update.priority)
        except ValueError:
            learner.check_loss()  # a priority is not finite, perhaps because the loss is not
            raise
    learner.follow_up(update.updates, sampled)
    return True


@dataclass
class Learner:
    """Trains a policy; publishes, reports and saves at intervals. Raises Diverged as `FiniteCheck` does."""

    batches: Batches
    trainer: Trainer
    publisher: Publisher  # of the model that the trainer updates
    schedules: Mapping[str, Schedule]  # evaluated at each publication
    steps: Callable[[], int]  # the run's step count
    config: LearnerConfig
    device: torch.device
    norm: Normalizer | None  # of observations
    rewards: RewardNormalizer | None = field(default=None, kw_only=True)
    finite: FiniteCheck
    report: Callable[[str, float], None]
    save_state: Callable[[dict[str, Any]], None]
    pace: Schedule | None = None  # updates per step, if they change during the run
    clearing: Set[int] = frozenset()  # the stages at whose beginning batches drop earlier transitions
    updates: int = 0  # so far, earlier processes' included
    stage: int = 0
    also_publish: Callable[[Mapping[str, float]], Mapping[str, Any]] | None = None  # adds to the published numbers
    also_report: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self._sums: dict[str, torch.Tensor | float] = {}  # of metrics
        self._counts: Counter[str] = Counter()  # of updates that report a metric
        normalizes = self.norm is not None or self.rewards is not None
        self.takes_arrays = getattr(self.trainer, "takes_arrays", False) and not normalizes
        self._reported = self.updates
        self._last_report = self._last_save = time.monotonic()
        if self.pace is not None:
            self.batches.follow(self._pace_at)
        self.publish()

    def _pace_at(self, ahead: float) -> float:
        assert self.pace is not None
        return self.pace.at(self.updates if self.pace.of == "updates" else max(0, int(self.steps() + ahead)))

    def normalize(self, batch: TorchBatch) -> None:
        """Normalizes a batch's observations and rewards in place; first adds them to the statistics, unless frozen."""
        norm, rewards = self.norm, self.rewards
        if norm is not None:
            if self._takes(self.config.obs_norm, norm):
                norm.update(_valid(batch, batch.obs))
            batch.obs, batch.next_obs = norm(batch.obs), norm(batch.next_obs)
        if rewards is not None:
            if self._takes(self.config.reward_norm, rewards):
                rewards.update({RETURN: _valid(batch, batch.extras[RETURN])})
            batch.raw_reward, batch.reward = batch.reward, rewards(batch.reward)

    def _takes(self, mode: str, moments: RunningMoments) -> bool:
        """Whether batches still update the statistics: always in mode "running", only the first in mode "frozen"."""
        most = self.config.norm_frozen_after
        return mode == "running" or bool(moments.batches < FROZEN_AFTER if most is None else moments.count < most)

    def count(self, update: Update) -> None:
        """Adds an update's metrics to the averages. Raises TypeError if it is no Update, ValueError without a loss."""
        if not isinstance(update, Update):
            raise TypeError(f"update of the trainer: expected an mc.Update, got {brief(update)}")
        if "loss" not in update.metrics:
            raise ValueError(f"update of the trainer: expected the metric 'loss', got {sorted(update.metrics)}")
        for name, value in update.metrics.items():
            number = float(value) if getattr(value, "is_cpu", True) else value  # reading it from a GPU would block
            self._sums[name] = self._sums.get(name, 0.0) + number
            self._counts[name] += 1
        self.updates += update.updates

    def follow_up(self, made: int, batch: Batch | TorchBatch) -> None:
        """Publishes, reports and saves, each if the last `made` updates passed a multiple of its interval."""
        config = self.config

        def passed(interval: int) -> bool:
            return self.updates // interval > (self.updates - made) // interval

        if self.batches.on_policy or passed(config.publish_interval):
            self.publish()
        if passed(config.log_interval):
            self._report_averages(batch)
        elif self.updates == made:  # the very first, so that a short run shows its loss, too
            self._report_metrics()
        late = time.monotonic() - self._last_save > config.checkpoint_seconds
        if passed(config.checkpoint_interval) or late or self.batches.save_due:
            self.save()

    def _report_metrics(self) -> None:
        self.check_loss()
        for name, total in self._sums.items():
            self.report(name, float(total) / self._counts[name])

    def _report_averages(self, batch: Batch | TorchBatch) -> None:
        now, count = time.monotonic(), self.updates - self._reported
        self._report_metrics()
        self._sums.clear()
        self._counts.clear()
        self._reported = self.updates
        acted = batch.policy_version if isinstance(batch, Batch) else batch.policy_version.cpu().numpy()
        lag = (self.version - acted) % 2**32
        lag[lag >= 2**31] = 0  # these rows are newer than the checkpoint from which the learner resumed
        p50, p99 = np.percentile(lag, (50, 99))
        lags = {"policy_lag": lag.mean(), "policy_lag_p50": p50, "policy_lag_p99": p99}
        is_compiled = not getattr(self.trainer, "reason", "torch")  # the reason why updates are not compiled
        rates = {"updates_per_s": count / max(now - self._last_report, 1e-9), "compiled": float(is_compiled)}
        if self.pace is not None:
            rates["updates_per_step"] = self._pace_at(0)
        for name, value in {**self.numbers, **lags, **rates, **self.batches.stats()}.items():
            self.report(name, float(value))
        if self.also_report is not None:
            self.also_report()
        self._last_report = now

    def publish(self) -> None:
        """Publishes weights, scheduled numbers and counts; clears the batches if a stage of `clearing` has begun."""
        self.check_loss()
        self.finite.check_published(self.updates)
        steps = self.steps()
        self.numbers = numbers_at(self.schedules, steps, self.updates)
        numbers: dict[str, Any] = {**self.numbers, "updates": self.updates, "step": steps}
        self.published = {"stage": 0.0, **numbers}
        if self.also_publish is not None:
            numbers |= self.also_publish(numbers)
        self.version = self.publisher.publish(**numbers)
        stage = int(self.published["stage"])
        first, last = sorted((self.stage, stage))
        if any(first < begun <= last for begun in self.clearing):  # several stages may have begun since a checkpoint
            self.batches.clear()
        self.stage = stage

    def save(self) -> None:
        self._last_save = time.monotonic()
        trainer = self.trainer.state_dict()
        self.check_loss()
        self.finite.check_saved(trainer, self.updates)
        counts = {"updates": self.updates, "version": self.version, "step": self.steps(), "stage": self.stage}
        self.save_state({**counts, "trainer": trainer})
        self.finite.saved = self.updates

    def check_loss(self) -> None:
        if "loss" in self._sums:
            self.finite.check_loss(float(self._sums["loss"]) / self._counts["loss"], self.updates)


def _valid(batch: TorchBatch, values: Any) -> Any:
    """Returns a batch's values without the padding after an episode's end in a window."""
    return values if batch.mask is None else rows_at(values, batch.valid[..., -1])
