"""The control block: shared words, each of which one process writes and all processes read.

| stop: the parent's line | for each worker its counters | for each worker the parent's notes on it | tallies |

A restarted worker continues from its counters. A tally is a counter of something other than a process, such as a
policy; one worker writes it. When a run is resumed, the parent first writes the run's progress into the counters.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import ClosedError
from ..memory import LINE, PREFIX, Segment, Shared, Words, described_workers, interrupt_waits_with

# Words of a worker's line. READY: the number of its last process that reached its first step. EPISODES: the number of
# episodes ended by the actor's last process that ended any; 1 after an evaluator's first episode. DONE: nonzero once
# the work is complete. BEGUN: the steps at which the evaluator's last evaluation began. SKIPS: skipped evaluations.
# UPDATES of the evaluator: the steps up to which no evaluation is due any more
STEPS, UPDATES, READY, BEATS, EPISODES, DONE, BEGUN, SKIPS = range(8)
# Words of the parent's line for a worker. SHARE: the number of steps after which an actor is done
PID, RESTARTS, SHARE = range(3)
_STOP, _FINISH = 1, 2  # values of the parent's word for all workers


class Control(Shared):
    """A run's control block; `about` is the creator's description of the run."""

    kind = "control block"
    files = f"{PREFIX}control-*"  # a pattern of the segments' names

    def _understand(self, segment: Segment) -> None:
        names = described_workers(segment)
        tallies = segment.description["tallies"]
        nbytes = LINE * (1 + 2 * len(names) + len(tallies))
        if nbytes > len(segment.body):
            raise ValueError(f"body: expected {nbytes} bytes of words, got {len(segment.body)}")
        self._load_stop = Words(segment.body).loader(0)
        self._sum_steps = Words(segment.body).summer(LINE // 8 + STEPS, len(names), LINE // 8)
        lines = (Words(segment.body[begin : begin + LINE]) for begin in range(0, nbytes, LINE))
        self._words = next(lines)
        self.about: dict[str, Any] = {**segment.description["about"]}
        self.workers = {name: next(lines) for name in names}  # each worker's counters
        self.notes = {name: next(lines) for name in names}  # the parent's notes on each worker
        self.tallies = {name: next(lines) for name in tallies}

    @classmethod
    def create(cls, workers: list[str], tallies: Sequence[str] = (), **about: Any) -> "Control":
        """Creates a zeroed block for workers and tallies of these names; `about` must be representable in JSON."""
        description = {"kind": cls.kind, "workers": workers, "tallies": list(tallies), "about": about}
        return cls(Segment.create("control", description, LINE * (1 + 2 * len(workers) + len(tallies))))

    @property
    def stopping(self) -> bool:
        """Whether the parent told all workers to stop."""
        return self._load_stop() != 0

    @property
    def finishing(self) -> bool:
        """Whether workers must stop because the run is complete; learners first make the due updates."""
        return self._words.load(0) == _FINISH

    def stop(self) -> None:
        """For the parent: tells all workers to stop at once."""
        self._words.store(0, _STOP)

    def finish(self) -> None:
        """For the parent: tells all workers to stop after the due updates."""
        self._words.store(0, _FINISH)

    @contextmanager
    def checked_waits(self, check: Callable[[], None]) -> Iterator[None]:
        """Makes each wait in a `with` block call `check`; suppresses a ClosedError of the block if workers stop."""
        interrupt_waits_with(check)
        try:
            yield
        except ClosedError:
            if not self.stopping:
                raise
        finally:
            interrupt_waits_with(None)

    @property
    def steps(self) -> int:
        return self._sum_steps()
