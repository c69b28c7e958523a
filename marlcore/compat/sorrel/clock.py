"""The clock of an experiment: epochs that the actor has ended, and that each learner has learned from."""

from __future__ import annotations

from ...memory import LINE, ROOM_OFFSET, Event, Segment, Shared, Words, sleep_until

_WORDS = LINE // 8
_ACTOR = 2  # the line of the actor's word; those of the learners follow


class Clock(Shared):
    """A word for the actor and one for each learner, and two events.

    | event: learners wait for epochs | room: the actor waits for learners | the actor's word | learner 0's word | ...

    Each word has one writer, whose successor goes on from it.
    """

    kind = "clock of epochs"

    def _understand(self, segment: Segment) -> None:
        self._learners = int(segment.description["learners"])
        self._words = Words(segment.body[: LINE * (_ACTOR + 1 + self._learners)])
        self._ended = Event(segment.body)
        self._learned = Event(segment.body, ROOM_OFFSET)

    @classmethod
    def create(cls, learners: int) -> Clock:
        description = {"kind": cls.kind, "learners": learners}
        return cls(Segment.create("clock", description, LINE * (_ACTOR + 1 + learners)))

    @property
    def ended(self) -> int:
        """Epochs that the actor has ended; their rows are in the memories."""
        return self._words.load(_ACTOR * _WORDS)

    def learned(self, learner: int) -> int:
        """Epochs that a learner has learned from; the weights that it published include them."""
        return self._words.load((_ACTOR + 1 + learner) * _WORDS)

    def end(self, epochs: int) -> None:
        """For the actor only."""
        self._words.store(_ACTOR * _WORDS, epochs)
        self._ended.notify()

    def learn(self, learner: int, epochs: int) -> None:
        """For that learner only."""
        self._words.store((_ACTOR + 1 + learner) * _WORDS, epochs)
        self._learned.notify()

    def wait_for_actor(self, epochs: int) -> None:
        """Waits until the actor has ended so many epochs. Raises ClosedError: the run stops."""
        sleep_until(lambda: int(self.ended < epochs), self._ended, None, self.check_open)

    def wait_for_learners(self, epochs: int) -> None:
        """Waits until every learner has learned from so many epochs. Raises ClosedError: the run stops."""
        sleep_until(lambda: int(self._slowest() < epochs), self._learned, None, self.check_open)

    def _slowest(self) -> int:
        return min(self.learned(learner) for learner in range(self._learners))
