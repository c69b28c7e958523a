"""Samplers: batches drawn from one replay, as fast as its limiter allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import deadline_of
from ..memory import one_thread
from ..transitions import Batch
from .prioritized import Prioritized
from .row_source import RowSource, SamplerStats


class Sampler:
    """Draws batches from one replay; made by `ReplayBuffer.sampler`. For one thread at a time.

    A transition can be drawn if the replay holds its whole stack and its next n steps, or those to the episode's end; a
    sequence, if that holds for all its transitions. Draws are uniform with replacement, or follow the priorities.

    Attributes:
        source: draws the rows, whatever the limiter says.
    """

    def __init__(self, source: RowSource) -> None:
        self.source = source
        self._inside: dict[int, None] = {}  # see guard.py
        self._all_rows = np.arange(source.batch_size)

    @one_thread
    def can_sample(self) -> bool:
        """Whether `sample` would return a batch now: the replay holds enough transitions, and one can be drawn."""
        return self.source.can_sample()

    @one_thread
    def sample(self, timeout: float | None = None) -> Batch:
        """Draws a batch.

        Args:
            timeout: seconds to wait for data; None does not wait.

        Raises:
            NotEnoughData: without a timeout, the replay holds fewer than min_size transitions, or no whole one.
            TimeoutError: the same, after the timeout.
            ValueError: an actor stored a priority that is negative or infinite, or the timeout is out of range.
            MarlcoreError: writers overwrote every draw for 10 seconds.
            ClosedError: the replay was closed. UsedByTwoThreads: another thread is inside a method of this sampler.
        """
        deadline = deadline_of(timeout)
        source = self.source
        memory = source.memory()
        source.wait_for_limiter(deadline)
        source.fill(memory, self._all_rows, deadline)
        source.finish(memory, self._all_rows)
        return memory.batch()

    def __repr__(self) -> str:
        return f"<Sampler of {self.source.path} batch_size={self.source.batch_size}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Sampler belongs to one process: pass the replay and call its `sampler` there")

    @property
    def stats(self) -> SamplerStats:
        """Rows drawn, lapped and drawn again, and the time waited."""
        return self.source.stats

    @property
    def due(self) -> bool:
        """Whether samplers are a batch behind, by the replay's limiter; False without a limiter."""
        return bool(self.source.due)

    @property
    def prioritized(self) -> Prioritized | None:
        """The options of prioritized drawing; None for uniform drawing."""
        return self.source.prioritized

    @one_thread
    def update_priorities(self, index: ArrayLike, priority: ArrayLike) -> None:
        """Gives drawn transitions or sequences new priorities, usually their prediction errors.

        Rows overwritten meanwhile, or never drawn by this sampler, are ignored and counted in `stats.ignored`.

        Args:
            index: integers (n,), from `batch.index`.
            priority: (n,), at least 0, finite to the power of alpha too; of two for one index, the later counts.
                Tensors may be on any device, and may require gradients.

        Raises:
            ValueError: a priority is NaN, infinite or negative (the error names the row), or there is not one for each
                index; nothing was changed. TypeError: the sampler draws uniformly. ClosedError: the replay was closed.
        """
        self.source.update_priorities(index, priority)

    @one_thread
    def clear(self) -> None:
        """From now on draws only transitions that are written later, and waits until there are min_size of them.

        Other samplers are not concerned, and nothing is erased. No draw reaches back across this point either: a stack
        at the first later transition would, so such transitions are not drawn.
        """
        self.source.clear()

    @one_thread
    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The generator and the priorities as arrays, for `load_state_dict` or `ReplayBuffer.save`."""
        return self.source.state_dict()

    @one_thread
    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restores the state of a sampler with the same options of the same replay, or of a save of it.

        Raises ValueError: a part is missing, invalid, or of another shape, dtype or sampler; TypeError: the state is
        not a dict. Nothing was changed.
        """
        self.source.load_state_dict(state)
