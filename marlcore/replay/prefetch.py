"""Prefetching: a thread draws the next batches while the caller uses the last one; the kernels release the GIL.

with marlcore.Prefetch(replay.sampler(256), depth=2) as batches:
    batch = batches.sample()
"""

import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, overload

from numpy.typing import NDArray

from ..checks import brief, check_type, check_whole
from ..closing import Closing
from ..fixed import fixed
from ..memory import invalidate_after_fork
from ..transitions import Batch
from .prefetch_work import Mover, Work

if TYPE_CHECKING:
    import torch

B = TypeVar("B")
Drawn = TypeVar("Drawn", covariant=True)


class _Sampler(Protocol[Drawn]):
    @property
    def stats(self) -> Any: ...
    def can_sample(self) -> bool: ...
    def sample(self) -> Drawn: ...


@fixed()
class Prefetch(Generic[B], Closing):
    """Draws a sampler's batches ahead of time, for one consumer thread, which must not use the sampler itself.

    A second thread draws whenever fewer than `depth` batches are ready, so a batch may lag behind the newest
    transitions and priorities by `depth` batches.

    If a signal handler raises in any method, as for KeyboardInterrupt, the object stays usable. In `sample` this may
    lose the one batch about to be returned; no batch is repeated or out of order.

    Attributes:
        stats: the sampler's counters; batches that are ready count as drawn.
    """

    @overload
    def __init__(
        self, sampler: _Sampler[B], *, depth: int = 2, device: Literal["cpu"] = ..., pin_memory: Literal[False] = ...
    ) -> None: ...
    @overload
    def __init__(
        self: "Prefetch[Any]",
        sampler: _Sampler[Batch],
        *,
        depth: int = 2,
        device: "torch.device | str" = "cpu",
        pin_memory: bool = False,
    ) -> None: ...
    def __init__(
        self, sampler: _Sampler[Any], *, depth: int = 2, device: "torch.device | str" = "cpu", pin_memory: bool = False
    ) -> None:
        """Starts drawing.

        Args:
            sampler: a Sampler, a Mixture, or any object with the same methods.
            depth: the largest number of ready batches, at least 1.
            device: the device of the batches. For "cpu", a batch is the sampler's Batch. For a GPU, it is a TorchBatch,
                copied on the second thread's own stream; the caller's current stream waits for the copies.
            pin_memory: matters for "cpu" only. True: a batch is a TorchBatch in pinned memory, so that the caller's own
                copies to a GPU, `tensor.to(device, non_blocking=True)`, overlap with CPU work.

        Raises:
            TypeError: the sampler lacks a method, or pin_memory is no bool. ValueError: depth is out of range, or the
            device is no CPU or CUDA device. RuntimeError: memory cannot be pinned, since there is no GPU.
        """
        if not all(callable(getattr(sampler, name, None)) for name in ("sample", "can_sample")):
            raise TypeError(f"sampler: expected a sampler, such as replay.sampler(256), got {brief(sampler)}")
        check_whole("depth", depth)
        check_type("pin_memory", pin_memory, bool)
        mover = None if str(device) == "cpu" and not pin_memory else Mover(device)
        self._work = Work(sampler, int(depth), mover)
        # The thread references only its work, so that an abandoned Prefetch is collected and ends the thread. At the
        # interpreter's exit, the finalizer runs while the thread can still run.
        thread = threading.Thread(target=self._work.run, name="marlcore-prefetch", daemon=True)
        self._finalizer = weakref.finalize(self, self._work.stop, thread)
        self._stop = partial(self._work.stop, thread)
        invalidate_after_fork(self)
        self._work.start(thread)

    def sample(self, n: int | None = None, *, timeout: float | None = None) -> B:
        """Returns the next batch: a ready one, otherwise the next draw.

        Args:
            n: rows of the batch; None: as many as the sampler draws by itself. If that differs from the last call, the
                ready batches are dropped, and the thread draws batches of the new size.
            timeout: seconds to wait for data; None does not wait for data. A draw that has begun is always awaited.

        Raises:
            NotEnoughData: no batch is ready and the sampler lacks data, and there is no timeout.
            TimeoutError: the sampler still lacked data after the timeout.
            ClosedError: `close` was called, or an error has ended the thread and was raised before.
            Exception: an error has ended the thread; it is raised once, after the last batch was returned.
        """
        if n is not None:
            check_whole("n", n)
        batch: Any = self._work.take(timeout, n)
        return batch if self._work.mover is None else self._work.mover.arrive(batch)  # type: ignore[return-value]

    def can_sample(self) -> bool:
        """Whether `sample` would return a batch, now or when the current draw ends."""
        return self._work.can_take()

    def update_priorities(self, index: Any, priority: Any) -> None:
        """Calls the sampler's method after the current draw, if any; all later draws use the new priorities."""
        self._work.call("update_priorities", index, priority)

    def clear(self) -> None:
        """Calls the sampler's method, and drops the ready batches."""
        self._work.call("clear", drop=True)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Returns the sampler's state after the current draw, if any. The state does not contain the ready batches."""
        return self._work.call("state_dict")  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Calls the sampler's method, and drops the ready batches unless the method raises."""
        self._work.call("load_state_dict", state, drop=True)

    @property
    def stats(self) -> Any:
        return self._work.sampler.stats

    def close(self) -> None:
        """Ends the thread and releases the ready batches; repeated calls are harmless."""
        self._stop()
        self._finalizer.detach()

    def forked(self) -> None:
        """Refuses further use in a forked child, which lacks the thread."""
        self._finalizer.detach()
        self._work.forked()

    def __reduce__(self) -> Any:
        raise TypeError("a Prefetch belongs to one process: pass the replay and make another there")
