"""Mixtures: batches drawn in fixed fractions from several replays, or from parts of one replay."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from collections.abc import Sequence as Several
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import check_type, check_whole, deadline_of, state_array
from ..errors import LayoutMismatch, NotEnoughData, TimedOut
from ..fixed import fixed
from ..memory import Inside, at_first_use, check_interruption, child_number, invalidate_after_fork, one_thread
from ..observations import Pad
from ..spec import Sequence
from ..transitions import Batch, BatchMemory, Layout, Window, spec_difference
from .buffer import ReplayBuffer
from .hindsight import Hindsight
from .prioritized import Prioritized, checked_priorities
from .rate_limiter import SampleGate, Share, attach_anew, limit_all
from .row_sampler import Ints, RowSampler, SamplerStats
from .sampler import Sampler

POLL_S = 0.02  # no single event signals writes to several replays


@fixed()
class Mixture:
    """Draws each batch from several replays in fixed fractions; used like a sampler, by one thread at a time.

    Fractions of a row carry over to the next batch, so that in the long run each replay gives exactly its fraction.
    While a replay has nothing to draw yet, the others give its rows, in proportion to their fractions. No row is drawn
    until the limiter of every replay whose fraction is above 0 allows a whole batch.

    Args:
        replays: the replays, whose specs must be equal.
        fractions: each replay's part of a batch, at least 0; their sum is 1.
        batch_size: rows of a batch.
        prioritized: options for all replays, or a list of one entry for each; None draws uniformly. Weights are divided
            by the largest weight of rows of the same replay; beta_steps counts the mixture's batches.
        min_size: transitions that each replay must hold before the mixture draws from it.
        stack, n_step, gamma, seed, pad, sequence, hindsight, layout, replace: as for `ReplayBuffer.sampler`. Hindsight
            takes a row's goal from the row's own lane, and calls its functions once for the whole batch.
        lanes: for each replay the consecutive lanes to draw from; None: all. `replays` may list one replay several
            times, with different lanes: its limiter then counts the rows of all lanes and of all parts together.

    Attributes:
        batch_size: rows of a batch, unless `sample` says how many.
        samplers: one for each replay. To keep a sampler's state with its replay, pass the sampler to the replay's
            `save`, and later the replay's `sampler_state` to the sampler's `load_state_dict`. The mixture's
            `state_dict` holds the states of all samplers and the fractions carried over.

    Raises: ValueError, TypeError: an argument is out of range. LayoutMismatch: the specs are not equal.
    """

    def __init__(
        self,
        replays: Several[ReplayBuffer],
        fractions: Several[float],
        batch_size: int,
        *,
        stack: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        seed: int | None = None,
        pad: Pad = "repeat",
        min_size: int = 1,
        prioritized: Prioritized | Several[Prioritized | None] | None = None,
        sequence: Sequence | None = None,
        lanes: Several[range | None] | None = None,
        hindsight: Hindsight | None = None,
        layout: Layout | None = None,
        replace: bool = True,
    ) -> None:
        _check_replays(replays)
        count = len(replays)
        check_whole("min_size", min_size)  # unlike a sampler's, it cannot be None
        self._fractions = _checked_fractions(fractions, count)
        preferred = _for_each("prioritized", "an entry", prioritized, count)
        parts = _for_each("lanes", "a range", lanes, count)
        window, seeds = Window(stack, n_step, gamma, pad, sequence, layout), _seeds(seed, count)
        self._parts: list[RowSampler] = []
        durabilities = [replay._durability for replay in replays]
        self._marks = [None if durability is None else durability.marks for durability in durabilities]
        self.samplers: list[Sampler] = []
        self._inside: Inside = {}
        # For each replay, by its nonce: its gate, and the numbers of its parts whose fraction is above 0
        self._replays: dict[int, tuple[SampleGate | None, list[int]]] = {}
        for i, replay in enumerate(replays):
            view, nonce = replay.view(parts[i]), replay.handle.nonce
            part = RowSampler(view, window, batch_size, min_size, preferred[i], seeds[i], hindsight, replace)
            if nonce not in self._replays:
                self._replays[nonce] = SampleGate.of(view, part.batch_size), []
            gate, numbers = self._replays[nonce]
            if self._fractions[i] > 0:
                numbers.append(i)
            self._parts.append(part)
            self.samplers.append(Sampler(part, gate, self._inside))
        self._gates = [(gate, numbers) for gate, numbers in self._replays.values() if gate is not None and numbers]
        self.batch_size, self._owed = self._parts[0].batch_size, np.zeros(count)
        invalidate_after_fork(self)

    @one_thread
    def can_sample(self) -> bool:
        """Whether `sample()` would return a batch now."""
        for part in self._parts:
            part.resize()
        if not all(gate.may_sample(self.batch_size) for gate, _ in self._gates):
            return False
        found, least, short = 0, self._parts[0].least_drawable, list[SampleGate]()
        for gate, numbers in self._replays.values():
            here = sum(self._parts[i].ready() for i in numbers)
            found += here
            if found >= least:
                return True
            if here < least and gate is not None and numbers:
                short.append(gate)
        for gate in short:
            gate.starve()
        return False

    @one_thread
    def sample(self, n: int | None = None, *, timeout: float | None = None) -> Batch:
        """Draws a batch; `batch.source`, int64 [B], is the position in `replays` of each row's replay.

        `batch.index` is (the row's index in its replay) * (number of replays) + source, so replays share no index.

        Args:
            n: rows of this batch; None: batch_size.
            timeout: seconds to wait for data and for limiters; None does not wait.

        Raises:
            NotEnoughData, TimeoutError: no replay has anything to draw, or the limiter of a replay whose fraction is
                above 0 forbids the draw. The mixture's counters and carried fractions are unchanged.
            Other errors: see `Sampler.sample`.
        """
        deadline = deadline_of(timeout)
        size = max(len(part.resize(n)) for part in self._parts)
        memory = self._parts[0].memory()
        owed = self._owed + self._fractions * size
        counts = _apportion(owed, size)
        source = self._draw(memory, counts, deadline)
        self._owed = owed - counts
        rows = [np.flatnonzero(source == i) for i in range(len(self._parts))]
        for gate, numbers in self._gates:
            if drawn := sum(len(rows[i]) for i in numbers):
                gate.count(drawn)
        for part, its_rows in zip(self._parts, rows, strict=True):
            part.finish(memory, its_rows)
        batch = self._parts[0].batch(memory)
        batch.index *= len(self._parts)
        batch.index += source
        batch.source = source
        return batch

    @one_thread
    def update_priorities(self, index: ArrayLike, priority: ArrayLike) -> None:
        """Calls `Sampler.update_priorities` for each row's replay; skips rows of replays that are drawn uniformly."""
        limit = min(part.limit for part in self._parts)
        indices, priorities = checked_priorities(index, priority, limit)
        indices, source = np.divmod(indices, len(self._parts))
        for i, part in enumerate(self._parts):
            if part.prioritized is not None:
                part.update_priorities(indices[source == i], priorities[source == i])

    @one_thread
    def clear(self) -> None:
        """Calls `Sampler.clear` for every replay."""
        for part in self._parts:
            part.clear()

    @property
    def due(self) -> bool:
        """Whether every limiter of the replays says that samplers are a batch behind; False without limiters."""
        return bool(self._gates) and all(gate.due for gate, _ in self._gates)

    def limit_to(self, share: Share) -> None:
        """Calls `Sampler.limit_to` for every replay, or for none if one of them has no limiter."""
        limit_all([gate for gate, _ in self._replays.values()], share)

    @property
    def stats(self) -> list[SamplerStats]:
        """The counters of each replay's sampler."""
        return [part.stats for part in self._parts]

    @one_thread
    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Returns the carried fractions and the samplers' states; a sampler's keys begin with its number and a dot.

        For a durable replay, the state depends only on rows below the watermark, which survive a power cut.
        """
        state: dict[str, NDArray[Any]] = {"owed": self._owed.copy()}
        for i, (part, marks) in enumerate(zip(self._parts, self._marks, strict=True)):
            its = part.state_dict() if marks is None else part.state_below(marks.durable())
            state |= {f"{i}.{name}": array for name, array in its.items()}
        return state

    @one_thread
    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restores the state of a mixture of these replays, or of saves of them; see `Sampler.load_state_dict`."""
        count = len(self._parts)
        owed = state_array(state, "owed", (count,), np.float64).copy()
        if not (abs(owed) < count).all() or abs(owed.sum()) > 1e-6:
            expected = f"owed as float64 ({count},), each between {-count} and {count}, with the sum 0"
            raise ValueError(f"state: expected {expected}")
        old_states = [part.state_dict() for part in self._parts]
        for i, part in enumerate(self._parts):
            prefix = f"{i}."
            try:
                part.load_state_dict({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
            except ValueError as error:
                for loaded, old in zip(self._parts[:i], old_states, strict=False):
                    loaded.load_state_dict(old)
                raise ValueError(f"replay {i}: {error}") from None
        self._owed = owed

    def forked(self) -> None:
        """Readies the mixture for use in a forked child; see `Sampler`."""
        for part in self._parts:
            part.reseed(child_number())
        gates, checks = [gate for gate, _ in self._replays.values()], [part.check_open for part in self._parts]
        at_first_use(self._inside, partial(attach_anew, gates, *checks))

    def _draw(self, memory: BatchMemory, counts: Ints, deadline: float | None) -> Ints:
        """Fills a batch's memory with `counts` rows from each replay; returns each row's replay."""
        while True:
            # Checked again after each pause: another sampler may have drawn the rows that a limiter allowed this one.
            while not all(gate.may_sample(int(counts.sum())) for gate, _ in self._gates):
                for gate, numbers in self._gates:
                    self._parts[numbers[0]].stats.waited += gate.wait(int(counts.sum()), deadline)
            try:
                return self._fill(memory, counts)
            except NotEnoughData as error:
                if deadline is None:
                    raise
                left = deadline - time.monotonic()
                if not left > 0:
                    raise TimedOut(str(error)) from None
                check_interruption()
                time.sleep(min(POLL_S, left))

    def _fill(self, memory: BatchMemory, counts: Ints) -> Ints:
        """Does `_draw` without waiting. Raises NotEnoughData if no replay has anything to draw."""
        for part in self._parts:
            part.begin()
        left = np.arange(counts.sum())
        source = np.empty_like(left)
        shares, short = self._fractions.copy(), list[int]()
        while True:
            unfilled = []
            for i, rows in enumerate(np.split(left, np.cumsum(counts)[:-1])):
                source[rows] = i
                if len(rows) and len(rows := self._parts[i].fill(memory, rows)):
                    unfilled.append(rows)
                    short.append(i)
            if not unfilled:
                return source
            for gate, numbers in self._gates:
                if {*numbers} <= {*short}:
                    gate.starve()
            shares[short] = 0.0
            if not shares.any():
                lacks = "; ".join(self._parts[i].shortage() for i in short)
                raise NotEnoughData(f"no replay has a row to draw: {lacks}")
            left = np.concatenate(unfilled)
            counts = _apportion(len(left) * shares / shares.sum(), len(left))


def _for_each(name: str, what: str, values: Any, replays: int) -> list[Any]:
    """Returns a value for each replay: the entries of `values` if it is a list, else `values` itself each time."""
    each = list(values) if isinstance(values, Several) else [values] * replays
    if len(each) != replays:
        raise ValueError(f"{name}: expected {what} for each of {replays} replays, got {len(each)}")
    return each


def _apportion(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Rounds the shares to integers with the sum `total`, by the largest remainders; negative shares count as 0."""
    counts = np.maximum(np.floor(shares), 0).astype(np.int64)
    left = total - int(counts.sum())
    if left >= 0:
        counts[np.argsort(counts - shares, kind="stable")[:left]] += 1
    for _ in range(-left):
        counts[np.argmax(np.where(counts > 0, counts - shares, -np.inf))] -= 1  # negative shares left too many
    return counts


def _check_replays(replays: Any) -> None:
    """Raises TypeError if `replays` is no list of replays, LayoutMismatch if their specs differ."""
    check_type("replays", replays, Several, expected="a list of ReplayBuffers")
    for i, replay in enumerate(replays):
        check_type(f"replays[{i}]", replay, ReplayBuffer)
        if replay.spec != replays[0].spec:
            raise LayoutMismatch(f"replays[{i}]: {spec_difference(replays[0].spec, replay.spec)}")


def _checked_fractions(fractions: Several[float], replays: int) -> NDArray[np.float64]:
    try:
        shares = np.array(fractions, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"fractions: expected numbers, got {fractions!r}") from None
    if not replays or shares.shape != (replays,):
        raise ValueError(f"fractions: expected a number for each of {replays} replays (1 or more), got {fractions!r}")
    if not (shares >= 0).all() or not math.isclose(shares.sum(), 1.0, abs_tol=1e-6):
        raise ValueError(f"fractions: expected numbers of at least 0 whose sum is 1, got {fractions!r}")
    shares /= shares.sum()
    return shares


def _seeds(seed: int | None, replays: int) -> list[int | None]:
    if seed is None:
        return [None] * replays
    check_whole("seed", seed, 0)
    return [int(child.generate_state(1, np.uint64)[0]) for child in np.random.SeedSequence(seed).spawn(replays)]
