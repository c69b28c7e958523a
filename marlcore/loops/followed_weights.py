"""The weights of a policy that acts while it learns, updated from its learner's publications."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import PUBLISHED
from ..errors import TimedOut
from ..weights import Subscriber

FIRST_PULL_S = 0.1


@dataclass
class FollowedWeights:
    """Pulls newer weights into the subscriber's model, with the exploration parameters published beside them."""

    subscriber: Subscriber
    exponents: NDArray[np.float64] | None = None  # [copies], the exponent of epsilon in each copy; None: all 1
    sync_interval: int = 1  # rounds between pulls
    max_lag: int | None = None  # versions by which weights may be behind; staler ones are pulled before the next turn

    def __post_init__(self) -> None:
        self.explore: dict[str, Any] = {}  # changed in place: policies that act share it
        self.version = 0  # of the weights; 0 before the first pull
        self._due = 0  # the round from which the next pull is due
        if self.exponents is not None and (self.exponents == 1.0).all():
            self.exponents = None

    def learned(self) -> bool:
        """Whether the learner had made an update before it published the weights pulled last."""
        return bool(self.subscriber.extras["updates"])

    def pull_if_due(self, rounds: int) -> None:
        """Pulls if `rounds`, the number of rounds so far, has passed a multiple of `sync_interval` since the last call.

        Also pulls if the weights are behind by more than `max_lag` versions.
        """
        if rounds >= self._due:
            self._due = (rounds // self.sync_interval + 1) * self.sync_interval
            self.pull()
        elif self.max_lag is not None and self.subscriber.newest - self.subscriber.version > self.max_lag:
            self.pull()

    def pull(self) -> bool:
        """Pulls newer weights, if any, and returns whether it did; waits, at most 0.1 s, only before the first pull."""
        try:
            pulled = self.subscriber.pull(timeout=0.0 if self.version else FIRST_PULL_S)
        except TimedOut:
            return False  # their learner is overwriting them, or died doing so: the next pull gets them
        if pulled:
            self.explore |= exploration_of(self.subscriber.extras)
            if "epsilon" in self.explore and self.exponents is not None:
                self.explore["epsilon"] = self.explore["epsilon"] ** self.exponents
            self.version = self.subscriber.version
        return pulled


def exploration_of(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the exploration parameters, such as epsilon, from the extras published with the weights."""
    return {name: value for name, value in extras.items() if name not in PUBLISHED}
