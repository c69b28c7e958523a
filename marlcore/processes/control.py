"""The control block: what a run's processes tell each other, in words of one writer each.

| stop: the parent's line | a line for each worker: its counters | a line for each worker: what the parent notes of it |

A worker's line is its process's; the process that is started in its place goes on from what it says. Before the first
process the parent writes there how far a run is that is resumed.
"""

from __future__ import annotations

from typing import Any

from ..memory import LINE, Segment, Shared, Words, described_workers

__all__ = ["BEATS", "EPISODES", "PID", "READY", "RESTARTS", "STEPS", "UPDATES", "Control", "Counters"]

# Words of a worker's line. READY: the number of its last process that came as far as its first round. EPISODES: not 0
# once one of its processes came to the end of an episode
STEPS, UPDATES, READY, BEATS, EPISODES = range(5)
# Words of the parent's line of a worker
PID, RESTARTS = range(2)

# The parent's word for all
_STOP, _FINISH = 1, 2

_WORDS = LINE // 8


def _nbytes(workers: list[str]) -> int:
    return LINE * (1 + 2 * len(workers))


class Counters:
    """A line of words; one process writes, everybody reads."""

    def __init__(self, words: Words, line: int) -> None:
        self._words = words
        self._first = _WORDS * line

    def load(self, word: int) -> int:
        """A word of the line, see above."""
        return self._words.load(self._first + word)

    def store(self, word: int, value: int) -> None:
        """For the line's writer alone."""
        self._words.store(self._first + word, value)


class Control(Shared):
    """A run's control block.

    Attributes:
        workers: each worker's counters, by name; the worker's to write.
        notes: by the same names, each worker's process and restarts; the parent's to write.
        about: what its creator says of the run.
    """

    kind = "control block"

    def _understand(self, segment: Segment) -> None:
        names = described_workers(segment)
        nbytes = _nbytes(names)
        if nbytes > len(segment.body):
            raise ValueError(f"body: expected {nbytes} bytes of words, got {len(segment.body)}")
        self._words = Words(segment.body[:nbytes])
        self.about: dict[str, Any] = {**segment.description["about"]}
        self.workers = {name: Counters(self._words, 1 + i) for i, name in enumerate(names)}
        self.notes = {name: Counters(self._words, 1 + len(names) + i) for i, name in enumerate(names)}

    @classmethod
    def create(cls, workers: list[str], **about: Any) -> Control:
        """A block for workers of these names, all zero; `about` is anything that JSON holds."""
        description = {"kind": cls.kind, "workers": workers, "about": about}
        return cls(Segment.create("control", description, _nbytes(workers)))

    @property
    def stopping(self) -> bool:
        """Whether the parent told everybody to stop."""
        return self._words.load(0) != 0

    @property
    def finishing(self) -> bool:
        """Whether everybody is to stop because all is done, so that learners make the updates that are due."""
        return self._words.load(0) == _FINISH

    def stop(self) -> None:
        """For the parent alone: tells everybody to stop at once."""
        self._words.store(0, _STOP)

    def finish(self) -> None:
        """For the parent alone: tells everybody to stop when what is due is done."""
        self._words.store(0, _FINISH)

    @property
    def steps(self) -> int:
        """Steps that all workers took together."""
        return sum(counters.load(STEPS) for counters in self.workers.values())
