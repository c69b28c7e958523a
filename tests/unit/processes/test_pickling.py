"""Pickles for other processes: an object that would mean something else there is refused, wherever it lies."""

import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from types import ModuleType
from typing import Any

import pytest
from refused import check_refused

import marlcore as mc
from marlcore.processes import check_picklable
from marlcore.processes.pickling import dumps

FILE = "its open file has another number in a worker: use a TrajectoryQueue, `report` of the worker's context, "
COPY = "torch's shared memory would reach a worker as a copy: pass `clone()` of it, or publish it by a ParameterStore"


class Device:
    """A handle of an open file like those of other libraries: its number is an attribute."""

    def __init__(self, number: int | None) -> None:
        self.number = number

    def fileno(self) -> int:
        if self.number is None:
            raise OSError("not open")
        return self.number


class Reopened(Device):
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[None]]:
        return Reopened, (None,)


def write_to(context: mc.WorkerContext, file: Any) -> None:
    os.write(file.detach(), b"hello")


WAYS: dict[str, Callable[[Connection], Any]] = {
    "itself": lambda pipe: pipe,
    "in a list": lambda pipe: [{"pipe": pipe}],
    "by its method": lambda pipe: pipe.send,
    "by a partial": lambda pipe: partial(print, pipe),
    "by a closure": lambda pipe: lambda: pipe,
    "another library's": lambda pipe: Device(pipe.fileno()),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_open_file_is_refused(way: str) -> None:
    receive, send = multiprocessing.Pipe(duplex=False)
    with receive, send:
        check_refused(lambda: check_picklable(given=WAYS[way](send)), TypeError, f"{FILE}or a path or an address")


def test_files_that_stay_the_same_are_pickled() -> None:
    closed, other = multiprocessing.Pipe()
    closed.close()
    other.close()
    with open(__file__) as text:
        check_picklable(text=text, closed=closed, unopened=Device(None), reopened=Reopened(1))


@pytest.mark.usefixtures("shared_fork_server")
def test_a_worker_refuses_a_pipe_and_takes_a_duplicate() -> None:
    receive, send = multiprocessing.Pipe(duplex=False)
    with receive, send, mc.Workers() as workers:
        check_refused(partial(workers.start, write_to, send), TypeError, "argument 1: expected something that can be")
        workers.start(write_to, DupFd(send.fileno()))
        assert workers.wait(60) and os.read(receive.fileno(), 5) == b"hello" and len(workers) == 1
    multiprocessing.resource_sharer.stop()


def test_torchs_shared_memory_is_refused() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(3).share_memory_()
    module, buffered = torch.nn.Linear(2, 2).share_memory(), torch.nn.BatchNorm1d(2)
    buffered.running_mean.share_memory_()
    for thing in (tensor, tensor[1:], [tensor], lambda: tensor, module, buffered, tensor.untyped_storage()):
        check_refused(partial(check_picklable, given=thing), TypeError, COPY)
    private = (tensor.clone(), torch.eye(2).to_sparse(), torch.zeros(2, device="meta"), torch.nn.LazyLinear(2))
    check_picklable(private=private, module=torch.nn.Linear(2, 2))
    assert pickle.loads(dumps(tensor, for_file=True)).tolist() == [0, 0, 0]

    class Mapped(torch.Tensor):  # type: ignore[misc]
        def __reduce_ex__(self, protocol: Any) -> Any:  # such as by the name of the file that it maps
            return list, ()

    check_picklable(mapped=tensor.as_subclass(Mapped))


@pytest.mark.parametrize("torch", [None, ModuleType("torch")], ids=["hidden", "half imported"])
def test_without_a_whole_torch_all_else_is_pickled(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    check_picklable(given=Device(None))


def test_a_published_model_is_no_larger_than_another() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(20)), torch.nn.BatchNorm1d(64))
    model[1].weight = model[0].weight
    size = len(dumps(model))
    with mc.ParameterStore.create(model) as store, store.publisher(model):
        pickled = dumps(model)
        assert len(pickled) < 1.2 * size
        again = pickle.loads(pickled)
        assert again[1].weight is again[0].weight and again[0].weight.requires_grad
        assert all(
            torch.equal(one, other)
            for one, other in zip(*(each.state_dict().values() for each in (again, model)), strict=True)
        )
