"""Enumerates a world model's states in this process and in workers; the division of work does not affect the result.

States are numbered in the order of their discovery, breadth first. They are expanded in any order, but expansions are
merged, and errors raised, in the order of the states' numbers.
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import closing, nullcontext
from functools import partial
from time import perf_counter
from typing import Any

from ..checks import brief
from ..errors import pass_on_from_handler
from ..processes import Pool, check_picklable
from ..unpickling import unpickled
from .batches import WAIT_S, Batches, BatchResult, packed, stays_equal
from .expansion import Expansion
from .model import Profiles, Transition, WorldModel

START_AFTER_S = 0.05  # seconds before workers start; their server starts in 0.02 s, or 0.2 s as a new program
SLICE_S = 0.01  # seconds of expanding states here before anything else is looked at
LOOK_S = 0.0005  # seconds between two looks at the workers


class Exploration:
    """Finds the states that a model can reach from `root`; see `build_graph` for the other arguments and errors."""

    def __init__(
        self, model: WorldModel, profiles: Profiles, root: Hashable, workers: int, batch: int | None, fork: bool | None
    ) -> None:
        self._transition, self._profiles = model.transition_probabilities, profiles
        self._pool = _make_pool(model, profiles, root, workers - 1, fork) if workers > 1 else None
        self._whole = Expansion(root)
        self._batches = Batches(self._whole.states, partial(expand, self._watchful, profiles), workers, batch)
        self._start_at = perf_counter() + (START_AFTER_S if batch is None else 0.0)
        self._next_look = 0.0
        self._lost: Exception | None = None  # an error of the workers themselves, not of the model

    def run(self, tick: Callable[[int, int], None]) -> Expansion:
        """Explores all states; calls `tick(expanded, found)` every few milliseconds, or less often for slow states."""
        whole = self._whole
        with closing(self._pool) if self._pool else nullcontext():
            while len(whole.rows) < len(whole.states):
                self._attend(0.0 if self._batches.pending else WAIT_S)
                if self._batches.handed == self._batches.merged:
                    self._expand_in_place()
                elif self._batches.pending:
                    self._batches.evaluate_here()
                    if self._lost is not None:
                        raise self._lost
                for expansion in self._batches.results():
                    whole.extend(expansion)
                tick(len(whole.rows), len(whole.states))
        return whole

    def _attend(self, seconds: float) -> None:
        batches, was_started = self._batches, self._batches.started
        if perf_counter() >= self._start_at:
            batches.pool = self._pool
        batches.attend(seconds)
        if batches.started and not was_started and not stays_equal(self._whole.states[0]):
            raise _changed(self._whole.states[0])

    def _expand_in_place(self) -> None:
        """Expands states one by one for SLICE_S seconds, while no worker has states; new states join at once."""
        whole, batches, first = self._whole, self._batches, self._batches.merged
        began = now = perf_counter()
        try:
            while len(whole.rows) < len(whole.states) and now < began + SLICE_S:
                whole.add(self._transition, self._profiles, whole.states[len(whole.rows)])
                now = perf_counter()
        finally:
            whole.check(whole.states, self._profiles)  # its error is that of an earlier state, so it comes first
        batches.handed = batches.merged = len(whole.rows)
        if batches.merged > first:
            batches.took(batches.merged - first, now - began)

    def _watchful(self, state: Any, profile: tuple[int, ...]) -> Any:
        """Calls the model; first attends to the workers if that is due, since a state may take long."""
        if perf_counter() >= self._next_look:
            try:
                self._attend(0.0)
            except Exception as error:  # kept, since `expand` takes it for an error of the model
                self._lost = error
                raise
            self._next_look = perf_counter() + LOOK_S
        return self._transition(state, profile)


def expand(transition: Transition, profiles: Profiles, states: Sequence[Any]) -> BatchResult:
    """Expands states one by one until a state fails; the result holds the error, if any."""
    expansion, failure = Expansion(), None
    try:
        for state in states:
            expansion.add(transition, profiles, state)
    except Exception as error:
        pass_on_from_handler(error)
        failure = error
    try:
        expansion.check(states, profiles)
    except ValueError as error:
        failure = error
    return BatchResult(expansion, failure)


def _make_pool(model: WorldModel, profiles: Profiles, root: Hashable, size: int, fork: bool | None) -> Pool:
    try:
        make = partial(_answer_with, model, profiles)
        pool = Pool(make, size, name="planner", preload=(__name__,), fork=fork)
    except Exception:  # a class's own pickling may raise anything
        check_picklable(model=model)
        raise
    check_picklable(state=root)
    return pool


def _answer_with(model: WorldModel, profiles: Profiles) -> Callable[[bytes], bytes]:
    def answer(request: bytes) -> bytes:
        batch = expand(model.transition_probabilities, profiles, unpickled(request))
        try:
            reply = packed(batch)
            copies = unpickled(reply).result.states
        except Exception as error:  # a class's own pickling may raise anything
            reason = f"{type(error).__name__}: {error}"
            text = f"state: expected successors that can be pickled ({reason}); workers=1 needs no pickling"
            return packed(BatchResult(None, TypeError(text)))
        for state, copy in zip(batch.result.states, copies, strict=True):
            if copy != state:  # such as a state with a NaN: each copy would become another state
                return packed(BatchResult(None, _changed(state)))
        return reply

    return answer


def _changed(state: Any) -> TypeError:
    return TypeError(
        "state: expected states that are equal and hash alike after pickling, got "
        f"{brief(state)}, whose copy differs; workers=1 needs no pickling"
    )
