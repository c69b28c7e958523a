"""The learner's loop: sample, update, publish; once there is data, it never waits for the actors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..errors import NotEnoughData
from ..interfaces import BatchSource, Publisher, Trainer
from ..transitions import Batch
from .config import ExplorationConfig, LearnerConfig

__all__ = ["Learner", "choose_device"]

WAIT_S = 0.1


class Learner:
    """Trains one agent.

    Args:
        source: the agent's sampler.
        trainer: updates the network that `publisher` publishes.
        publisher: publishes the weights and epsilon.
        config, exploration: the settings.
        device: of the network.
        report: called with (name, value).
        save: called with a checkpoint's contents.
        updates, epsilon: the state of a previous learner that this one continues, if any.

    Attributes:
        updates: made so far. version: of the last publication. epsilon: published with it, for the actors.
    """

    def __init__(
        self,
        source: BatchSource,
        trainer: Trainer,
        publisher: Publisher,
        config: LearnerConfig,
        exploration: ExplorationConfig,
        device: torch.device,
        report: Callable[[str, float], None],
        save: Callable[[dict[str, Any]], None],
        updates: int = 0,
        epsilon: float | None = None,
    ) -> None:
        self._source = source
        self._trainer = trainer
        self._publisher = publisher
        self._config = config
        self._exploration = exploration
        self._device = device
        self._report = report
        self._save = save
        self._sums: dict[str, torch.Tensor] = {}
        self._last_report = time.monotonic()
        self.updates = updates
        self.epsilon = exploration.epsilon_start if epsilon is None else epsilon
        self.publish()

    def step(self, wait_s: float = WAIT_S) -> bool:
        """Makes one update; False if there still is too little data after `wait_s` seconds."""
        try:
            batch = self._source.sample(timeout=wait_s) if wait_s else self._source.sample()
        except (NotEnoughData, TimeoutError):
            return False
        metrics = self._trainer.update(batch.torch(self._device))
        self.updates += 1
        for name, value in metrics.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._after_update(batch)
        return True

    def _after_update(self, batch: Batch) -> None:
        config, exploration = self._config, self._exploration
        if self.updates % exploration.epsilon_decay_freq == 0:
            self.epsilon = max(self.epsilon * (1 - exploration.epsilon_decay), exploration.epsilon_min)
        if self.updates % config.publish_interval == 0:
            self.publish()
        if self.updates % config.log_interval == 0:
            self._report_averages(batch)
        if self.updates % config.checkpoint_interval == 0:
            self.save()

    def _report_averages(self, batch: Batch) -> None:
        now = time.monotonic()
        for name, total in self._sums.items():
            self._report(name, float(total) / self._config.log_interval)
        self._sums.clear()
        self._report("epsilon", self.epsilon)
        lag = (self.version - batch.policy_version) % 2**32
        lag[lag >= 2**31] = 0  # rows newer than the checkpoint from which the learner resumed
        self._report("policy_lag", float(lag.mean()))
        for percent, value in zip((50, 99), np.percentile(lag, (50, 99)), strict=True):
            self._report(f"policy_lag_p{percent}", float(value))
        self._report("updates_per_s", self._config.log_interval / max(now - self._last_report, 1e-9))
        self._last_report = now

    def publish(self) -> None:
        """Publishes the current weights, with epsilon and the updates for a successor."""
        self.version = self._publisher.publish(epsilon=self.epsilon, updates=self.updates)

    def save(self) -> None:
        """Passes a checkpoint to `save`."""
        self._save(
            {
                "updates": self.updates,
                "version": self.version,
                "epsilon": self.epsilon,
                "trainer": self._trainer.state_dict(),
            }
        )


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
