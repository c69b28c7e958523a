"""MAPPO's critic sees the joint observation; its policy does not."""

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym

from marlcore.algos import MAPPO
from marlcore.observations import ALONE
from marlcore.spaces import JOINT, Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

BOX = gym.Box(-9, 9, (3,), np.float32)
SPACES = Spaces(gym.Dict({ALONE: BOX, JOINT: gym.Box(-9, 9, (6,), np.float32)}), gym.Discrete(4))


def test_the_joint_observation_changes_values_and_no_action():
    model = MAPPO().make_model(SPACES)
    obs = {ALONE: torch.randn(8, 3), JOINT: torch.randn(8, 6)}
    other = {**obs, JOINT: torch.randn(8, 6)}
    output, value = model(obs)
    again, others = model(other)
    assert torch.equal(output, again) and (value != others).all()
    assert model.acting.torso.dense.layers[0].in_features == 3
    assert model.critic.torso.dense.layers[0].in_features == 9


def test_the_policy_acts_on_its_own_observation():
    model = MAPPO().make_model(SPACES)
    action = MAPPO().act(
        model.acting, {ALONE: torch.zeros(5, 3)}, explore=None, state=None, mask=None,
        generator=np.random.default_rng(0),
    )  # fmt: skip
    assert action.action.shape == (5,)
