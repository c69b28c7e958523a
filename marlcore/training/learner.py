"""The learner's loop: sample, update, publish; it waits for data, and where a limiter holds the ratio."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..checks import came
from ..errors import NotEnoughData, TimedOut
from ..interfaces import BatchSource, Publisher, Trainer, Update
from ..observations import rows_at
from ..transitions import Batch, TorchBatch
from .config import LearnerConfig
from .finite import FiniteCheck
from .normalizer import Normalizer
from .schedules import Schedule

__all__ = ["Beginning", "Learner", "Publications", "choose_device", "crosses"]

FROZEN_AFTER = 100  # updates


class Publications:
    """Publishes a policy's weights, with what travels with them.

    Args:
        publisher: of the weights.
        schedules: by name, evaluated at each publication.
        steps: the run's step count.
        further: called before a publication with all its numbers; returns what else is published. None: nothing.

    Attributes:
        version: of the last publication. numbers: of the schedules, published with it.
    """

    def __init__(
        self,
        publisher: Publisher,
        schedules: Mapping[str, Schedule],
        steps: Callable[[], int],
        further: Callable[[Mapping[str, float]], Mapping[str, Any]] | None = None,
    ) -> None:
        self._publisher = publisher
        self._schedules = schedules
        self.steps = steps
        self._further = further

    def publish(self, updates: int) -> None:
        """Publishes the current weights, with the schedules' numbers, the updates for a successor, and the step."""
        counts = {"steps": self.steps(), "updates": updates}
        self.numbers = {name: _number(name, one, counts[one.of]) for name, one in self._schedules.items()}
        everything: dict[str, Any] = {**self.numbers, "updates": updates, "step": counts["steps"]}
        if self._further is not None:
            everything |= self._further(everything)
        self.version = self._publisher.publish(**everything)


def _number(name: str, schedule: Schedule, count: int) -> float:
    try:
        return schedule.at(count)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


@dataclass(frozen=True)
class Beginning:
    """Where a learner begins: what its predecessor had reached."""

    updates: int = 0
    stage: int = 0


FIRST = Beginning()


class Learner:
    """Trains one policy.

    Args:
        source: the policy's sampler.
        trainer: updates the model that is published.
        publications: of its weights.
        config: the settings.
        device: of the network.
        prioritized: the source takes the priorities that updates return.
        norm: of observations; None leaves them.
        report: called with (name, value).
        save: called with a checkpoint's contents.
        finite: checks the loss, the weights and the checkpoints, if any.
        clears: the source forgets the transitions of earlier stages.
        beginning: where to begin.

    Raises: Diverged, also from each method: a number that would be published or saved is not finite.

    Attributes:
        updates: made so far.
    """

    def __init__(
        self,
        source: BatchSource,
        trainer: Trainer,
        publications: Publications,
        config: LearnerConfig,
        device: torch.device,
        prioritized: bool,
        norm: Normalizer | None,
        report: Callable[[str, float], None],
        save: Callable[[dict[str, Any]], None],
        finite: FiniteCheck | None = None,
        clears: bool = False,
        beginning: Beginning = FIRST,
    ) -> None:
        self._source = source
        self._trainer = trainer
        self._publications = publications
        self._config = config
        self._device = device
        self._prioritized = prioritized
        self._norm = norm
        self._report = report
        self._save = save
        self._finite = finite
        self._sums: dict[str, torch.Tensor] = {}
        self._summed = 0
        self._last_report = self._last_save = time.monotonic()
        self._clears = clears
        self._stage = beginning.stage
        self.updates = self._reported = beginning.updates
        self.publish()

    def step(self, wait_s: float) -> bool:
        """Makes one update; False if there still is too little data after `wait_s` seconds."""
        try:
            batch = self._source.sample(timeout=wait_s) if wait_s else self._source.sample()
        except (NotEnoughData, TimedOut):
            return False
        tensors = batch.torch(self._device) if isinstance(batch, Batch) else batch
        if self._norm is not None:
            self._normalize(tensors, self._norm)
        tensors.numbers = self._publications.numbers
        update = self._trainer.update(tensors)
        if not self._sums:
            _check_update(update)
        for name, value in update.metrics.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._summed += 1
        before, self.updates = self.updates, self.updates + update.updates
        if self._prioritized and update.priority is not None:
            try:
                self._source.update_priorities(batch.index, update.priority)
            except ValueError:
                self._check_loss()  # which may be why a priority is not finite
                raise
        self._after_update(batch, before)
        return True

    def _normalize(self, tensors: TorchBatch, norm: Normalizer) -> None:
        if self._config.obs_norm == "running" or self.updates < FROZEN_AFTER:
            norm.update(tensors.obs if tensors.mask is None else _held(tensors.obs, tensors.valid[..., -1]))
        tensors.obs, tensors.next_obs = norm(tensors.obs), norm(tensors.next_obs)

    def _after_update(self, batch: Batch | TorchBatch, before: int) -> None:
        config = self._config
        if crosses(config.publish_interval, before, self.updates):
            self.publish()
        if crosses(config.log_interval, before, self.updates):
            self._report_averages(batch)
        too_long = time.monotonic() - self._last_save > config.checkpoint_seconds
        if crosses(config.checkpoint_interval, before, self.updates) or too_long:
            self.save()

    def _report_averages(self, batch: Batch | TorchBatch) -> None:
        self._check_loss()
        now, count = time.monotonic(), self.updates - self._reported
        for name, total in self._sums.items():
            self._report(name, float(total) / self._summed)
        self._sums.clear()
        self._summed = 0
        self._reported = self.updates
        for name, value in self._publications.numbers.items():
            self._report(name, value)
        acted = batch.policy_version if isinstance(batch, Batch) else batch.policy_version.cpu().numpy()
        lag = (self._publications.version - acted) % 2**32
        lag[lag >= 2**31] = 0  # rows newer than the checkpoint from which the learner resumed
        self._report("policy_lag", float(lag.mean()))
        for percent, value in zip((50, 99), np.percentile(lag, (50, 99)), strict=True):
            self._report(f"policy_lag_p{percent}", float(value))
        self._report("updates_per_s", count / max(now - self._last_report, 1e-9))
        self._last_report = now

    def publish(self) -> None:
        """Publishes the current weights; in a new stage, clears the source."""
        self._check_loss()
        if self._finite is not None:
            self._finite.check_published(self.updates)
        self._publications.publish(self.updates)
        stage = int(self._publications.numbers.get("stage", 0))
        if self._clears and stage != self._stage:
            self._source.clear()
        self._stage = stage

    def save(self) -> None:
        """Passes a checkpoint to `save`."""
        self._last_save = time.monotonic()
        trainer = self._trainer.state_dict()
        self._check_loss()
        if self._finite is not None:
            self._finite.check_saved(trainer, self.updates)
        self._save(
            {
                "updates": self.updates,
                "version": self._publications.version,
                "step": self._publications.steps(),
                "stage": self._stage,
                "trainer": trainer,
            }
        )
        if self._finite is not None:
            self._finite.note_saved(self.updates)

    def _check_loss(self) -> None:
        """Checks the losses since the last report."""
        if self._finite is not None and "loss" in self._sums:
            self._finite.check_loss(float(self._sums["loss"]) / self._summed, self.updates)


def _held(obs: Any, held: torch.Tensor) -> Any:
    """The observations [n, ...] of the steps, `held` bool [B, T], that windows have: zeros follow an episode's end."""
    return rows_at(obs, held)


def crosses(interval: int, before: int, after: int) -> bool:
    """Whether a count passed a multiple of `interval`."""
    return before // interval < after // interval


def _check_update(update: Any) -> None:
    """Raises TypeError, ValueError: the trainer returned something else than an Update with a loss."""
    if not isinstance(update, Update):
        raise TypeError(f"update of the trainer: expected an mc.Update, got {came(update)}")
    if "loss" not in update.metrics:
        raise ValueError(f"update of the trainer: expected the metric 'loss', got {sorted(update.metrics)}")


def choose_device(name: str, index: int = 0, spread: bool = False) -> torch.device:
    """The device of that name; for "auto" CUDA, then MPS, then the CPU.

    Args:
        name: "auto", or a name that torch.device accepts.
        index: the agent's index.
        spread: assign the agents to all GPUs in turn, instead of to the first one.

    Raises: ValueError: torch does not know the device, or this machine does not have it.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", index % torch.cuda.device_count() if spread else 0)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type == "cuda":
            if (device.index or 0) >= torch.cuda.device_count():
                raise RuntimeError(f"there are {torch.cuda.device_count()} CUDA devices")
        else:
            torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device: expected one of this machine, got {name!r} ({str(error).splitlines()[0]})") from None
    return device
