"""Batches whose arrays are contiguous and aligned, for torch, JAX and whoever else takes memory as it is."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from model import SPECS, Model, fill
from refused import refusals

import marlcore as mc
from marlcore.observations import by_name

WINDOWS: dict[str, dict[str, Any]] = {
    "plain": {}, "returns": {"n_step": 3}, "stacks": {"stack": 3}, "both": {"stack": 3, "n_step": 2},
    "zeros": {"stack": 3, "pad": "zero"}, "sequences": {"sequence": mc.Sequence(4, 1)},
    "sequences of stacks": {"sequence": mc.Sequence(4), "stack": 2, "n_step": 2},
}  # fmt: skip


def each_array(batch: mc.Batch) -> dict[str, np.ndarray]:
    fields = {"obs": batch.obs, "next_obs": batch.next_obs, "extras": batch.extras, "action": batch.action}
    fields |= {name: getattr(batch, name) for name in ("reward", "discount", "valid", "weight", "index", "terminated")}
    return {f"{field}.{name}": array for field, value in fields.items() for name, array in by_name(value).items()}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", ["vector", "odd sizes"])
@pytest.mark.parametrize("prioritized", [None, mc.Prioritized()])
def test_separate_arrays_are_contiguous_aligned_and_what_the_oracle_says(name, window, prioritized):
    spec, options = SPECS[name], WINDOWS[window]
    if spec.next_obs and options:
        options = {}
    with mc.ReplayBuffer.create(spec, 120, lanes=2) as replay:
        model = Model(spec, 2, 60)
        fill(replay, model, np.random.default_rng(3), [50, 90], end=0.2)
        samplers = [
            replay.sampler(24, seed=1, min_size=1, prioritized=prioritized, layout=layout, **options)
            for layout in ("separate", "shared", None)
        ]
        for n in (None, 5, 33):
            separate, shared, default = (sampler.sample(n) for sampler in samplers)
            for label, array in each_array(separate).items():
                assert array.flags.c_contiguous and array.ctypes.data % 64 == 0, label
            checked = {key: value for key, value in options.items() if key != "layout"}
            for batch in (separate, shared):
                model.check(batch, **checked, weighted=prioritized is not None)
            assert separate.index.tolist() == shared.index.tolist() == default.index.tolist()
            alone = default.obs if isinstance(default.obs, np.ndarray) else next(iter(default.obs.values()))
            assert alone.flags.c_contiguous == (not {*options} & {"stack", "sequence"})


def test_torch_views_and_dlpack_take_a_sample_as_it_is():
    spec = mc.TransitionSpec(mc.Field((4, 6), "uint8"), mc.Field())
    with mc.ReplayBuffer.create(spec, 64) as replay, replay.writer() as writer:
        writer.add_batch(np.zeros((40, 4, 6), np.uint8), np.zeros(40), np.zeros(40))
        for batch in (replay.sampler(8).sample(), replay.sampler(8, stack=4, layout="separate").sample()):
            tensors = batch.torch()
            assert tensors.obs.view(8, -1).data_ptr() == batch.obs.ctypes.data
            assert tensors.next_obs.view(8, -1).shape[0] == 8
            assert np.shares_memory(np.from_dlpack(batch.obs), batch.obs)
            assert torch.from_dlpack(batch.next_obs).is_contiguous()


def test_goals_are_relabelled_alike_in_both_layouts():
    goals = {name: mc.Field((2,)) for name in ("observation", "achieved_goal", "desired_goal")}
    options = mc.Hindsight(compute_reward=lambda achieved, desired, info: -abs(achieved - desired).sum(1))
    with mc.ReplayBuffer.create(mc.TransitionSpec(goals, mc.Field()), 90) as replay, replay.writer() as writer:
        for t in range(60):
            obs = {name: np.full(2, t, np.float32) for name in goals} | {"desired_goal": np.full(2, -1, np.float32)}
            writer.add(obs, 0.0, 0.0, truncated=t % 20 == 19, final_obs=obs if t % 20 == 19 else None)
        for stack, pad in ((1, "repeat"), (3, "repeat"), (3, "zero")):
            make = partial(replay.sampler, 48, stack=stack, pad=pad, seed=2, hindsight=options)
            separate, shared = (make(layout=layout).sample() for layout in ("separate", "shared"))
            assert separate.relabelled.any()
            for label, array in each_array(separate).items():
                np.testing.assert_array_equal(array, each_array(shared)[label], err_msg=label)


def test_a_mixture_and_a_reader_give_contiguous_arrays():
    with mc.ReplayBuffer.create(SPECS["vector"], 60) as one, mc.ReplayBuffer.create(SPECS["vector"], 60) as other:
        for replay in (one, other):
            fill(replay, Model(SPECS["vector"], 1, 60), np.random.default_rng(0), [40])
        batch = mc.Mixture([one, other], [0.5, 0.5], 16, stack=2, layout="separate").sample()
        assert batch.obs.flags.c_contiguous and batch.next_obs.flags.c_contiguous
    spec = mc.TransitionSpec(mc.Field((3,)), mc.Field())
    with mc.TrajectoryQueue.create(spec, 60) as queue, queue.writer() as writer, queue.reader(8, n_step=2) as reader:
        writer.add_batch(np.zeros((20, 3)), np.zeros(20), np.zeros(20))
        assert reader.read().obs.flags.c_contiguous


def unknown_layout() -> None:
    with mc.ReplayBuffer.create(SPECS["vector"], 60) as replay:
        replay.sampler(4, layout="apart")


test_refuses = refusals([(unknown_layout, "layout: expected 'separate', 'shared' or None, got 'apart'")])
