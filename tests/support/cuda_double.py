"""A double of CUDA: tensors on the CPU stand for a device's, and its streams work when something waits for them.

Whoever reads too early finds garbage, and memory that is overwritten too early arrives overwritten. A copy from or to a
slot of shared memory stops in its middle, for `halfway`.
"""

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from marlcore.memory import native
from marlcore.transitions import Batch

COPIED = {  # by the C core, bytes of rows
    "mc_lane_append": lambda lane, rows, _: rows * lane.column[0].size,
    "mc_lane_read": lambda lane, _, rows, __: rows * lane.column[0].size,
    "mc_lane_read_newest": lambda lane, _: lane.column[0].size,
    "mc_lane_finish": lambda lane, _, __, given: lane.column[0].size - given,
}


class Stream:
    unseen = False  # whether it has worked since another stream waited for it: see GraphDouble

    def __init__(self, device: Any = None) -> None:
        self.device, self.work, self.done = device, deque[Callable[[], Any]](), 0
        self._lock = threading.RLock()

    def record_event(self) -> "Event":
        with self._lock:
            return Event(self, self.done + len(self.work))

    def wait_event(self, event: "Event") -> None:
        event.synchronize()  # what this stream does after that is done at once

    def wait_stream(self, other: "Stream") -> None:
        other.synchronize()
        other.unseen = False

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def work_until(self, end: int) -> None:
        with self._lock:
            while self.done < end:
                self.done += 1
                self.work.popleft()()


class Event:
    def __init__(self, stream: Stream, end: int) -> None:
        self.synchronize = partial(stream.work_until, end)


class CudaDouble:
    """`torch.cuda` and the CUDA runtime.

    Attributes:
        registered: bytes of registered memory by address.
        refuses, refusal: whether it registers nothing, and whether the next kernel would raise that.
        wrong: what CUDA would not forgive.
        by_device, by_cpu, pinned: bytes copied between host and device, by the C core, and of pinned memory.
        pinned_at: the addresses of pinned memory.
        current: the stream of callers that chose none.
        halfway: called once, in the middle of the next copy from or to a slot.
    """

    def __init__(self, monkeypatch: Any) -> None:
        self.registered: dict[int, int] = {}
        self.refuses = self.refusal = False
        self.wrong: list[str] = []
        self.by_device = self.by_cpu = self.pinned = 0
        self.pinned_at: list[range] = []
        self.current = Stream()
        self.halfway: Callable[[], object] = lambda: None
        self._chosen = threading.local()
        self._core, self._empty, self._ones = native.lib, torch.empty, torch.ones
        self._real = {name: getattr(torch.Tensor, name) for name in ("copy_", "to", "contiguous")}
        for name in self._real:
            double = getattr(self, f"_{name}")
            monkeypatch.setattr(torch.Tensor, name, lambda *args, _double=double, **options: _double(*args, **options))
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
        of_torch = {"stream": self._stream, "device": nullcontext, "cudart": lambda: self, "Stream": Stream}
        for name, value in (of_torch | {"current_stream": lambda _: self.current}).items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch, "empty", self._pinning_empty)
        monkeypatch.setattr(torch, "ones", self._kernel)
        monkeypatch.setattr(native, "lib", self)
        for module in ("accelerator", "weights.modules"):
            monkeypatch.setattr(f"marlcore.{module}.kind_of", lambda _: "cuda")

    def __getattr__(self, name: str) -> Any:
        """The C core's calls."""
        call = getattr(self._core, name)

        def counted(*args: Any) -> Any:
            self.by_cpu += COPIED[name](*args)
            return call(*args)

        return counted if name in COPIED else call

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802
        if self.refuses:
            self.refusal = True
            return 712  # cudaErrorHostMemoryAlreadyRegistered
        self._expect(address not in self.registered, "registers memory twice")
        self.registered[address] = nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self._expect(is_mapped(address, self.registered.pop(address, 1 << 40)), "unregisters memory that is gone")
        return 0

    @property
    def chosen(self) -> Stream:
        """The calling thread's stream."""
        return getattr(self._chosen, "stream", self.current)

    def _expect(self, fact: bool, wrong: str) -> None:
        if not fact:
            self.wrong.append(wrong)

    @contextmanager
    def _stream(self, stream: Stream) -> Iterator[None]:
        self._chosen.stream = stream
        yield
        del self._chosen.stream

    def _kernel(self, *size: int, device: Any = None, **options: Any) -> Any:
        if self.refusal:
            self.refusal = False
            raise RuntimeError("CUDA error: part or all of the requested memory range is already mapped")
        return self._ones(*size, **options)

    def _pinning_empty(self, *args: Any, pin_memory: bool = False, **options: Any) -> Any:
        made = self._empty(*args, **options)
        if pin_memory and args != (1,):  # which only asks whether that is possible
            self.pinned += made.nbytes
            self.pinned_at.append(range(made.data_ptr(), made.data_ptr() + made.nbytes))
        return made

    def _to(self, tensor: Any, *args: Any, **options: Any) -> Any:
        if not any(isinstance(arg, torch.device) and arg.type == "cuda" for arg in args):
            return self._real["to"](tensor, *args, **options)
        self._expect(options == {"non_blocking": True} and tensor.is_contiguous(), "a copy that makes the CPU wait")
        moved, address = self._empty(tensor.shape, dtype=tensor.dtype), tensor.data_ptr()
        ctypes.memset(moved.data_ptr(), 0xA5, moved.nbytes)
        self.by_device += moved.nbytes
        # By the address alone, which holds no memory: a device does not, either.
        self._chosen.stream.work.append(lambda: ctypes.memmove(moved.data_ptr(), address, moved.nbytes))
        return moved

    def _contiguous(self, tensor: Any) -> Any:
        if tensor.is_contiguous() or not hasattr(self._chosen, "stream"):
            return self._real["contiguous"](tensor)
        dense = self._empty(tensor.shape, dtype=tensor.dtype)
        self._chosen.stream.work.append(lambda: self._real["copy_"](dense, tensor))
        return dense

    def _copy_(self, to: Any, source: Any, non_blocking: bool = False) -> Any:
        if not in_shm(to.data_ptr(), source.data_ptr()):
            return self._real["copy_"](to, source, non_blocking)
        self.by_device += to.nbytes
        self.current.work.append(partial(self._copy_by_halves, to, source))
        if not non_blocking:
            self.current.synchronize()
        return to

    def _copy_by_halves(self, to: Any, source: Any) -> None:
        half = to.nbytes // 2
        ctypes.memmove(to.data_ptr(), source.data_ptr(), half)
        halfway, self.halfway = self.halfway, lambda: None
        halfway()
        ctypes.memmove(to.data_ptr() + half, source.data_ptr() + half, to.nbytes - half)


def same(found: Any, expected: Batch) -> None:
    """Checks that every field of a TorchBatch equals the Batch's."""
    for name, value in vars(expected.torch()).items():
        got = getattr(found, name)
        if isinstance(value, dict):
            assert got.keys() == value.keys() and all(got[key].equal(value[key]) for key in value), name
        else:
            assert got is value is None or got.equal(value), name


def mappings(under: str = "") -> Iterator[tuple[int, int]]:
    """The first byte and the end of each mapping of this process, of files in a directory if one is given."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if under in line:
            first, end = line.partition(" ")[0].split("-")
            yield int(first, 16), int(end, 16)


def is_mapped(address: int, nbytes: int) -> bool:
    at = address
    for first, end in mappings():
        at = end if first <= at < end else at
    return at >= address + nbytes


def in_shm(*addresses: int) -> bool:
    """Whether any of them is in a segment."""
    return any(first <= address < end for first, end in mappings(" /dev/shm/") for address in addresses)
