"""Enumerating a world model's states, in this process and in workers; the result does not depend on who did what.

A state's number is the order of its discovery, breadth first: states are expanded in any order, but their expansions
are merged in the order of their numbers. Errors are raised in that order too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Any

from .crew import Crew, Part, expand
from .expansion import Expansion
from .model import Profiles, WorldModel

SLICE_S = 0.01  # of expanding states here between two looks at everything else
LOOK_S = 0.0005  # between two looks at the workers
WAIT_S = 0.1  # for workers, between two ticks


def explore(
    model: WorldModel, profiles: Profiles, root: Hashable, crew: Crew | None, tick: Callable[[Expansion], None]
) -> Expansion:
    """The expansion of all states that can be reached from `root`.

    Args:
        crew: None to do all in this process.
        tick: called every few milliseconds with the expansion so far, unless a state takes longer.

    Raises: see `build_graph`.
    """
    exploration = _Exploration(model, profiles, root, crew)
    while not exploration.complete:
        exploration.step()
        tick(exploration.whole)
    return exploration.whole


class _Exploration:
    """The states before `_handed` are expanded or being expanded; those before `len(whole.rows)` are merged."""

    def __init__(self, model: WorldModel, profiles: Profiles, root: Hashable, crew: Crew | None) -> None:
        self.whole = Expansion(root)
        self._transition, self._profiles, self._crew = model.transition_probabilities, profiles, crew
        self._handed = 0
        self._parts: dict[int, Part] = {}  # by its first state; each waits for earlier ones
        self._next_look = 0.0
        self._lost: Exception | None = None  # why workers cannot go on; the model is not to blame for it

    @property
    def complete(self) -> bool:
        return len(self.whole.rows) == len(self.whole.states)

    @property
    def _pending(self) -> int:
        return len(self.whole.states) - self._handed

    def step(self) -> None:
        self._attend(0.0 if self._pending else WAIT_S)
        if self._handed == len(self.whole.rows):
            self._expand_in_place()
        elif self._pending:
            self._expand_aside()
        self._merge()

    def _attend(self, seconds: float) -> None:
        """Takes what workers have finished, and gives states to those that are idle."""
        if self._crew is None:
            return
        self._parts.update(self._crew.take(seconds))
        while size := self._crew.size(self._pending):
            first, self._handed = self._handed, self._handed + size
            self._crew.give(first, self.whole.states[first : self._handed])

    def _expand_in_place(self) -> None:
        """Expands states here while nothing waits for a worker: new states join the queue at once."""
        whole, first, began = self.whole, self._handed, perf_counter()
        now, end = began, began + SLICE_S
        try:
            while not self.complete and now < end:
                whole.add(self._transition, self._profiles, whole.states[self._handed])
                self._handed += 1
                now = perf_counter()
        finally:
            whole.check(whole.states, self._profiles)  # its error is of an earlier state
        if self._crew is not None and self._handed > first:
            self._crew.expanded(self._handed - first, now - began)

    def _expand_aside(self) -> None:
        """Expands states here while earlier ones are with workers, and looks after the workers meanwhile."""
        assert self._crew is not None
        first, began, sending = self._handed, perf_counter(), self._crew.sending
        self._handed += self._crew.own_share(self._pending)
        states = self.whole.states[first : self._handed]
        self._parts[first] = expand(self._watchful, self._profiles, states)
        if self._lost is not None:
            raise self._lost
        self._crew.expanded(len(states), perf_counter() - began - (self._crew.sending - sending))

    def _watchful(self, state: Any, profile: tuple[int, ...]) -> Any:
        """The model's transition; looks after the workers before it, since one state may take long."""
        if perf_counter() >= self._next_look:
            try:
                self._attend(0.0)
            except Exception as error:  # `expand` would take it for the model's, and keep it for a later turn
                self._lost = error
                raise
            self._next_look = perf_counter() + LOOK_S
        return self._transition(state, profile)

    def _merge(self) -> None:
        """Appends the parts whose turn has come. Raises: the failure of such a part."""
        while (part := self._parts.pop(len(self.whole.rows), None)) is not None:
            if part.failure is not None:
                raise part.failure
            assert self._crew is not None
            began = perf_counter()
            self.whole.extend(part.expansion)
            self._crew.sending += perf_counter() - began
