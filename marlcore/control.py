"""The control block: what a run's processes tell each other, in words of one writer each.

| stop: the parent's line | a line for each worker: its counters |
"""

from __future__ import annotations

from ._native import LINE, Words
from .shared import Shared
from .shm import Segment

__all__ = ["Control", "Counters"]

STEPS, UPDATES, READY = range(3)


class Counters:
    """One worker's words; the worker writes, everybody reads."""

    def __init__(self, words: Words, first: int) -> None:
        self._words = words
        self._first = first

    def load(self, word: int) -> int:
        """STEPS, UPDATES or READY."""
        return self._words.load(self._first + word)

    def store(self, word: int, value: int) -> None:
        """For the worker alone."""
        self._words.store(self._first + word, value)


class Control(Shared):
    """A run's control block.

    Attributes:
        workers: each worker's counters, by name.
    """

    kind = "control block"

    def _understand(self, segment: Segment) -> None:
        self._words = Words(segment.body)
        names: list[str] = segment.description["workers"]
        self.workers = {name: Counters(self._words, LINE // 8 * (1 + i)) for i, name in enumerate(names)}

    @classmethod
    def create(cls, workers: list[str]) -> Control:
        """A block for workers of these names, all zero."""
        description = {"kind": cls.kind, "workers": workers}
        return cls(Segment.create("control", description, LINE * (1 + len(workers))))

    @property
    def stopping(self) -> bool:
        """Whether the parent told everybody to stop."""
        return self._words.load(0) != 0

    def stop(self) -> None:
        """For the parent alone: tells everybody to stop."""
        self._words.store(0, 1)

    @property
    def steps(self) -> int:
        """Steps that all workers took together."""
        return sum(counters.load(STEPS) for counters in self.workers.values())
