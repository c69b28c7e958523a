"""Pickles of shared objects: those that another process gets have an address; those that would be kept are refused."""

import copy
import io
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

import marlcore as mc
from marlcore.lazy import is_installed

SPEC = mc.TransitionSpec(mc.Field(), mc.Field())


@pytest.fixture(params=["ReplayBuffer", "TrajectoryQueue", "ParameterStore"])
def shared(request: pytest.FixtureRequest) -> Iterator[Any]:
    kind = getattr(mc, request.param)
    made = kind.create({"w": np.zeros(2)}) if request.param == "ParameterStore" else kind.create(SPEC, 8)
    with made:
        yield made


def by_queue(context: Any) -> Callable[[Any], Any]:
    def sent(thing: Any) -> Any:
        queue = context.SimpleQueue()
        queue.put(thing)
        return queue.get()

    return sent


def by_a_module(name: str) -> Callable[[Any], Any]:
    """Pickles in a module of this name, as of a library that is not installed."""
    module = ModuleType(name)
    exec("import pickle\ndef dumps(thing):\n    return pickle.dumps(thing)", module.__dict__)
    return lambda thing: pickle.loads(module.dumps(thing))


SENT: dict[str, Callable[[Any], Any]] = {
    "ForkingPickler": lambda thing: pickle.loads(ForkingPickler.dumps(thing)),
    "a queue": by_queue(multiprocessing),
    "torch's queue": by_queue(torch.multiprocessing.get_context("spawn")),
    "cloudpickle": lambda thing: pickle.loads(cloudpickle.dumps({"deep": [thing]}))["deep"][0],
    "loky": by_a_module("joblib.externals.loky.backend.reduction"),
    "the handle": lambda thing: type(thing).attach(pickle.loads(pickle.dumps(thing.handle))),
}
if is_installed("ray"):
    from ray import cloudpickle as of_ray

    SENT["Ray"] = lambda thing: pickle.loads(of_ray.dumps(thing))

KEPT: dict[str, Callable[[Any], Any]] = {
    "pickle.dumps": pickle.dumps,
    "pickle.dump": lambda thing: pickle.dump({"buffer": thing}, io.BytesIO()),
    "pickle in Python": lambda thing: pickle._Pickler(io.BytesIO()).dump([thing]),
    "torch.save": lambda thing: torch.save({"buffer": thing}, io.BytesIO()),
    "torch.save, as before 1.6": lambda thing: torch.save(thing, io.BytesIO(), _use_new_zipfile_serialization=False),
    "deepcopy": lambda thing: copy.deepcopy({"buffer": thing}),
    "copy": copy.copy,
    "joblib.dump": by_a_module("joblib.numpy_pickle"),
}


@pytest.mark.parametrize("road", SENT)
def test_another_process_gets_an_address(shared, road):
    with SENT[road](shared) as attached:
        assert type(attached) is type(shared) and attached.handle == shared.handle


@pytest.mark.parametrize("road", KEPT)
def test_what_would_be_kept_is_refused(shared, road):
    with pytest.raises(
        TypeError, match=r"^\w+: expected a pickle for another process, [^\n]*its `handle` can be pickled$"
    ):
        KEPT[road](shared)


@pytest.mark.long  # a spawned process imports for seconds
def test_a_spawned_process_and_a_pool_get_addresses():
    """The first gets the replay as it starts, the pool through a queue."""
    context = multiprocessing.get_context("spawn")
    with mc.ReplayBuffer.create(SPEC, 8) as replay, replay.writer() as writer:
        writer.add(0.0, 0.0, 0.0, terminated=True)
        process = context.Process(target=len_is_one, args=(replay,))
        process.start()
        process.join()
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            assert (process.exitcode, pool.submit(len, replay).result()) == (0, 1)


def len_is_one(replay: mc.ReplayBuffer) -> None:
    assert len(replay) == 1


def test_the_refusal_of_a_replay_names_save():
    with mc.ReplayBuffer.create(SPEC, 8) as replay, pytest.raises(TypeError, match=r"replay\.save\(path\)"):
        pickle.dumps(replay)
