"""Joint actions: numbers and actions lead to each other, and a joint action is allowed if its components are."""

from itertools import product

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from hypothesis import given
from hypothesis import strategies as st

from marlcore.algos.networks.actions import JointActions

pytestmark = pytest.mark.usefixtures("seeded_torch")

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@given(SIZES)
def test_every_action_of_a_multidiscrete_has_its_number(sizes):
    space = gym.MultiDiscrete(sizes)
    joint = JointActions("DQN", space)
    everything = np.array(list(product(*map(range, sizes))))
    assert joint.count == len(everything)
    np.testing.assert_array_equal(joint.decode(np.arange(joint.count)), everything)
    np.testing.assert_array_equal(joint.encode(torch.from_numpy(everything)).numpy(), np.arange(joint.count))


@pytest.mark.parametrize("space", [gym.MultiBinary(4), gym.MultiBinary((2, 3)), gym.Discrete(7, start=3)])
def test_numbers_lead_to_actions_and_back(space):
    joint = JointActions("DQN", space)
    actions = joint.decode(np.arange(joint.count))
    assert actions.shape == (joint.count, *space.shape) and actions.dtype == space.dtype
    assert len({one.tobytes() for one in actions}) == joint.count
    back = joint.encode(torch.from_numpy(actions))
    assert back.dtype == torch.int64
    np.testing.assert_array_equal(back.numpy(), np.arange(joint.count))


@given(SIZES, st.integers(0, 2**16))
def test_a_joint_action_is_allowed_if_its_components_are(sizes, seed):
    mask = np.random.default_rng(seed).random((3, sum(sizes))) < 0.6
    allowed = JointActions("DQN", gym.MultiDiscrete(sizes)).allowed(torch.from_numpy(mask)).numpy()
    starts = np.cumsum([0, *sizes[:-1]])
    for row, action in product(range(3), range(allowed.shape[1])):
        components = np.unravel_index(action, sizes)
        assert allowed[row, action] == all(mask[row, at + one] for at, one in zip(starts, components, strict=True))


def test_a_discrete_may_be_larger_than_the_limit_of_joint_actions():
    assert JointActions("DQN", gym.Discrete(5000)).count == 5000
