"""The state that a Prefetch shares with its thread, and the copies of batches to a GPU."""

import _thread
import threading
import time
import weakref
from collections import deque
from contextlib import nullcontext
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from ..checks import brief, deadline_of
from ..errors import ClosedError, MarlcoreError, NotEnoughData, StaleHandle, TimedOut
from ..lazy import missing
from ..memory import WAIT_SLICE_S, check_interruption
from ..observations import each
from ..transitions import Batch, TorchBatch, memory_of

if TYPE_CHECKING:
    import torch

RETRY_S = 0.005


class Bell:
    """Wakes one waiting thread, or makes its next wait return at once.

    Ring after each change of state, and check the state before each wait: an interrupted wait may have used up a ring.
    """

    def __init__(self) -> None:
        # SimpleQueue is in C: unlike threading.Condition and Event, it holds no lock after a handler's exception.
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        self._rings.put(None)

    def wait(self, seconds: float | None = None) -> None:
        try:
            self._rings.get(timeout=seconds)
            while True:
                self._rings.get_nowait()
        except Empty:
            pass


class Work:
    """The state shared by the thread and its consumer. The consumer takes no lock: an interrupt could leave it held.

    Each side changes a field by one store or C call, then rings the other side, which reads it. The thread owns the
    sampler while `_drawing` is set; the consumer owns it while `_wanted` is set and `_drawing` is not. Each side first
    sets its own flag and then checks the other's (Dekker's algorithm; the GIL keeps the order).
    """

    def __init__(self, sampler: Any, depth: int, mover: "Mover | None") -> None:
        self.sampler = sampler
        self.mover = mover
        self._depth = depth
        self._size: tuple[int, ...] = ()  # the arguments of each draw: a number of rows, or none for the sampler's own
        self._ready: deque[tuple[Any, Any]] = deque()  # each with the values of `_dropped` and `_size` at its draw
        self._drawing = self._wanted = False
        self._attempts = 0  # draws begun so far
        self._dropped = 0  # times that the ready batches were dropped
        self._starved = 0  # the last attempt that found too little data
        self._shortage = "no batch was drawn yet"
        self._error: BaseException | None = None  # raised by a draw
        self._ended: tuple[type[MarlcoreError], str] | None = None  # the error of every further call
        self._began = self._over = False  # whether the thread began, and whether it ended
        self._to_thread, self._to_consumer = Bell(), Bell()

    def start(self, thread: threading.Thread) -> None:
        """Returns once the thread runs. Raises RuntimeError if the system has no more threads."""
        # Thread.start waits on a Condition; here it runs in a second thread, where no signal handler interrupts it.
        _thread.start_new_thread(_start, (thread, weakref.ref(self)))
        while not self._began:
            self._to_consumer.wait(WAIT_SLICE_S)
        self._raise_if_over()

    def not_started(self, error: RuntimeError) -> None:
        self._error = error
        self._began = self._over = True
        self._to_consumer.ring()

    def run(self) -> None:
        """The thread's function: draws until it is told to end or a draw raises."""
        self._began = True
        self._to_consumer.ring()
        try:
            with self.mover or nullcontext():
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
        self._drawing = True
        try:
            if self._wanted:
                return True
            self._attempts += 1
            drawn_for = self._dropped, self._size
            batch = self.sampler.sample(*drawn_for[1])
        except NotEnoughData as error:
            self._shortage, self._starved = str(error), self._attempts
            return False
        except ValueError as error:
            if not drawn_for[1]:
                raise
            batch = error  # only this number of rows is refused
        finally:
            self._drawing = False
            self._to_consumer.ring()
        if self.mover is not None and not isinstance(batch, ValueError):
            batch = self.mover.move(batch)
        self._ready.append((drawn_for, batch))
        self._to_consumer.ring()
        return True

    def take(self, timeout: float | None, n: int | None = None) -> Any:
        deadline = deadline_of(timeout)
        self.check_open()
        self._size = () if n is None else (n,)
        asked = self._attempts
        self._wanted = False  # an interrupted call may have left it set
        self._to_thread.ring()  # it may be sleeping for lack of data
        while True:
            try:
                drawn_for, batch = self._ready.popleft()
            except IndexError:
                self._raise_if_over()
            else:
                self._to_thread.ring()
                if drawn_for == (self._dropped, self._size):
                    if isinstance(batch, ValueError):
                        raise batch
                    return batch
                continue
            # Like a sampler, it tries once more after the deadline.
            if self._starved > asked and (deadline is None or time.monotonic() >= deadline):
                raise (NotEnoughData if timeout is None else TimedOut)(self._shortage)
            check_interruption()
            self._to_consumer.wait(WAIT_SLICE_S)

    def can_take(self) -> bool:
        self._raise_if_over()
        wanted = self._dropped, self._size
        current = bool(self._ready) and self._ready[-1][0] == wanted  # only this thread takes any out
        return current or bool(self.call("can_sample"))

    def call(self, name: str, *args: Any, drop: bool = False) -> Any:
        """Calls a sampler's method between draws, and returns its result; `drop` then drops the ready batches."""
        self.check_open()
        method = getattr(self.sampler, name, None)
        if method is None:
            raise TypeError(f"{name}: expected a sampler with this method, got {brief(self.sampler)}")
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
        """Ends drawing and waits for the thread's end; a thread that has not begun will not draw."""
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
        self._to_thread, self._to_consumer = Bell(), Bell()
        self._over = True
        self._ended = StaleHandle, "the prefetch was made before a fork; its thread is the parent's"
        self._ready.clear()


class Mover:
    """Moves batches into pinned memory or, on a stream of its own, to a device.

    The device copies a sampler's batch from the memory into which it was drawn, while the next one is drawn into other
    memory. Other batches are copied into pinned memory first.
    """

    def __init__(self, device: "torch.device | str") -> None:
        try:
            import torch
        except ModuleNotFoundError as error:
            raise missing("Prefetch to a device", error) from None

        self._torch = torch
        try:
            self._device = torch.device(device)
        except (RuntimeError, TypeError):
            raise ValueError(f"device: expected a cpu or a cuda device, got {device!r}") from None
        if self._device.type not in ("cpu", "cuda"):
            raise ValueError(f"device: expected a cpu or a cuda device, got {device!r}")
        try:
            torch.empty(1, pin_memory=True)  # without a device this fails here, not in the thread
        except RuntimeError as error:
            label = "pin_memory" if self._device.type == "cpu" else "device"
            expected = f"{label}: expected an accelerator, which pins memory"
            raise RuntimeError(f"{expected}, got none ({brief(error)})") from None
        self._stream: Any = None
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._copying: tuple[Any, Any] | None = None  # the last batch's event after its copies, and its host memory

    def move(self, batch: Batch) -> tuple[TorchBatch, Any]:
        """Begins to copy a batch, in the drawing thread; returns it and the event after its copies."""
        moved, memory = batch.torch(), memory_of(batch)
        if self._stream is None or memory is None:
            _replace(moved, self._pinned)
        if self._stream is None:
            return moved, None
        with self._torch.cuda.stream(self._stream):
            host = dict(vars(moved))
            _replace(moved, self._to_device if memory is None else self._parts(memory.root))
            event = self._stream.record_event()
            self._settle()
            self._copying = event, host
        return moved, event

    def arrive(self, moving: tuple[TorchBatch, Any]) -> TorchBatch:
        """Makes the consumer's stream wait for a batch, and tells torch that this stream uses the batch's memory."""
        batch, event = moving
        if event is not None:
            stream = self._torch.cuda.current_stream(self._device)
            stream.wait_event(event)
            _replace(batch, lambda tensor: tensor.record_stream(stream) or tensor)
        return batch

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._settle()

    def _settle(self) -> None:
        """Waits for the last batch's copies, after which the sampler may draw into its memory."""
        if self._copying is not None:
            self._copying[0].synchronize()
            self._copying = None

    def _pinned(self, tensor: "torch.Tensor") -> "torch.Tensor":
        return self._torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)

    def _to_device(self, tensor: "torch.Tensor") -> "torch.Tensor":
        return tensor.to(self._device, non_blocking=True)

    def _parts(self, block: Any) -> Any:
        """Copies a batch's block to the device; returns a function that maps a host tensor to its copy there."""
        from ..accelerator import part_of, register

        register(block, self._stream.device)
        host = self._torch.from_numpy(block)
        part = part_of(host, self._to_device(host))

        def moved(tensor: "torch.Tensor") -> "torch.Tensor":
            found = part(tensor)
            return self._to_device(tensor) if found is None else found.contiguous()

        return moved


def _replace(batch: TorchBatch, new: Any) -> None:
    for name, value in vars(batch).items():
        if value is not None:
            setattr(batch, name, each(new, value))


def _start(thread: threading.Thread, work: weakref.ReferenceType[Work]) -> None:
    """Starts the thread; refers to `work` weakly, since `thread.start` may return after the thread has ended."""
    try:
        thread.start()
    except RuntimeError as error:
        if (waiting := work()) is not None:
            waiting.not_started(error)
