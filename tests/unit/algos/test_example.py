"""The example of a custom algorithm keeps the contract."""

import pickle

import custom_algorithm
import numpy as np
import pytest
import torch
from batches import box_spaces, made_batch, made_trainer
from gymnasium import spaces as gym

from marlcore.interfaces import Algorithm, ReplaySource
from marlcore.spaces import Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")


@pytest.fixture
def algorithm():
    return custom_algorithm.MyDQN(target_every=2)


def test_it_is_an_algorithm_with_the_defaults(algorithm):
    assert Algorithm in type(algorithm).__mro__
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm
    assert algorithm.transition(box_spaces()).obs == box_spaces().obs
    assert algorithm.source(ReplaySource(3)) == ReplaySource(3)


@pytest.mark.parametrize("stack", [1, 4])
def test_it_learns_and_acts(algorithm, stack):
    spaces = box_spaces((5, 2), actions=3, dtype=np.uint8, stack=stack)
    model, trainer = made_trainer(algorithm, spaces)
    batch = made_batch(spaces, weight=torch.ones(6))
    losses = [trainer.update(batch) for _ in range(100)]
    assert losses[0].priority.shape == (6,)
    assert losses[-1].metrics["loss"] < losses[0].metrics["loss"] / 2
    for explore in (None, {"epsilon": 0.5}):
        generator = np.random.default_rng(0)
        chosen = algorithm.act(model, batch.obs, explore=explore, state=None, mask=None, generator=generator)
        assert chosen.action.shape == (6,) and set(chosen.action.tolist()) <= {0, 1, 2}


def test_other_spaces_are_refused(algorithm):
    with pytest.raises(ValueError, match=r"^MyDQN: expected a Box, a Discrete and no mask, got Spaces"):
        algorithm.make_model(Spaces(gym.Discrete(3), gym.Discrete(2)))
