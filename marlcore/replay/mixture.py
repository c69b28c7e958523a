"""Batches drawn from several replays, or parts of one, in fixed shares, such as an anchor's and a pool's."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from collections.abc import Sequence as Several
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import came, check_whole, deadline_of, state_array
from ..errors import LayoutMismatch, NotEnoughData, TimedOut
from ..memory import check_interruption, one_thread
from ..spec import Sequence
from ..transitions import Batch, BatchMemory, spec_difference
from .buffer import ReplayBuffer
from .prioritized import Prioritized, checked_priorities
from .row_source import SamplerOptions, SamplerStats
from .sampler import Sampler

POLL_S = 0.02  # no single event signals writes to several replays


class Mixture:
    """Draws each batch from several replays in fixed fractions; used like a sampler, by one thread at a time.

    Fractions of a row carry over to the next batch, so that in the long run each replay gives exactly its fraction.
    While a replay has nothing to draw yet, the others give its rows, in proportion to their fractions. No row is
    drawn before the limiters of all replays with a share allow a whole batch.

    Args:
        replays: of equal specs.
        fractions: each replay's part of a batch, at least 0; their sum is 1.
        batch_size: rows of a batch.
        prioritized: for all replays, or one entry for each; None draws uniformly. Weights are divided by the largest
            of their replay's rows; each batch of the mixture is one of beta_steps.
        min_size: transitions that each replay must hold before the mixture draws from it.
        stack, n_step, gamma, seed, pad, sequence: as for `ReplayBuffer.sampler`.
        lanes: for each replay the consecutive lanes to draw from; None: all. With it, `replays` may hold one replay
            several times: its limiter then counts the rows of all lanes and of all parts together.

    Attributes:
        samplers: one for each replay. To keep their states with their replays, `save` each replay with its sampler, and
            load the replay's `sampler_state` into it. `state_dict` holds all states and the fractions carried over.

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
        pad: Literal["repeat", "zero"] = "repeat",
        min_size: int = 1,
        prioritized: Prioritized | Several[Prioritized | None] | None = None,
        sequence: Sequence | None = None,
        lanes: Several[range | None] | None = None,
    ) -> None:
        _check_replays(replays)
        count = len(replays)
        check_whole("batch_size", batch_size)
        check_whole("min_size", min_size)
        self._fractions = _checked_fractions(fractions, count)
        several = isinstance(prioritized, (list, tuple))
        preferred = _for_each("prioritized", "one", prioritized if several else [prioritized] * count, count)
        parts = _for_each("lanes", "a range", [None] * count if lanes is None else lanes, count)
        self._one_replay = count > 1 and all(replay is replays[0] for replay in replays)
        self._sources = []
        for replay, own_seed, preference, part in zip(replays, _seeds(seed, count), preferred, parts, strict=True):
            options = SamplerOptions(batch_size, stack, n_step, gamma, own_seed, pad, min_size, preference, sequence)
            self._sources.append(replay._row_source(options, part, alone=not self._one_replay))
        self._shared = [source for source, share in zip(self._sources, self._fractions, strict=True) if share > 0]
        self.samplers = [Sampler(source) for source in self._sources]
        self._batch_size = int(batch_size)
        self._inside: dict[int, None] = {}  # see guard.py
        self._owed = np.zeros(count)

    @one_thread
    def can_sample(self) -> bool:
        """Whether `sample` would return a batch now."""
        if any(source.is_limited() for source in self._shared):
            return False
        if not self._one_replay:
            return any(source.can_sample() for source in self._shared)
        able = any(source.able() for source in self._shared)
        if not able:
            self._shared[0].starve()
        return able

    @one_thread
    def sample(self, timeout: float | None = None) -> Batch:
        """Draws a batch; `batch.source`, int64 [B], is the number of each row's replay.

        `batch.index` is unique among all replays: the replay's own index * number of replays + source.

        Args:
            timeout: seconds to wait for data and for limiters; None does not wait.

        Raises: as `Sampler.sample`; NotEnoughData and TimeoutError also if the limiter of a replay with a share forbids
            the draw, or no replay has anything to draw. Then nothing was drawn, counted or owed.
        """
        deadline = deadline_of(timeout)
        memory = self._sources[0].memory()
        owed = self._owed + self._fractions * self._batch_size
        counts = _apportion(owed, self._batch_size)
        source = self._draw(memory, counts, deadline)
        self._owed = owed - counts
        for i, drawn_from in enumerate(self._sources):
            drawn_from.finish(memory, np.flatnonzero(source == i))
        batch = memory.batch()
        batch.index *= len(self._sources)
        batch.index += source
        batch.source = source
        return batch

    @one_thread
    def update_priorities(self, index: ArrayLike, priority: ArrayLike) -> None:
        """Gives drawn rows new priorities, each in its own replay; skips rows of replays drawn uniformly.

        Args and errors: see `Sampler.update_priorities`.
        """
        indices, priorities = checked_priorities(index, priority)
        for i, source in enumerate(self._sources):
            if source.prioritized:
                its_own = indices % len(self._sources) == i
                source.update_priorities(indices[its_own] // len(self._sources), priorities[its_own])

    @one_thread
    def clear(self) -> None:
        """See `Sampler.clear`; for every replay."""
        for source in self._sources:
            source.clear()

    @property
    def due(self) -> bool:
        """Whether samplers are a batch behind, by the limiters of all replays that have one; False without any."""
        dues = [due for source in self._shared if (due := source.due) is not None]
        return bool(dues) and all(dues)

    @property
    def stats(self) -> list[SamplerStats]:
        """The counters of each replay's sampler."""
        return [source.stats for source in self._sources]

    @one_thread
    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The fractions carried over, and each sampler's state; its keys start with its replay's number and a dot."""
        state: dict[str, NDArray[Any]] = {"owed": self._owed.copy()}
        for i, source in enumerate(self._sources):
            state |= {f"{i}.{name}": array for name, array in source.state_dict().items()}
        return state

    @one_thread
    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restores the state of a mixture of the same replays, or of saves of them.

        Raises ValueError: a part is missing, or of another shape, dtype or sampler; TypeError: the state is not a dict.
        Nothing was changed.
        """
        owed = _checked_owed(state, len(self._sources))
        before = [source.state_dict() for source in self._sources]
        for i, source in enumerate(self._sources):
            own = f"{i}."
            try:
                source.load_state_dict({k.removeprefix(own): v for k, v in state.items() if k.startswith(own)})
            except ValueError as error:
                for loaded, old in zip(self._sources[:i], before, strict=False):
                    loaded.load_state_dict(old)
                raise ValueError(f"replay {i}: {error}") from None
        self._owed = owed

    def _draw(self, memory: BatchMemory, counts: NDArray[np.int64], deadline: float | None) -> NDArray[np.int64]:
        """Fills a batch's memory with `counts` rows from each replay; returns each row's replay."""
        while True:
            # Again after a pause: another sampler may have drawn the rows that a limiter allowed this one.
            while any(source.is_limited() for source in self._shared):
                for source in self._shared:
                    source.wait_for_limiter(deadline)
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

    def _fill(self, memory: BatchMemory, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """`_draw` without waiting. Raises NotEnoughData: no replay with a share has anything to draw."""
        rows, source = np.arange(self._batch_size), np.full(self._batch_size, -1)
        shares, shortages = self._fractions.copy(), []
        while True:
            for i, part in enumerate(np.split(rows, np.cumsum(counts)[:-1])):
                try:
                    if len(part):
                        self._sources[i].fill(memory, part, None)
                        source[part] = i
                except NotEnoughData as error:
                    shares[i] = 0.0
                    shortages.append(str(error))
            rows = np.flatnonzero(source < 0)
            if not len(rows):
                return source
            if not shares.any():
                if self._one_replay:
                    self._sources[0].starve()
                raise NotEnoughData(f"no replay has anything to draw from: {'; '.join(shortages)}")
            counts = _apportion(len(rows) * shares / shares.sum(), len(rows))


def _for_each(name: str, what: str, values: Any, replays: int) -> list[Any]:
    if len(values) != replays:
        raise ValueError(f"{name}: expected {what} for each of {replays} replays, got {len(values)}")
    return list(values)


def _apportion(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Integers near the shares, `total` in all: the largest remainders are rounded up."""
    counts = np.maximum(np.floor(shares), 0).astype(np.int64)
    left = total - int(counts.sum())
    counts[np.argsort(counts - shares, kind="stable")[:left]] += 1
    return counts


def _check_replays(replays: Any) -> None:
    """Raises TypeError: not a list of replays. LayoutMismatch: their specs differ; names the first difference."""
    if not isinstance(replays, Several):
        raise TypeError(f"replays: expected a list of ReplayBuffers, got {came(replays)}")
    for i, replay in enumerate(replays):
        if not isinstance(replay, ReplayBuffer):
            raise TypeError(f"replays[{i}]: expected a ReplayBuffer, got {came(replay)}")
        if replay.spec != replays[0].spec:
            raise LayoutMismatch(f"replays[{i}]: {spec_difference(replays[0].spec, replay.spec)}")


def _checked_fractions(fractions: Several[float], replays: int) -> NDArray[np.float64]:
    try:
        shares = np.array(fractions, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"fractions: expected numbers, got {fractions!r}") from None
    if not replays or shares.shape != (replays,):
        raise ValueError(f"fractions: expected one for each of {replays} replays, at least one, got {fractions!r}")
    if not (shares >= 0).all() or not math.isclose(shares.sum(), 1.0, abs_tol=1e-6):
        raise ValueError(f"fractions: expected numbers of at least 0 whose sum is 1, got {fractions!r}")
    exact: NDArray[np.float64] = shares / shares.sum()
    return exact


def _checked_owed(state: Any, replays: int) -> NDArray[np.float64]:
    owed = state_array(state, "owed", (replays,), np.float64)
    if not (abs(owed) < 1.0 + 1e-6).all() or abs(owed.sum()) > 1e-6:
        raise ValueError(f"state: expected owed as float64 ({replays},), each between -1 and 1, with the sum 0")
    return owed.copy()


def _seeds(seed: int | None, replays: int) -> list[int | None]:
    if seed is None:
        return [None] * replays
    check_whole("seed", seed, 0)
    return [int(child.generate_state(1, np.uint64)[0]) for child in np.random.SeedSequence(seed).spawn(replays)]
