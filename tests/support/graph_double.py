"""A double of CUDA graphs on a CudaDouble: a capture records operations without effect, and a replay repeats them.

A replay reads and writes the addresses of the capture, when its stream works. Results of a capture are garbage until
the first replay. What CUDA refuses in a capture raises what torch raises.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from cuda_double import CudaDouble
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from marlcore.transitions.batch import _memories

aten = torch.ops.aten
WAITS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default, aten.masked_select.default}


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def address_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Graph:
    """A CUDAGraph."""

    def __init__(self, double: "GraphDouble") -> None:
        self._double = double
        self._operations: list[Callable[[], None]] = []
        self._before: dict[int, bytes] = {}  # memory from before the capture that was written in it, by address
        self._made: dict[int, torch.Tensor] = {}  # by address
        self._generators: dict[int, torch.Generator] = {}  # those that may draw, by address

    def register_generator_state(self, generator: torch.Generator) -> None:
        assert self._double.on_device, "its counts would be made on another device"
        self._generators[generator._cdata] = generator

    def record(self, function: Any, args: Any, kwargs: Any) -> Any:
        if function in WAITS:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        if {each._cdata for each in tree_leaves(kwargs) if isinstance(each, torch.Generator)} - self._generators.keys():
            raise RuntimeError("Attempt to increase offset for a CUDA generator not in capture mode.")
        for argument, given in zip(function._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._save(given)
        if function is aten.copy_.default and any(map(self._double.is_host, args[:2])) and not any(args[2:]):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")  # it would block
        if self._double.host_bytes(function, args):
            return self._record_copy(*args[:2])
        if function is not aten.copy_.default and any(map(self._double.is_host, tensors_in(args))):
            return function(*args, **kwargs)  # it makes a tensor of an array
        # Another tensor on the same memory: what a caller puts into its own later does not change the graph.
        args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
        results = function(*args, **kwargs)
        made = [result.detach() for result in tensors_in(results)]
        given_memory = {*map(address_of, tensors_in((args, kwargs)))}
        self._made |= {address_of(each): each for each in made if address_of(each) not in given_memory}
        self._operations.append(partial(self._repeat, function, args, kwargs, made))
        return results

    def _record_copy(self, to: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        """Records a copy of the host's memory by its address alone, which keeps nothing alive."""
        address, size = host.data_ptr(), host.nbytes
        if not any(0 <= address - first < nbytes for first, nbytes in self._double.cuda.registered.items()):
            raise RuntimeError("Cannot copy between CPU and CUDA tensors during CUDA graph capture unless pinned")

        def copy() -> None:
            ctypes.memmove(to.data_ptr(), address, size)
            self._double.copied_by_graphs += size

        self._operations.append(copy)
        return to

    def _save(self, tree: Any) -> None:
        for tensor in tensors_in(tree):
            if (address := address_of(tensor)) not in self._made.keys() | self._before.keys():
                self._before[address] = ctypes.string_at(address, tensor.untyped_storage().nbytes())

    @contextmanager
    def without_effect(self) -> Iterator[None]:
        states = {generator: generator.get_state() for generator in self._generators.values()}
        yield
        for address, content in self._before.items():
            ctypes.memmove(address, content, len(content))
        for address, made in self._made.items():
            ctypes.memset(address, 0xFF, made.untyped_storage().nbytes())
        for generator, state in states.items():
            generator.set_state(state)

    def replay(self) -> None:
        self._double.replays += 1
        self._double.cuda.current.work.extend(self._operations)

    def _repeat(self, function: Any, args: Any, kwargs: Any, results: list[torch.Tensor]) -> None:
        with torch.no_grad(), _disable_current_modes():
            for result, again in zip(results, tensors_in(function(*args, **kwargs)), strict=True):
                if address_of(again) != address_of(result):
                    aten.copy_.default(result, again)  # `Tensor.copy_` is the CudaDouble's


class GraphDouble(TorchDispatchMode):
    """`torch.cuda`'s graphs, while it is entered. The memories of samplers' batches, and pinned memory, are the host's.

    Attributes:
        replays: calls of `replay`.
        copied_by_graphs, copied, allocated: bytes of the host copied by graphs and by other operations, and of results
            of operations outside of graphs.
    """

    def __init__(self, cuda: CudaDouble, monkeypatch: Any) -> None:
        super().__init__()
        self.cuda = cuda
        self.replays = self.copied_by_graphs = self.copied = self.allocated = 0
        self.on_device = False
        self._graph: Graph | None = None
        self._streams = set[Any]()  # which have worked
        doubles = {"CUDAGraph": partial(Graph, self), "graph": self._capture, "graph_pool_handle": object}
        doubles["device"] = self._device
        doubles["is_current_stream_capturing"] = lambda: self._graph is not None
        for name, double in doubles.items():
            monkeypatch.setattr(torch.cuda, name, double)
        monkeypatch.setattr("marlcore.algos.compiled.cuda_graphs.kind_of", lambda _: "cuda")

    @contextmanager
    def _device(self, device: Any) -> Iterator[None]:
        self.on_device = True
        yield
        self.on_device = False

    @contextmanager
    def _capture(self, graph: Graph, pool: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local", "other threads may use the device meanwhile"
        assert self.on_device and stream in self._streams, "libraries have memory for the warm-ups' stream alone"
        self.cuda.current.synchronize()
        with graph.without_effect(), torch.cuda.stream(stream):
            self._graph = graph
            try:
                yield
            except RuntimeError:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")  # noqa: B904
            finally:
                self._graph = None

    def host_bytes(self, function: Any, args: Any) -> int:
        """The bytes that an operation copies from a sampler's memory."""
        return args[1].nbytes if function is aten.copy_.default and self.is_host(args[1]) else 0

    def is_host(self, tensor: torch.Tensor) -> bool:
        memories = (range(memory.address, memory.address + len(memory.root)) for memory in [*_memories.values()])
        return any(tensor.data_ptr() in addresses for addresses in (*memories, *self.cuda.pinned_at))

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._graph is not None:
            return self._graph.record(function, args, kwargs)
        chosen = self.cuda.chosen
        self._streams.add(chosen)
        chosen.unseen = chosen is not self.cuda.current
        assert chosen.unseen or not any(stream.unseen for stream in self._streams), "a stream's results are awaited"
        given = tensors_in((args, kwargs))
        if not given or not all(map(self.is_host, given)):
            self.cuda.chosen.synchronize()
        results = function(*args, **kwargs)
        self.copied += self.host_bytes(function, args)
        storages = {*map(address_of, given)}
        self.allocated += sum(made.nbytes for made in tensors_in(results) if address_of(made) not in storages)
        return results
