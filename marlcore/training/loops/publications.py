"""Publications of a policy's weights, with the numbers that travel with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..config import Schedule


class Publisher(Protocol):
    """A destination of a learner's weights; see `ParameterStore.publisher`."""

    def publish(self, **extras: Any) -> int: ...


class Publications:
    """Publishes a policy's weights.

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
