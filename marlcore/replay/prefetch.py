"""Prefetching: a thread draws the next batches while the caller uses the last one; the kernels release the GIL.

    with marlcore.Prefetch(replay.sampler(256), depth=2) as batches:
        batch = batches.sample()

The thread draws whenever fewer than `depth` batches are ready; the caller gets them in the order of the draws.
"""

from __future__ import annotations

import _thread
import threading
import time
import weakref
from collections import deque
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, overload

from numpy.typing import NDArray

from ..checks import came, check_whole
from ..errors import ClosedError, MarlcoreError, NotEnoughData, StaleHandle
from ..memory import WAIT_SLICE_S, check_interruption, invalidate_after_fork
from ..transitions import Batch, TorchBatch

if TYPE_CHECKING:
    import torch

__all__ = ["Prefetch"]

RETRY_S = 0.005


B = TypeVar("B")
Drawn = TypeVar("Drawn", covariant=True)


class _Sampler(Protocol[Drawn]):
    @property
    def stats(self) -> Any: ...
    def can_sample(self) -> bool: ...
    def sample(self, timeout: float | None = None) -> Drawn: ...


class Prefetch(Generic[B]):
    """A sampler whose batches are drawn ahead of time, for one consumer thread; it takes over the sampler.

    A batch may lag behind the newest transitions and priorities by the `depth` batches drawn before them.

    If a signal handler raises in any method, as for KeyboardInterrupt, the object stays usable. In `sample` this may
    lose the one batch about to be returned; no batch is repeated or out of order.

    Attributes:
        stats: the sampler's; batches that are ready count as drawn.
    """

    @overload
    def __init__(
        self,
        sampler: _Sampler[B],
        depth: int = 2,
        device: Literal["cpu"] = "cpu",
        pin_memory: Literal[False] = False,
    ) -> None: ...
    @overload
    def __init__(
        self: Prefetch[TorchBatch],
        sampler: _Sampler[Batch],
        depth: int = 2,
        *,
        device: Literal["cuda"],
        pin_memory: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: Prefetch[TorchBatch],
        sampler: _Sampler[Batch],
        depth: int = 2,
        device: torch.device | str = "cpu",
        *,
        pin_memory: Literal[True],
    ) -> None: ...
    @overload
    def __init__(
        self: Prefetch[Batch | TorchBatch],
        sampler: _Sampler[Batch],
        depth: int = 2,
        device: torch.device | str = "cpu",
        pin_memory: bool = False,
    ) -> None: ...
    def __init__(
        self, sampler: _Sampler[Any], depth: int = 2, device: torch.device | str = "cpu", pin_memory: bool = False
    ) -> None:
        """Starts drawing.

        Args:
            sampler: a sampler of `ReplayBuffer.sampler`, a Mixture, or any object with their methods.
            depth: the largest number of ready batches, at least 1.
            device: the device of the batches. On "cpu" they are the sampler's Batch. For another device they are
                TorchBatch, copied through pinned memory on the thread's own stream and returned after their arrival.
            pin_memory: only matters on "cpu": TorchBatch in pinned memory, from which the caller's own copies to a
                device, `tensor.to(device, non_blocking=True)`, overlap with CPU work. Batches for a device always
                pass through pinned memory, and are on the device when returned.

        Raises:
            TypeError: the sampler lacks a method. ValueError: depth is out of range, or the device is of another kind.
            RuntimeError: memory cannot be pinned, since there is no device.
        """
        if not all(callable(getattr(sampler, name, None)) for name in ("sample", "can_sample")):
            raise TypeError(f"sampler: expected one, such as replay.sampler(256) makes, got {came(sampler)}")
        check_whole("depth", depth)
        mover = None if str(device) == "cpu" and not pin_memory else _Mover(device)
        self._work = _Work(sampler, int(depth), mover)
        # The thread references only its work, so that an abandoned Prefetch is collected and ends the thread. At the
        # interpreter's exit, the finalizer runs while the thread can still run.
        thread = threading.Thread(target=self._work.run, name="marlcore-prefetch", daemon=True)
        self._finalizer = weakref.finalize(self, self._work.stop, thread)
        self._stop = partial(self._work.stop, thread)
        invalidate_after_fork(self)
        self._work.start(thread)

    def sample(self, timeout: float | None = None) -> B:
        """The next batch: one that is ready, otherwise the next draw.

        Args:
            timeout: seconds to wait for data; None does not wait for data. A draw that has begun is always awaited.

        Raises:
            NotEnoughData: without a timeout, no batch is ready and the sampler lacks data.
            TimeoutError: the same, after the timeout.
            ClosedError: `close` was called, or an error that was raised before has ended the thread.
            Exception: the error that ended the thread, once, after the batches drawn before it.
        """
        taken = self._work.take(timeout)
        if self._work.mover is not None:
            self._work.mover.arrive(taken)
        batch: B = taken
        return batch

    def can_sample(self) -> bool:
        """Whether `sample` would return a batch, now or when the current draw ends."""
        return self._work.can_take()

    def update_priorities(self, index: Any, priority: Any) -> None:
        """See the sampler's method. Waits for the current draw, if any; applies to all later ones."""
        self._work.call("update_priorities", index, priority)

    def clear(self) -> None:
        """See the sampler's method. Drops the ready batches."""
        self._work.call("clear", drop=True)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The sampler's state after the current draw, if any; for `ReplayBuffer.save`.

        Batches that are ready count as drawn: a resumed run does not get them.
        """
        state: dict[str, NDArray[Any]] = self._work.call("state_dict")
        return state

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """See the sampler's method. Drops the ready batches, so that the next batch is the state's first.

        Raises: see the sampler's method; then the ready batches stay.
        """
        self._work.call("load_state_dict", state, drop=True)

    @property
    def stats(self) -> Any:
        return self._work.sampler.stats

    def close(self) -> None:
        """Ends the thread and releases the ready batches; repeated calls are harmless."""
        self._stop()
        self._finalizer.detach()

    def forked(self) -> None:
        """In a forked child, which lacks the thread: refuses further use."""
        self._finalizer.detach()
        self._work.forked()

    def __enter__(self) -> Prefetch[B]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a Prefetch belongs to one process: pass the replay and make another there")


class _Bell:
    """Wakes one waiting thread, or makes its next wait return at once.

    Ring after each change of state, and check the state before each wait: an interrupted wait may have eaten a ring.
    """

    def __init__(self) -> None:
        # SimpleQueue is in C: unlike threading.Condition and Event, it holds no lock after a handler's exception.
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        self._rings.put(None)

    def wait(self, seconds: float | None = None) -> None:
        """Returns after a ring, or after `seconds`."""
        try:
            self._rings.get(timeout=seconds)
            while True:
                self._rings.get_nowait()
        except Empty:
            pass


class _Work:
    """The state shared by the thread and its consumer. The consumer takes no lock: an interrupt could leave it held.

    Each side changes a field by one store or one call into C, rings, and reads the other's fields. The thread owns the
    sampler while it is `_drawing`; the consumer owns it while it is `_wanted` and the thread is not drawing. Each side
    first sets its flag and then checks the other's (Dekker's algorithm; the GIL keeps the order).
    """

    def __init__(self, sampler: Any, depth: int, mover: _Mover | None) -> None:
        self.sampler = sampler
        self.mover = mover
        self._depth = depth
        self._ready: deque[tuple[int, Any]] = deque()  # each with the value of `_dropped` at its draw
        self._drawing = self._wanted = False
        self._attempts = 0  # draws begun so far
        self._dropped = 0  # times that the ready batches were dropped
        self._starved = 0  # the last attempt that found too little data
        self._shortage = "no batch was drawn yet"
        self._error: BaseException | None = None  # raised by a draw
        self._ended: tuple[type[MarlcoreError], str] | None = None  # the error of every further call
        self._began = self._over = False  # of the thread
        self._to_thread, self._to_consumer = _Bell(), _Bell()

    def start(self, thread: threading.Thread) -> None:
        """Returns once the thread runs. Raises RuntimeError: the system has no more threads."""
        # Thread.start waits on a Condition; here it runs in a second thread, where no signal handler interrupts it.
        _thread.start_new_thread(self._start, (thread,))
        while not self._began:
            self._to_consumer.wait(WAIT_SLICE_S)
        self._raise_if_over()

    def _start(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError as error:
            self._error = error
            self._began = self._over = True
            self._to_consumer.ring()

    def run(self) -> None:
        """The thread's function: draws until it is told to end or a draw raises."""
        self._began = True
        self._to_consumer.ring()
        try:
            while self._ended is None:
                if self._wanted or len(self._ready) >= self._depth:
                    self._to_thread.wait()
                elif not self._draw():
                    self._to_thread.wait(RETRY_S)
        except BaseException as error:  # raised again in the consumer
            self._error = error
        finally:
            self._over = True
            self._to_consumer.ring()

    def _draw(self) -> bool:
        """Draws one batch; False if a draw found too little data."""
        self._drawing = True
        try:
            if self._wanted:
                return True
            self._attempts += 1
            dropped = self._dropped
            batch = self.sampler.sample()
        except NotEnoughData as error:
            self._shortage, self._starved = str(error), self._attempts
            return False
        finally:
            self._drawing = False
            self._to_consumer.ring()
        if self.mover is not None:
            batch = self.mover.move(batch)
        self._ready.append((dropped, batch))
        self._to_consumer.ring()
        return True

    def take(self, timeout: float | None) -> Any:
        deadline = time.monotonic() + (0.0 if timeout is None else timeout)
        asked = self._attempts
        self.check_open()
        self._wanted = False  # an interrupted call may have left it set
        self._to_thread.ring()  # it may be sleeping for lack of data
        while True:
            try:
                dropped, batch = self._ready.popleft()
            except IndexError:
                self._raise_if_over()
            else:
                self._to_thread.ring()
                if dropped == self._dropped:
                    return batch
                continue
            # Like a sampler, it tries once more after the deadline; `not <` makes a NaN count as past.
            if self._starved > asked and not time.monotonic() < deadline:
                raise (NotEnoughData if timeout is None else TimeoutError)(self._shortage)
            check_interruption()
            self._to_consumer.wait(WAIT_SLICE_S)

    def can_take(self) -> bool:
        self._raise_if_over()
        return bool(self._ready) or bool(self.call("can_sample"))

    def call(self, name: str, *args: Any, drop: bool = False) -> Any:
        """The result of a sampler's method, called between draws; `drop` then drops the ready batches.

        Raises TypeError: the sampler has no such method.
        """
        self.check_open()
        method = getattr(self.sampler, name, None)
        if method is None:
            raise TypeError(f"{name}: expected a sampler that has it, got {came(self.sampler)}")
        try:
            self._wanted = True
            while self._drawing:
                self._to_consumer.wait(WAIT_SLICE_S)
            result = method(*args)
            if drop:
                self._dropped += 1
                self._ready.clear()
        finally:
            self._wanted = False
            self._to_thread.ring()
        return result

    def check_open(self) -> None:
        if self._ended is not None:
            kind, why = self._ended
            raise kind(why)

    def _raise_if_over(self) -> None:
        """Raises the error that ended drawing, with the thread's traceback; every later call raises ClosedError."""
        self.check_open()
        error = self._error
        if error is not None:
            self._end(ClosedError, f"the prefetch ended: {type(error).__name__}: {error}")
            self._error = None
            raise error

    def _end(self, kind: type[MarlcoreError], why: str) -> None:
        self._ended = self._ended or (kind, why)
        self._to_thread.ring()

    def stop(self, thread: threading.Thread) -> None:
        """Returns when the thread has ended; a thread that has not begun will not draw."""
        self._end(ClosedError, "the prefetch was closed")
        if thread is threading.current_thread():  # the garbage collector may run in the thread itself
            return
        while self._began and not self._over:
            self._to_consumer.wait(WAIT_SLICE_S)
        if thread.is_alive():
            thread.join()  # only now: an interrupted Python join marks the thread as ended
        self._ready.clear()
        self._error = None

    def forked(self) -> None:
        self._to_thread, self._to_consumer = _Bell(), _Bell()
        self._over = True
        self._ended = StaleHandle, "the prefetch was made before a fork; its thread is the parent's"
        self._ready.clear()


class _Mover:
    """Copies batches into pinned memory, and from there to a device on its own stream."""

    def __init__(self, device: torch.device | str) -> None:
        import torch

        self._torch = torch
        try:
            self._device = torch.device(device)
        except (RuntimeError, TypeError):
            raise ValueError(f"device: expected a cpu or a cuda device, got {device!r}") from None
        if self._device.type not in ("cpu", "cuda"):
            raise ValueError(f"device: expected a cpu or a cuda device, got {device!r}")
        torch.empty(1, pin_memory=True)  # without a device this fails here, not in the thread
        self._stream: Any = None
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def move(self, batch: Batch) -> TorchBatch:
        """In the thread: returns when the copies are complete, so that the pinned memory can be reused."""
        torch = self._torch
        found = batch.torch()
        _replace(found, lambda one: torch.empty(one.shape, dtype=one.dtype, pin_memory=True).copy_(one))
        if self._stream is not None:
            with torch.cuda.stream(self._stream):
                pinned = dict(vars(found))
                _replace(found, lambda one: one.to(self._device, non_blocking=True))
                self._stream.record_event().synchronize()
                pinned.clear()  # only now: the device was still reading its memory
        return found

    def arrive(self, batch: TorchBatch) -> None:
        """In the consumer: marks memory allocated on the thread's stream as used by the consumer's."""
        if self._stream is not None:
            stream = self._torch.cuda.current_stream(self._device)
            _replace(batch, lambda one: one.record_stream(stream) or one)


def _replace(batch: TorchBatch, new: Any) -> None:
    """Replaces each tensor by new(tensor); some fields are None, such as the mask of single transitions."""
    for name, value in vars(batch).items():
        if value is not None:
            made = {key: new(one) for key, one in value.items()} if isinstance(value, dict) else new(value)
            setattr(batch, name, made)
