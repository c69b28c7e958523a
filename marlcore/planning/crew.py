"""The worker processes that expand states: when they start, and how many states each gets at a time.

The process that builds the graph expands states too. It starts workers once a graph proves large enough, while it
continues, so a small graph costs no process. It stops giving them states that take longer to send than to expand.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Hashable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import cloudpickle

from ..checks import came
from ..errors import WorldModelFailed, pass_on_from_handler
from ..processes import Pool, check_picklable
from .expansion import Expansion
from .model import Profiles, Transition, WorldModel

START_AFTER_S = 0.05  # of work in this process; the server that forks workers starts in 0.2 s
BATCH_S = 0.05  # of work in one batch
OWN_S = 0.005  # of work that this process does before it merges what has come
LEAST_S = 0.001  # a batch with less work than this is not worth its way
MOST = 4096  # states of a batch
WAIT_S = 0.1  # for the workers' start, between two looks for signals
TRIED = 4  # batches before the cost of sending is judged
_GREETING = -1  # smaller keys are those of the first requests, which tell that a process is ready


class Part(NamedTuple):
    """The expansion of some states, and the error that ended it early."""

    expansion: Expansion
    failure: Exception | None


def expand(transition: Transition, profiles: Profiles, states: Sequence[Any]) -> Part:
    """Expands states one by one. The first failure in the order of the states counts."""
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
    return Part(expansion, failure)


class Crew:
    """The worker processes of one graph.

    Attributes:
        sending: seconds that this process took to send states, to read and to merge what came back.

    Args:
        root: the initial state.
        workers: processes that expand states, this one included.
        batch: states that a worker gets at a time, from the start on; None: as many as take 50 ms, once the workers
            are worth it.
    """

    def __init__(self, model: WorldModel, profiles: Profiles, root: Hashable, workers: int, batch: int | None) -> None:
        """Raises TypeError: the model or its initial state cannot be pickled."""
        expander = partial(_Expander, model, profiles)
        try:
            self._pool = Pool(expander, workers - 1, name="planner", preload=("marlcore.planning.crew",))
        except Exception:  # a class's own pickling may raise anything
            check_picklable(model=model)
            raise
        check_picklable(state=root)
        self._root, self._workers, self._batch = root, workers, batch
        self._began = perf_counter()
        self._greeted = False
        self._cost = 0.0  # seconds to expand a state here; the first state always is
        self._batches, self._sent = 0, 0  # batches given, and the states in them
        self.sending = 0.0

    def expanded(self, states: int, seconds: float) -> None:
        """Notes how long this process took for some states."""
        cost = seconds / states
        self._cost = cost if not self._cost else 0.75 * self._cost + 0.25 * cost

    def size(self, pending: int) -> int:
        """How many of the pending states a worker should get now; 0 for none."""
        share = pending // self._workers
        if self._batch is not None:
            return min(self._batch, share) if self._staffed() else 0
        if self._is_costly or min(share * self._cost, BATCH_S) < LEAST_S:
            return 0
        return min(max(1, int(BATCH_S / self._cost)), share, MOST) if self._staffed() else 0

    def own_share(self, pending: int) -> int:
        """How many of the pending states this process should expand now."""
        return min(pending, max(1, int(OWN_S / self._cost)), MOST)

    def give(self, first: int, states: Sequence[Any]) -> None:
        """Gives states to an idle worker; `take` returns their expansion with the number `first`."""
        began = perf_counter()
        self._pool.ask(first, cloudpickle.dumps([*states]))
        self._batches += 1
        self._sent += len(states)
        self.sending += perf_counter() - began

    def take(self, seconds: float) -> list[tuple[int, Part]]:
        """What workers have finished; waits for the first at most so long.

        Raises: WorkerFailed: the model cannot be unpickled in a worker, or several workers died of the same states.
        """
        if not self._greeted:
            return []
        found = []
        for first, reply in self._pool.replies(seconds):
            began = perf_counter()
            content = pickle.loads(reply)
            if first > _GREETING:
                found.append((first, content))
            else:
                self._check_greeting(content)
            self.sending += perf_counter() - began
        return found

    def close(self) -> None:
        """Kills the workers."""
        self._pool.close()

    def _staffed(self) -> bool:
        """Whether a worker can take states; starts the workers, each step as soon as it takes no waiting."""
        if self._greeted:
            return self._pool.free > 0
        if self._batch is None and perf_counter() - self._began < START_AFTER_S:
            return False
        self._pool.begin()
        if self._pool.ready or self._batch is not None:
            request = cloudpickle.dumps(_Greeting(self._root))
            for number in range(self._workers - 1):
                self._pool.ask(_GREETING - number, request)
            self._greeted = True
        while self._greeted and self._batch is not None and self._pool.free < self._workers - 1:
            self.take(WAIT_S)
        return self._greeted and self._pool.free > 0

    def _check_greeting(self, root: Any) -> None:
        """Raises TypeError: a state that went to a worker and back is another one."""
        if root != self._root or hash(root) != hash(self._root):
            raise TypeError(_changed(self._root))

    @property
    def _is_costly(self) -> bool:
        """Whether sending states takes this process longer than expanding them."""
        return self._batches >= TRIED and self.sending > self._sent * self._cost


class _Greeting(NamedTuple):
    """The first request to a process, which hashes the state and sends it back."""

    state: Any


class _Expander:
    """The function of a worker: it expands batches of states."""

    def __init__(self, model: WorldModel, profiles: Profiles) -> None:
        self._model = model
        self._profiles = profiles

    def __call__(self, request: bytes) -> bytes:
        content = pickle.loads(request)
        if isinstance(content, _Greeting):
            return _dumps({content.state: None}.popitem()[0])
        part = expand(self._model.transition_probabilities, self._profiles, content)
        if isinstance(part.failure, WorldModelFailed):
            part = part._replace(failure=part.failure.of(multiprocessing.current_process().name))
        try:
            reply = _dumps(part)
            copies = pickle.loads(reply).expansion.states
        except Exception as error:  # a class's own pickling may raise anything
            reason = f"{type(error).__name__}: {error}"
            text = f"state: expected successors that can be pickled ({reason}); workers=1 needs no pickling"
            return _dumps(Part(Expansion(), TypeError(text)))
        for state, copy in zip(part.expansion.states, copies, strict=True):
            if copy != state:  # such as one with a nan; each copy would become a state of its own
                return _dumps(Part(Expansion(), TypeError(_changed(state))))
        return reply


def _changed(state: Any) -> str:
    return (
        "state: expected states that are equal and hash alike after pickling, got "
        f"{came(state)}, whose copy is another one; workers=1 needs no pickling"
    )


def _dumps(thing: Any) -> bytes:
    found: bytes = cloudpickle.dumps(thing)
    return found
