"""Batches drawn from several replays, or parts of one, in fixed shares, such as an anchor's and a pool's."""

import math
import time
from collections.abc import Mapping
from collections.abc import Sequence as Several
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import check_type, check_whole, deadline_of, state_array
from ..errors import LayoutMismatch, NotEnoughData, TimedOut
from ..memory import check_interruption, one_thread, unguarded
from ..observations import Pad
from ..spec import Sequence
from ..transitions import Batch, BatchMemory, Window, spec_difference
from .buffer import ReplayBuffer
from .hindsight import Hindsight
from .limiter import Share
from .prioritized import Prioritized, checked_priorities
from .sampler import Sampler, SamplerStats

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
        stack, n_step, gamma, seed, pad, sequence, hindsight: as for `ReplayBuffer.sampler`; a goal comes from its row's
            own lane, so from the same replay, and hindsight's functions are called once for the whole batch.
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
        pad: Pad = "repeat",
        min_size: int = 1,
        prioritized: Prioritized | Several[Prioritized | None] | None = None,
        sequence: Sequence | None = None,
        lanes: Several[range | None] | None = None,
        hindsight: Hindsight | None = None,
    ) -> None:
        _check_replays(replays)
        count = len(replays)
        check_whole("min_size", min_size)  # None, which a sampler takes for its batch size, means nothing here
        self._fractions = _checked_fractions(fractions, count)
        several = isinstance(prioritized, (list, tuple))
        preferred = _for_each("prioritized", "one", prioritized if several else [prioritized] * count, count)
        parts = _for_each("lanes", "a range", [None] * count if lanes is None else lanes, count)
        window = Window(stack, n_step, gamma, pad, sequence)
        nonces = [replay.handle.nonce for replay in replays]
        # For each sampler all those of its replay, where one is given several times.
        self._of_same = [[i for i, other in enumerate(nonces) if other == nonce] for nonce in nonces]
        self._parted = len({*nonces}) < count
        self.samplers: list[Sampler] = []
        self._inside: dict[int, None] = {}  # see guard.py
        self._parts: dict[int, list[Sampler]] = {}  # the samplers with a share, by their replay
        for i, own_seed in enumerate(_seeds(seed, count)):
            alone = len(self._of_same[i]) == 1
            options = window, batch_size, min_size, preferred[i], own_seed, alone, hindsight
            sampler = replays[i]._sampler(parts[i], *options)
            sampler._inside = self._inside  # no other thread may use one of the samplers meanwhile
            self.samplers.append(sampler)
            if self._fractions[i] > 0:
                self._parts.setdefault(nonces[i], []).append(sampler)
        self._relabelling = self.samplers[0]._relabelling
        for sampler in self.samplers[1:]:
            if self._relabelling is not None and sampler._relabelling is not None:
                sampler._relabelling.share(self._relabelling)
        self._shared = [*chain(*self._parts.values())]
        self._batch_size = int(batch_size)
        self._owed = np.zeros(count)

    @one_thread
    def can_sample(self) -> bool:
        """Whether `sample` would return a batch now."""
        if any(sampler._is_limited() for sampler in self._shared):
            return False
        for parts in self._parts.values():
            if any(sampler._able() for sampler in parts):
                return True
            parts[0]._starve()
        return False

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
        memory = self.samplers[0]._read_plan.memory()
        owed = self._owed + self._fractions * self._batch_size
        counts = _apportion(owed, self._batch_size)
        source = self._draw(memory, counts, deadline)
        self._owed = owed - counts
        rows = [np.flatnonzero(source == i) for i in range(len(self.samplers))]
        drawn = [bool(len(own)) for own in rows]
        if self._parted:
            drawn = [any(drawn[j] for j in same) for same in self._of_same]
        for i, sampler in enumerate(self.samplers):
            sampler._finish(memory, rows[i], drawn[i])
        batch = memory.batch()
        if self._relabelling is not None:
            batch.relabelled = self._relabelling.finish(memory)
        batch.index *= len(self.samplers)
        batch.index += source
        batch.source = source
        return batch

    @one_thread
    def update_priorities(self, index: ArrayLike, priority: ArrayLike) -> None:
        """Gives drawn rows new priorities, each in its own replay; skips rows of replays drawn uniformly.

        Args and errors: see `Sampler.update_priorities`.
        """
        indices, priorities = checked_priorities(index, priority)
        for i, sampler in enumerate(self.samplers):
            if sampler.prioritized:
                its_own = indices % len(self.samplers) == i
                unguarded(Sampler.update_priorities)(
                    sampler, indices[its_own] // len(self.samplers), priorities[its_own]
                )

    @one_thread
    def clear(self) -> None:
        """See `Sampler.clear`; for every replay."""
        for sampler in self.samplers:
            unguarded(Sampler.clear)(sampler)

    @property
    def due(self) -> bool:
        """Whether samplers are a batch behind, by the limiters of all replays that have one; False without any."""
        limited = [sampler for sampler in self._shared if sampler._gate is not None]
        return bool(limited) and all(sampler.due for sampler in limited)

    def limit_to(self, share: Share) -> None:
        """See `Sampler.limit_to`; for every replay."""
        for sampler in self.samplers:
            sampler.limit_to(share)

    @property
    def stats(self) -> list[SamplerStats]:
        """The counters of each replay's sampler."""
        return [sampler.stats for sampler in self.samplers]

    @one_thread
    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The fractions carried over, and each sampler's state; its keys start with its replay's number and a dot."""
        state: dict[str, NDArray[Any]] = {"owed": self._owed.copy()}
        for i, sampler in enumerate(self.samplers):
            state |= {f"{i}.{name}": array for name, array in unguarded(Sampler.state_dict)(sampler).items()}
        return state

    @one_thread
    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restores the state of a mixture of the same replays, or of saves of them.

        Raises ValueError: a part is missing, or of another shape, dtype or sampler; TypeError: the state is not a dict.
        Nothing was changed.
        """
        count = len(self.samplers)
        owed = state_array(state, "owed", (count,), np.float64).copy()
        if not (abs(owed) < count).all() or abs(owed.sum()) > 1e-6:
            expected = f"owed as float64 ({count},), each between {-count} and {count}, with the sum 0"
            raise ValueError(f"state: expected {expected}")
        before = [unguarded(Sampler.state_dict)(sampler) for sampler in self.samplers]
        for i, sampler in enumerate(self.samplers):
            prefix = f"{i}."
            own = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            try:
                unguarded(Sampler.load_state_dict)(sampler, own)
            except ValueError as error:
                for loaded, old in zip(self.samplers[:i], before, strict=False):
                    unguarded(Sampler.load_state_dict)(loaded, old)
                raise ValueError(f"replay {i}: {error}") from None
        self._owed = owed

    def _draw(self, memory: BatchMemory, counts: NDArray[np.int64], deadline: float | None) -> NDArray[np.int64]:
        """Fills a batch's memory with `counts` rows from each replay; returns each row's replay."""
        while True:
            # Again after a pause: another sampler may have drawn the rows that a limiter allowed this one.
            while any(sampler._is_limited() for sampler in self._shared):
                for sampler in self._shared:
                    sampler._wait_for_limiter(deadline)
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
        shares, shortages = self._fractions.copy(), {}
        while True:
            for i, part in enumerate(np.split(rows, np.cumsum(counts)[:-1])):
                try:
                    if len(part):
                        self.samplers[i]._fill(memory, part, None)
                        source[part] = i
                except NotEnoughData as error:
                    shares[i] = 0.0
                    shortages[self.samplers[i]] = str(error)
            rows = np.flatnonzero(source < 0)
            if not len(rows):
                return source
            for parts in self._parts.values():
                if shortages.keys() >= set(parts):
                    parts[0]._starve()
            if not shares.any():
                raise NotEnoughData(f"no replay has anything to draw from: {'; '.join(shortages.values())}")
            counts = _apportion(len(rows) * shares / shares.sum(), len(rows))


def _for_each(name: str, what: str, values: Any, replays: int) -> list[Any]:
    if len(values) != replays:
        raise ValueError(f"{name}: expected {what} for each of {replays} replays, got {len(values)}")
    return list(values)


def _apportion(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Integers near the shares, `total` in all, by the largest remainders; negative shares count as 0."""
    counts = np.maximum(np.floor(shares), 0).astype(np.int64)
    left = total - int(counts.sum())
    if left >= 0:
        counts[np.argsort(counts - shares, kind="stable")[:left]] += 1
    for _ in range(-left):
        counts[np.argmax(np.where(counts > 0, counts - shares, -np.inf))] -= 1  # negative shares left too many
    return counts


def _check_replays(replays: Any) -> None:
    """Raises TypeError: not a list of replays. LayoutMismatch: their specs differ; names the first difference."""
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
        raise ValueError(f"fractions: expected one for each of {replays} replays, at least one, got {fractions!r}")
    if not (shares >= 0).all() or not math.isclose(shares.sum(), 1.0, abs_tol=1e-6):
        raise ValueError(f"fractions: expected numbers of at least 0 whose sum is 1, got {fractions!r}")
    exact: NDArray[np.float64] = shares / shares.sum()
    return exact


def _seeds(seed: int | None, replays: int) -> list[int | None]:
    if seed is None:
        return [None] * replays
    check_whole("seed", seed, 0)
    return [int(child.generate_state(1, np.uint64)[0]) for child in np.random.SeedSequence(seed).spawn(replays)]
