"""The oracle of a queue's reader in plain Python: each transition of a lane once and in order, or counted."""

from collections import deque
from typing import Any

import numpy as np
from model import Episode, Model


class InOrder:
    """What the reader of a model's queue must deliver next of each lane, and what it leaves out and counts.

    Attributes:
        unread: of each lane, its transitions that the reader has not passed, each an episode and the place in it.
        added, delivered, dropped, skipped: transitions of each lane.
    """

    def __init__(self, model: Model, stack: int = 1, n_step: int = 1, length: int | None = None) -> None:
        self.model, self.stack, self.n_step, self.length = model, stack, n_step, length or 1
        self.unread: list[deque[tuple[Episode, int]]] = [deque() for _ in model.lanes]
        self.added, self.delivered, self.dropped, self.skipped = np.zeros((4, len(model.lanes)), int)

    def add(self, lane: int, **row: Any) -> int:
        episode = self.model.lanes[lane].episodes[-1]
        self.unread[lane].append((episode, len(episode.rows)))
        self.added[lane] += 1
        return self.model.add(lane, **row)

    def refuse(self, lane: int, transitions: int) -> None:
        """Drops transitions that found no room; the next one begins an episode."""
        self.added[lane] += transitions
        self.dropped[lane] += transitions
        self.model.lanes[lane].seam()

    def settle(self, lane: int) -> int:
        """Skips undeliverable transitions; returns the length of the lane's next slot, 0 if none is complete."""
        unread = self.unread[lane]
        while unread:
            episode, place = unread[0]
            steps = self.model.steps(episode, place, self.n_step, self.length)
            follows = episode.rows[-1].ticket + 1 < self.model.lanes[lane].next_ticket
            if episode.rows[max(0, place - self.stack + 1)].ticket < self.model.lanes[lane].lowest:
                self.dropped[lane] += 1
            elif steps == self.length or episode.ended or (follows and steps):
                return steps
            elif follows:
                self.skipped[lane] += 1
            else:
                return 0
            unread.popleft()
        return 0

    def take(self, lane: int) -> tuple[int, tuple[Episode, int]]:
        """The index of the lane's next slot, and where it begins."""
        steps = self.settle(lane)
        episode, place = self.unread[lane][0]
        for _ in range(steps):
            self.unread[lane].popleft()
        self.delivered[lane] += steps
        return episode.rows[place].ticket * len(self.model.lanes) + lane, (episode, place)

    def ready(self, lane: int) -> int:
        """Slots of a batch that the lane could fill now."""
        before = self.unread[lane].copy(), self.delivered[lane], self.dropped[lane], self.skipped[lane]
        slots = 0
        while self.settle(lane):
            self.take(lane)
            slots += 1
        self.unread[lane], self.delivered[lane], self.dropped[lane], self.skipped[lane] = before
        return slots

    def overwritten(self, lane: int) -> int:
        """Transitions that the reader has not passed and never will see."""
        lowest = self.model.lanes[lane].lowest
        return sum(episode.rows[place].ticket < lowest for episode, place in self.unread[lane])
