"""Pickles of shared objects: those that another process gets have an address; those that would be kept are refused."""

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler
from types import ModuleType

import cloudpickle
import numpy as np
import pytest
import torch

import marlcore as mc

SPEC = mc.TransitionSpec(mc.Field(), mc.Field())


@pytest.fixture(params=[mc.ReplayBuffer, mc.TrajectoryQueue, mc.ParameterStore])
def shared(request):
    arguments = ({"w": np.zeros(2)},) if request.param is mc.ParameterStore else (SPEC, 8)
    with request.param.create(*arguments) as made:
        yield made


def by_a_module(name):
    """Pickles in a module of this name, as of a library that is not installed."""
    module = ModuleType(name)
    exec("import pickle\ndef dumps(thing):\n    return pickle.dumps(thing)", module.__dict__)
    return module.dumps


SENT = {
    "multiprocessing": ForkingPickler.dumps,
    "cloudpickle": cloudpickle.dumps,
    "the handle": lambda thing: pickle.dumps(thing.handle),
}
SENDERS = "torch.multiprocessing.queue", "joblib.externals.loky.backend.reduction", "ray.cloudpickle.cloudpickle"
SENT |= {name: by_a_module(name) for name in SENDERS}
KEPT = {
    "pickle": lambda thing: pickle.dump({"buffer": thing}, io.BytesIO()),
    "torch": lambda thing: torch.save({"buffer": thing}, io.BytesIO()),
    "torch before 1.6": lambda thing: torch.save(thing, io.BytesIO(), _use_new_zipfile_serialization=False),
    "deepcopy": lambda thing: copy.deepcopy({"buffer": thing}),
    "joblib": by_a_module("joblib.numpy_pickle"),
}


@pytest.mark.parametrize("road", SENT)
def test_another_process_gets_an_address(shared, road):
    got = pickle.loads(SENT[road](shared))
    with got if isinstance(got, type(shared)) else type(shared).attach(got) as attached:
        assert attached.handle == shared.handle


@pytest.mark.parametrize("road", KEPT)
def test_what_would_be_kept_is_refused(shared, road):
    advice = r"replay\.save\(path\)" if isinstance(shared, mc.ReplayBuffer) else ""
    with pytest.raises(TypeError, match=rf"^\w+: expected a pickle for another process, [^\n]*{advice}[^\n]*`handle`"):
        KEPT[road](shared)
