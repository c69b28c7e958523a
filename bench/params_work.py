"""The weights' rows: publish and pull of a small and of a large network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
from torch import nn

from marlcore import ParameterStore

from .peers.params import LockedModel
from .work import Budget, Row, Scale, Work, memcpy, shared_bytes

Open = Callable[[Scale], AbstractContextManager[Work]]
MakeModel = Callable[[], nn.Module]


def _small() -> nn.Module:
    """A multilayer perceptron: 69,124 floats in 6 tensors, 0.28 MB."""
    return nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))


def _large() -> nn.Module:
    """The network of Mnih et al. 2015 with 18 actions: 1,693,362 floats in 10 tensors, 6.8 MB."""
    convolutions = (
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
    )
    return nn.Sequential(*convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 18))


def _nbytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in model.state_dict().values())


def _change(model: nn.Module) -> None:
    with torch.no_grad():
        for tensor in model.parameters():
            tensor += 1


def _marlcore(make_model: MakeModel, pulling: bool) -> Open:
    @contextmanager
    def open_work(_: Scale) -> Iterator[Work]:
        model, local = make_model(), make_model()
        with ParameterStore.create(model) as store:
            publish, pull = store.publisher(model).publish, store.subscriber(local).pull
            yield _work(model, publish, local, pull, pulling)

    return open_work


def _seeds(make_model: MakeModel, pulling: bool) -> Open:
    @contextmanager
    def open_work(_: Scale) -> Iterator[Work]:
        model, local = make_model(), make_model()
        locked = LockedModel(make_model())
        yield _work(model, partial(locked.publish, model), local, partial(locked.pull, local), pulling)

    return open_work


def _work(
    model: nn.Module,
    publish: Callable[[], object],
    local: nn.Module,
    pull: Callable[[], object],
    pulling: bool,
) -> Work:
    def check(_: object) -> None:
        _change(model)
        publish()
        pull()
        expected, got = model.state_dict(), local.state_dict()
        assert expected.keys() == got.keys()
        assert all(torch.equal(expected[name], got[name]) for name in expected)

    return Work(pull, check, prepare=publish) if pulling else Work(publish, check)


def _memcpy(make_model: MakeModel, pulling: bool) -> Open:
    """The weights' bytes into two shared slots by turns, or out of the one that was just written."""

    @contextmanager
    def open_work(_: Scale) -> Iterator[Work]:
        size = _nbytes(make_model())
        private, local = memoryview(bytearray(size)), memoryview(bytearray(size))
        slots = shared_bytes(size), shared_bytes(size)
        publish = memcpy((slot, private) for slot in slots)
        yield memcpy(((local, slot) for slot in slots), prepare=publish.run) if pulling else publish

    return open_work


def _libraries(make_model: MakeModel, pulling: bool) -> dict[str, Open]:
    return {
        "marlcore": _marlcore(make_model, pulling),
        "seeds": _seeds(make_model, pulling),
        "memcpy": _memcpy(make_model, pulling),
    }


ROWS = (
    Row("publish 0.28 MB", _libraries(_small, pulling=False), (Budget("seeds", 1 / 15),)),
    Row("publish 6.8 MB", _libraries(_large, pulling=False), (Budget("memcpy", 1.08),)),
    Row("pull 0.28 MB", _libraries(_small, pulling=True)),
    Row("pull 6.8 MB", _libraries(_large, pulling=True)),
)
