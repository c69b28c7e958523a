"""Samplers: batches drawn from one replay, as fast as its limiter allows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from numpy.typing import ArrayLike, NDArray

from ..checks import deadline_of
from ..closing import Closing
from ..errors import NotEnoughData, TimedOut
from ..fixed import fixed
from ..memory import Inside, at_first_use, child_number, invalidate_after_fork, one_thread, sleep_until
from ..transitions import Batch
from .kept_state import KeptState
from .prioritized import BETA
from .rate_limiter import SampleGate, Share, attach_anew, limit_all
from .row_sampler import RowSampler


@fixed()
class Sampler(Closing):
    """Draws batches from one replay, for one thread at a time; `ReplayBuffer.sampler` makes it.

    A transition can be drawn if the replay holds its whole stack, and its next n steps or all steps to its episode's
    end. A sequence can be drawn if all its transitions can. Draws are uniform, with replacement by default, or follow
    priorities.

    A forked child, such as a worker of torch's DataLoader, may use its parent's sampler. It keeps the priorities of the
    moment of the fork, and draws other rows than its parent and siblings: its draws follow from the seed and the number
    of forks so far. The parent ignores priorities of rows that only the child drew.

    Attributes:
        batch_size: rows of a batch, unless `sample` says how many.
        beta: the exponent of the next batch's weights; None for uniform drawing. A value from 0 to 1 that you assign
            stays, and is saved with the sampler's state.
        stats: rows drawn, lapped and drawn again, and the time waited.
        prioritized: the options of prioritized drawing; None for uniform drawing.
    """

    def __init__(
        self, rows: RowSampler, gate: SampleGate | None, inside: Inside | None = None, kept: KeptState | None = None
    ) -> None:
        """`inside`: the guard (see guard.py) of this sampler's Mixture; None: the guard of `kept`, or a new one."""
        self.stats, self.prioritized = rows.stats, rows.prioritized
        self._rows, self._gate, self._kept = rows, gate, kept
        own: Inside = {} if kept is None else kept._inside
        self._inside = own if inside is None else inside
        if inside is None:  # otherwise the mixture does this
            invalidate_after_fork(self)

    @property
    def batch_size(self) -> int:
        return self._rows.batch_size

    @property
    def beta(self) -> float | None:
        return None if self.prioritized is None else self._rows.by_priority("beta").beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._rows.by_priority("beta").fixed_beta = float(BETA("beta", beta))

    @one_thread
    def can_sample(self) -> bool:
        """Whether `sample()` would return a batch now: the replay holds enough transitions, and one can be drawn."""
        self._rows.resize()
        lacking = self._rows.lacking()
        if self._gate is None:
            return not lacking
        if not self._gate.may_sample(self._rows.batch_size):
            return False
        if lacking:
            self._gate.starve()
        return not lacking

    @one_thread
    def sample(self, n: int | None = None, *, timeout: float | None = None, beta: float | None = None) -> Batch:
        """Draws a batch.

        Args:
            n: rows of this batch, and its `min_size` if the sampler was made without one; None: batch_size.
            timeout: seconds to wait for data; None does not wait.
            beta: the exponent of this batch's weights, instead of the attribute.

        Raises:
            NotEnoughData: no timeout was given, and the replay holds fewer than min_size transitions or none that can
                be drawn, or its limiter forbids the draw. TimeoutError: no draw became possible in time.
            ValueError: an actor stored a priority that is negative or infinite, n, timeout or beta is out of range,
                or the limiter never allows n rows at once. TypeError: beta was given, and the sampler draws uniformly.
            MarlcoreError: writers overwrote every draw for 10 seconds.
            ClosedError: the replay was closed. UsedByTwoThreads: another thread is inside a method of this sampler.
        """
        deadline, rows = deadline_of(timeout), self._rows
        if beta is not None:
            rows.by_priority("beta")
            beta = float(BETA("beta", beta))  # of one type, since the kernel is compiled for each
        whole = left = rows.resize(n)
        memory = rows.memory()
        if self._gate is not None:
            self.stats.waited += self._gate.wait(len(whole), deadline)
        while len(left := rows.fill(memory, left)):
            left = rows.resize(n)  # before the wait, for which rows of this try would count as drawn
            self._wait(deadline)
        if self._gate is not None:
            self._gate.count(len(whole))
        rows.finish(memory, whole, beta)
        if self._kept is not None:
            self._kept.look()
        return rows.batch(memory)

    @property
    def due(self) -> bool:
        """Whether, by the replay's limiter, samplers are a batch behind; False without a limiter."""
        return self._gate is not None and self._gate.due

    def limit_to(self, share: Share) -> None:
        """Limits draws, from now on, to a share of the limiter's samples per insert: a row counts as 1 / share rows.

        Args:
            share: above 0 and at most 1; or a function that returns an insert's share, given the insert's number,
                counted from now on (negative: before now). This share holds for the samples that the insert makes due,
                however late they are drawn. The sampling thread calls the function once for each insert and sample.

        Raises: ValueError: there is no limiter, or the share is out of range or so small that samplers and writers
            would wait for each other. The results of a function are checked when sampling.
        """
        limit_all([self._gate], share)

    @one_thread
    def update_priorities(self, index: ArrayLike, priority: ArrayLike) -> None:
        """Gives drawn transitions or sequences new priorities, usually their prediction errors.

        Priorities of rows that were overwritten meanwhile, or that this sampler never drew, are ignored, and counted
        in `stats.ignored`.

        Args:
            index: integers (n,), from `batch.index`.
            priority: numbers (n,), at least 0, and so small that priority ** alpha is finite; if an index comes twice,
                its last priority counts. Tensors may be on any device, and may require gradients.

        Raises:
            ValueError: a priority is NaN, too large or negative (the error names the row), or `index` and `priority`
                differ in length; nothing was changed. TypeError: the sampler draws uniformly. ClosedError: the replay
                was closed.
        """
        self._rows.update_priorities(index, priority)
        if self._kept is not None:
            self._kept.look()

    @one_thread
    def clear(self) -> None:
        """Limits draws to transitions written from now on; `sample` waits until there are min_size of these.

        Other samplers are not affected, and nothing is erased; `ReplayBuffer.clear` does the same for every sampler and
        reader. A transition whose stack begins with a row from before the call is not drawn either.
        """
        self._rows.clear()

    @one_thread
    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Returns the generator's state and the priorities as arrays, for `load_state_dict` or `ReplayBuffer.save`."""
        return self._rows.state_dict()

    @one_thread
    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restores the state of a sampler that had the same options and drew from this replay or a save of it.

        Raises: ValueError: a part of the state is missing, invalid, or from a different sampler. TypeError: the state
            is not a dict. After either, nothing has changed.
        """
        self._rows.load_state_dict(state)

    def _wait(self, deadline: float | None) -> None:
        """Sleeps until writers make a row that can be drawn; without a deadline, only checks once more."""
        if self._gate is not None:
            self._gate.starve()
        began = time.monotonic()
        until = began if deadline is None else deadline
        enough = sleep_until(self._rows.lacking, self._rows.event, until, self._rows.check_open)
        self.stats.waited += time.monotonic() - began
        if not enough:
            raise (NotEnoughData if deadline is None else TimedOut)(self._rows.shortage())

    def close(self) -> None:
        """Writes the state of a named sampler, and gives its name back; `ReplayBuffer.close` does this as well.

        Without a name, there is nothing to close. Raises OSError: the state, or an earlier one, could not be written.
        """
        if self._kept is not None:
            self._kept.close()

    def forked(self) -> None:
        """Readies the sampler for use in a forked child, where it draws other rows than the parent and siblings do."""
        self._rows.reseed(child_number())
        at_first_use(self._inside, partial(attach_anew, [self._gate], self._rows.check_open))

    def __repr__(self) -> str:
        return f"<Sampler of {self._rows.path} batch_size={self._rows.batch_size}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Sampler belongs to one process: pass the replay and call its `sampler` there")
