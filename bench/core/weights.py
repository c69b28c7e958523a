"""Rows of the table on weights: publish and pull of a small and of a large network."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from torch import nn

from marlcore import ParameterStore

from ..peers.buffers import import_torchrl
from .work import Row, Scale, Work, installed, memcpy, shared_bytes

MakeModel = Callable[[], nn.Module]


class LockedModel:
    """A model in shared memory that one process publishes to and others pull from, with the lock held."""

    def __init__(self, shared: nn.Module) -> None:
        context = get_context("spawn")
        self.shared = shared.share_memory()
        self.lock = context.Lock()
        self.version = context.Value("q", 0)

    def publish(self, model: nn.Module) -> int:
        with self.lock:
            self.shared.load_state_dict(model.state_dict())
            self.version.value += 1
            return int(self.version.value)

    def pull(self, model: nn.Module) -> None:
        with self.lock:
            model.load_state_dict(self.shared.state_dict())


def small() -> nn.Module:
    """A multilayer perceptron: 69,124 floats in 6 tensors, 0.28 MB."""
    return nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))


def large() -> nn.Module:
    """The network of Mnih et al. 2015 with 18 actions: 1,693,362 floats in 10 tensors, 6.8 MB."""
    convolutions = nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3)
    return nn.Sequential(*convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 18))


def finished(call: Callable[[], Any]) -> Any:
    """The call's result, when a GPU has done all that the call asked for."""
    result = call()
    torch.cuda.synchronize()
    return result


def _handing_over(
    model: nn.Module, publish: Callable[[], object], local: nn.Module, pull: Callable[[], object], pulling: bool
) -> Work:
    if next(model.parameters()).is_cuda:
        publish, pull = partial(finished, publish), partial(finished, pull)

    def check(_: object) -> None:
        with torch.no_grad():
            for tensor in model.parameters():
                tensor += 1
        publish()
        pull()
        expected, pulled = model.state_dict(), local.state_dict()
        assert expected.keys() == pulled.keys()
        assert all(torch.equal(expected[name], pulled[name]) for name in expected)

    return Work(pull, check, prepare=publish) if pulling else Work(publish, check)


@contextmanager
def by_marlcore(_: Scale, make_model: MakeModel, pulling: bool, device: str = "cpu") -> Iterator[Work]:
    model, local = make_model().to(device), make_model().to(device)
    with ParameterStore.create(model) as store:
        publish, pull = store.publisher(model).publish, store.subscriber(local).pull
        yield _handing_over(model, publish, local, pull, pulling)


def by_locks(_: Scale, make_model: MakeModel, pulling: bool, device: str = "cpu") -> Work:
    model, local, locked = make_model().to(device), make_model().to(device), LockedModel(make_model())
    return _handing_over(model, partial(locked.publish, model), local, partial(locked.pull, local), pulling)


def _torchrl(_: Scale, make_model: MakeModel, pulling: bool) -> Work:
    """Its scheme for shared memory, without the queues by which it tells its workers; nothing keeps weights whole."""
    import_torchrl()
    from tensordict import TensorDict
    from torchrl.weight_update import SharedMemTransport, WeightStrategy

    model, local = make_model(), make_model()
    transport, strategy = SharedMemTransport(), WeightStrategy(extract_as="tensordict")
    transport.register_weights({0: (shared := TensorDict.from_module(model).data.clone().share_memory_())}, {})
    pull = partial(transport.receive_weights, weights=shared, model=local, strategy=strategy)
    return _handing_over(model, lambda: transport.send_weights(strategy.extract_weights(model)), local, pull, pulling)


def _memcpy(_: Scale, make_model: MakeModel, pulling: bool) -> Work:
    """The weights' bytes into two shared slots by turns, or out of the slot that was just written."""
    size = sum(tensor.nbytes for tensor in make_model().state_dict().values())
    private, local = memoryview(bytearray(size)), memoryview(bytearray(size))
    slots = shared_bytes(size), shared_bytes(size)
    publish = memcpy((slot, private) for slot in slots)
    return memcpy(((local, slot) for slot in slots), prepare=publish.run) if pulling else publish


LIBRARIES = installed({"marlcore": by_marlcore, "locks": by_locks, "torchrl": _torchrl, "memcpy": _memcpy})
ROWS = (
    Row("publish 0.28 MB", LIBRARIES, {"locks": 1 / 15}, (small, False)),
    Row("publish 6.8 MB", LIBRARIES, {"memcpy": 1.08}, (large, False)),
    Row("pull 0.28 MB", LIBRARIES, sizes=(small, True)),
    Row("pull 6.8 MB", LIBRARIES, sizes=(large, True)),
)
