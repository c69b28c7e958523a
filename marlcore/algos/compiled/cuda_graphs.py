"""Updates by CUDA graphs: one launch repeats all operations of a step, on tensors that stay where they are.

The first calls run on a side stream, the next one is captured, and all later ones are replays, as in torch's
documentation ("CUDA graphs") and in LeanRL (https://github.com/meta-pytorch/LeanRL). A graph repeats operations and
addresses, not Python: schedules fill tensors that graphs read, and steps with other operations have their own graphs.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from ...accelerator import kind_of, part_of, register
from ...checks import brief
from ...interfaces import Update
from ...observations import each
from ...transitions import Batch, memory_of
from ..bases.actor_critic import DelayedPolicyTrainer
from ..bases.clipped_policy import ClippedPolicyTrainer, Minibatch
from ..dqn import DQNTrainer
from ..sac import SACTrainer

_UNREAD = ("numbers", "terminated", "truncated", "valid", "policy_version")
WARM_UPS = 3  # calls in which libraries take their memory; as many as torch's make_graphed_callables makes


def can_capture(trainer: Any) -> bool:
    """Whether `capture` serves a trainer: DQN's, PPO's, MAPPO's, SAC's or TD3's own, without memory, on a CUDA device.

    It serves no PPO with a single step a batch, since that step shares its forward pass with the advantages.
    """
    kind = type(trainer)
    if kind is ClippedPolicyTrainer:
        fits = trainer.hyper.epochs > 1 or trainer.hyper.minibatch_size < trainer.hyper.batch_size
    else:
        fits = kind in (DQNTrainer, SACTrainer, DelayedPolicyTrainer) and getattr(trainer.hyper, "cell", None) is None
    return fits and kind_of(trainer.optimizers[0].tensors[0]) == "cuda"


def capture(trainer: Any, module: torch.nn.Module, prioritized: bool) -> None:
    """Makes CUDA graphs do the steps of `module`'s trainer, which then return priorities only if `prioritized`.

    An update's results are overwritten by the next update.
    """
    for optimizer in trainer.optimizers:
        optimizer.make_capturable()
    from_queue = isinstance(trainer, ClippedPolicyTrainer)
    graphs = Graphs(trainer, module)
    trainer.step = MinibatchStep(trainer, graphs) if from_queue else ReplayStep(trainer, graphs, prioritized)
    trainer.takes_arrays = not from_queue


class Graphs:
    """Calls functions without arguments, each by a CUDA graph once it was called `WARM_UPS` times under its key.

    All graphs share memory, so a call overwrites the results of every earlier call.
    """

    def __init__(self, trainer: Any, module: torch.nn.Module) -> None:
        self._name, self._module = trainer.hyper.owner, module
        self._generator = getattr(trainer, "generator", None)
        self.device = trainer.optimizers[0].tensors[0].device
        self._stream: Any = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._calls: Counter[Any] = Counter()
        self._captured: dict[Any, tuple[Any, Any]] = {}  # graphs and their results

    def call(self, key: Any, function: Callable[[], Any]) -> Any:
        """Calls a function, which must make the same operations on the same tensors at each call with this key."""
        if key not in self._captured:
            self._calls[key] += 1
            if self._calls[key] <= WARM_UPS:
                return self.call_aside(function)
            self._captured[key] = self._capture(function)
        graph, results = self._captured[key]
        graph.replay()
        return results

    def call_aside(self, function: Callable[[], Any]) -> Any:
        """Calls a function on the captures' stream, so that autograd binds its nodes of parameters to this stream."""
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            results = function()
        current.wait_stream(self._stream)
        return results

    def _capture(self, function: Callable[[], Any]) -> tuple[Any, Any]:
        """Raises RuntimeError if CUDA cannot capture the function, for example because it waits for the device."""
        graph, cause = torch.cuda.CUDAGraph(), list[Exception]()
        how: dict[str, Any] = {"pool": self._pool, "stream": self._stream, "capture_error_mode": "thread_local"}
        before = self._places()
        try:
            with torch.cuda.device(self.device):
                if self._generator is not None and self._generator.device == self.device:
                    graph.register_generator_state(self._generator)
                with torch.cuda.graph(graph, **how), _first_of(cause):
                    results = function()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise self._refusal(brief((*cause, error)[0])) from error
        if moved := [name for name, place in self._places().items() if place != before.get(name)]:
            raise self._refusal(f"its network replaces {', '.join(moved)}: write into tensors in place")
        return graph, results

    def _places(self) -> dict[str, int]:
        """Returns the addresses of the module's tensors by name; graphs keep the addresses of the capture."""
        tensors = chain(self._module.named_parameters(), self._module.named_buffers())
        return {name: tensor.data_ptr() for name, tensor in tensors}

    def _refusal(self, cause: str) -> RuntimeError:
        expected = f"expected off or default, since CUDA graphs cannot capture the update of {self._name}"
        return RuntimeError(f"learner.compile: {expected} ({cause})")


@contextmanager
def _first_of(errors: list[Exception]) -> Iterator[None]:
    """Notes an error, since the end of a failed capture raises another one."""
    try:
        yield
    except Exception as error:
        errors.append(error)
        raise


class Fields:
    """Keeps a copy of a batch's tensors in `batch`; `load` overwrites the copy with another batch's tensors."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        tensors, form = tree_flatten(dict(fields))
        self._tensors = [torch.clone(tensor, memory_format=torch.contiguous_format) for tensor in tensors]
        self.batch = SimpleNamespace(**tree_unflatten(self._tensors, form))

    def load(self, fields: Mapping[str, Any]) -> None:
        torch._foreach_copy_(self._tensors, tree_leaves(dict(fields)))


class Block:
    """A copy, on a device, of the memory that holds a sampler's batch, with the batch's fields as parts of the copy.

    Arrays outside of that memory, which no step reads, are None.
    """

    def __init__(self, batch: Batch, memory: NDArray[np.uint8], device: torch.device) -> None:
        host = torch.from_numpy(memory)
        self._copy = torch.empty_like(host, device=device)
        part = part_of(host, self._copy)
        fields = {name: value for name, value in vars(batch.torch()).items() if value is not None}
        self.batch = SimpleNamespace(**{name: each(part, value) for name, value in fields.items()})

    def load(self, memory: NDArray[np.uint8]) -> None:
        self._copy.copy_(torch.from_numpy(memory), non_blocking=True)


class ReplayStep:
    """Makes a trainer's steps on batches of a replay; batches of other sizes than the first make steps without graphs.

    If CUDA has registered the memory of a sampler's batch, graphs begin by copying it. The sampler draws into two
    memories in turn, each with graphs of its own, since a graph repeats addresses. Batches in other memory, or on the
    device, are copied before the replay. A graph ends with the copy of the priorities to the host.
    """

    def __init__(self, trainer: Any, graphs: Graphs, prioritized: bool) -> None:
        self._trainer, self._step, self._prioritized = trainer, trainer.step, prioritized
        self._graphs = graphs
        self._form: Fields | Block | None = None
        self._priority = torch.empty(0)
        self._reading: tuple[Any, Any] | None = None  # the last replay's event, and the batch that it may still read

    def __call__(self, batch: Any) -> Update:
        trainer, device, rows = self._trainer, self._graphs.device, len(batch.reward)
        memory = memory_of(batch) if isinstance(batch, Batch) else None
        if memory is None and isinstance(batch, Batch):  # its sampler is gone
            batch = batch.torch(device)
        source: Any = _fields(batch) if memory is None else memory.root
        if self._form is None:
            self._form = Fields(source) if memory is None else Block(batch, source, device)
            self._priority = torch.empty(rows if self._prioritized else 0, pin_memory=self._prioritized)
        if rows != len(self._form.batch.reward):
            other = batch if memory is None else batch.torch(device)
            return self._graphs.call_aside(partial(self._step, other))  # type: ignore[no-any-return]
        load = partial(self._form.load, source)
        inside = memory is not None and register(source, device)
        if not inside:
            load()
        updates = trainer.updates + 1
        key = updates % trainer.period == 0, memory if inside else None
        metrics = self._graphs.call(key, partial(self._run, load if inside else None))
        trainer.updates = updates  # a replay runs no Python
        return self._finished(batch, metrics)

    def _run(self, load: Callable[[], None] | None) -> Mapping[str, Any]:
        if load is not None:
            load()
        update = self._step(self._form.batch)  # type: ignore[union-attr]
        if self._prioritized:
            self._priority.copy_(update.priority, non_blocking=True)
        return update.metrics  # type: ignore[no-any-return]

    def _finished(self, batch: Any, metrics: Mapping[str, Any]) -> Update:
        """Waits for the priorities or, without them, until the device has read the batch before this one."""
        event = torch.cuda.current_stream(self._graphs.device).record_event()
        if self._prioritized:
            event.synchronize()
            return Update(metrics, self._priority)
        last, self._reading = self._reading, (event, batch)
        if last is not None:
            last[0].synchronize()
        return Update(metrics)


class MinibatchStep:
    """Makes PPO's steps; advantages, the order of rows and the KL test that ends the passes stay outside the graphs.

    Minibatches of other sizes than the first, such as a smaller last one, make steps without graphs.
    """

    def __init__(self, trainer: Any, graphs: Graphs) -> None:
        self._step, self._graphs = trainer.step, graphs
        self._bonus = torch.zeros((), device=self._graphs.device)
        self._form: Fields | None = None

    def __call__(self, rows: Minibatch, bonus: float) -> torch.Tensor:
        fields = rows._asdict()
        form = self._form = self._form or Fields(fields)
        if len(rows.value) != len(form.batch.value):
            return self._graphs.call_aside(partial(self._step, rows, bonus))  # type: ignore[no-any-return]
        form.load(fields)
        self._bonus.fill_(bonus)
        metrics: torch.Tensor = self._graphs.call(None, lambda: self._step(form.batch, self._bonus))
        return metrics.clone()


def _fields(batch: Any) -> dict[str, Any]:
    """Returns the tensors of a batch by name, except absent tensors and fields that no step reads."""
    return {name: value for name, value in vars(batch).items() if name not in _UNREAD and value is not None}
