"""Batches whose arrays are contiguous and aligned, for libraries that take memory as it is."""

from functools import partial

import numpy as np
import pytest
import torch
from model import SPECS, Model, fill

import marlcore as mc
from marlcore.observations import by_name

WINDOWS = [
    {}, {"n_step": 3}, {"stack": 3, "n_step": 2}, {"stack": 3, "pad": "zero"}, {"sequence": mc.Sequence(4, 1)},
    {"sequence": mc.Sequence(4), "stack": 2, "n_step": 2},
]  # fmt: skip


def each_array(batch: mc.Batch) -> dict[str, np.ndarray]:
    fields = {name: getattr(batch, name) for name in ("obs", "next_obs", "extras", "action", "reward", "valid")}
    return {f"{field}.{name}": array for field, value in fields.items() for name, array in by_name(value).items()}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", ["vector", "odd sizes"])
def test_separate_arrays_are_contiguous_aligned_and_as_the_oracle_says(name, window):
    spec, model = SPECS[name], Model(SPECS[name], 2, 60)
    with mc.ReplayBuffer.create(spec, 120, lanes=2) as replay:
        fill(replay, model, np.random.default_rng(3), [50, 90], end=0.2)
        make = partial(replay.sampler, 24, seed=1, min_size=1, **window)
        separate, shared, usual = (make(layout=layout) for layout in ("separate", "shared", None))
        for n in (None, 5, 33):
            batch, other, default = separate.sample(n), shared.sample(n), usual.sample(n)
            for label, array in each_array(batch).items():
                assert array.flags.c_contiguous and array.ctypes.data % 64 == 0, label
            assert model.check(batch, **window) == model.check(other, **window)
            assert next(iter(each_array(default).values())).flags.c_contiguous == (
                not {*window} & {"stack", "sequence"}
            )


def test_torch_and_dlpack_take_a_sample_as_it_is():
    with mc.ReplayBuffer.create(SPECS["frame"], 64) as replay, replay.writer() as writer:
        writer.add_batch(np.zeros((40, 84, 84), np.uint8), np.zeros(40, int), np.zeros(40))
        batch = replay.sampler(8).sample()
        assert batch.torch().obs.view(-1).data_ptr() == batch.obs.ctypes.data
        assert torch.from_dlpack(batch.next_obs).is_contiguous()


@pytest.mark.parametrize("window", [{}, {"stack": 3}, {"stack": 3, "pad": "zero"}])
def test_goals_are_relabelled_alike_in_both_layouts(window):
    goals = {name: mc.Field((2,)) for name in ("observation", "achieved_goal", "desired_goal")}
    options = mc.Hindsight(compute_reward=lambda achieved, desired, info: -abs(achieved - desired).sum(1))
    with mc.ReplayBuffer.create(mc.TransitionSpec(goals, mc.Field()), 90) as replay, replay.writer() as writer:
        obs = {name: np.arange(60.0)[:, None] + np.zeros(2) for name in goals}
        writer.add_batch(obs, np.zeros(60), np.zeros(60), np.arange(60) % 20 == 19)
        make = partial(replay.sampler, 48, seed=2, hindsight=options, **window)
        separate, shared = (make(layout=layout).sample() for layout in ("separate", "shared"))
        assert separate.relabelled.any()
        live = ~separate.terminated
        for label, array in each_array(separate).items():
            np.testing.assert_array_equal(array[live], each_array(shared)[label][live], err_msg=label)
