"""The example of a custom algorithm keeps the contract."""

import pickle

import custom_algorithm
import numpy as np
import pytest
import torch
from batches import acted, box_spaces, made_batch, made_trainer
from gymnasium import spaces as gym

from marlcore.interfaces import Algorithm, ReplaySource
from marlcore.spaces import Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")


@pytest.mark.parametrize("stack", [1, 4])
def test_it_keeps_the_contract(stack):
    algorithm, spaces = custom_algorithm.MyDQN(target_every=2), box_spaces((5, 2), 3, np.uint8, stack=stack)
    assert Algorithm in type(algorithm).__mro__ and pickle.loads(pickle.dumps(algorithm)) == algorithm
    assert algorithm.transition(spaces).obs == spaces.obs and algorithm.source(ReplaySource(3)) == ReplaySource(3)
    model, trainer = made_trainer(algorithm, spaces)
    batch = made_batch(spaces, weight=torch.ones(6))
    losses = [trainer.update(batch) for _ in range(100)]
    assert losses[0].priority.shape == (6,) and losses[-1].metrics["loss"] < losses[0].metrics["loss"] / 2
    for explore in (None, {"epsilon": 0.5}):
        action = acted(algorithm, model, batch.obs, explore=explore).action
        assert action.shape == (6,) and set(action.tolist()) <= {0, 1, 2}
    with pytest.raises(ValueError, match=r"^MyDQN: expected a Box, a Discrete and no mask, got Spaces"):
        algorithm.make_model(Spaces(gym.Discrete(3), gym.Discrete(2)))
