"""Action spaces as networks have them: joint actions by number, and Boxes scaled to [-1, 1]."""

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from hypothesis import given, settings
from hypothesis import strategies as st

from marlcore.algos.networks.actions import BoxActions, JointActions

pytestmark = pytest.mark.usefixtures("seeded_torch")


COUNTS = [
    (gym.MultiDiscrete([3, 1, 4]), 12),
    (gym.MultiBinary(4), 16),
    (gym.MultiBinary((2, 3)), 64),
    (gym.Discrete(7, start=3), 7),
    (gym.Discrete(5000), 5000),  # more than joint actions may be
]


@pytest.mark.parametrize(("space", "count"), COUNTS)
def test_numbers_lead_to_actions_and_back(space, count):
    joint = JointActions("DQN", space)
    assert joint.count == count
    actions = joint.decode(np.arange(joint.count))
    assert actions.shape == (joint.count, *space.shape) and actions.dtype == space.dtype
    assert len({one.tobytes() for one in actions}) == joint.count
    back = joint.encode(torch.from_numpy(actions))
    assert back.dtype == torch.int64
    np.testing.assert_array_equal(back.numpy(), np.arange(joint.count))


SHAPES = [(), (1,), (4,), (2, 3), (1, 2, 2)]


@st.composite
def boxes(draw):
    """Boxes whose components have bounds of any sign and size, some of them equal."""
    shape, dtype = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(["float16", "float32", "float64"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    most = 4.0 if dtype == "float16" else draw(st.sampled_from([3.0, 37.0]))
    ends = rng.normal(size=(2, *shape)) * 10.0 ** rng.uniform(-most, most, size=(2, *shape))
    ends = np.where(rng.random(shape) < 0.1, ends[:1], ends)
    largest = float(np.finfo(dtype).max)
    ends *= np.where(rng.random(shape) < 0.1, np.inf, 1.0)  # the largest numbers of the dtype
    ends = np.sort(np.clip(ends, -largest, largest).astype(dtype), 0)
    return gym.Box(ends[0], ends[1], dtype=np.dtype(dtype).type)


@settings(max_examples=60)
@given(space=boxes(), seed=st.integers(0, 2**16))
def test_decoded_actions_are_inside_any_box(space, seed):
    actions = BoxActions("test", space)
    scaled = np.random.default_rng(seed).uniform(-1, 1, (50, actions.size)).astype(np.float32)
    scaled[:2] = [[-1.5], [1.5]]  # as noise may have it
    decoded = actions.decode(scaled)
    assert decoded.shape == (50, *space.shape) and decoded.dtype == space.dtype
    assert all(space.contains(decoded[row, ...]) for row in range(50))
    low, high, ends = (one.astype(np.float64) / 2 for one in (space.low, space.high, decoded[:2]))
    assert (np.abs(ends - [low, high]) <= 1e-3 * (high - low)).all()


@settings(max_examples=40)
@given(shape=st.sampled_from(SHAPES), dtype=st.sampled_from([np.float32, np.float64]), seed=st.integers(0, 2**16))
def test_encoding_is_the_inverse_of_decoding(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    middle, reach = rng.uniform(-5, 5, shape), rng.uniform(0.1, 5, shape)
    actions = BoxActions("test", gym.Box((middle - reach).astype(dtype), (middle + reach).astype(dtype), dtype=dtype))
    scaled = rng.uniform(-1, 1, (20, actions.size)).astype(np.float32)
    encoded = actions.encode(torch.from_numpy(actions.decode(scaled)))
    assert encoded.dtype == torch.float32
    np.testing.assert_allclose(encoded.numpy(), scaled, atol=1e-4)


def test_a_narrow_float64_box_far_from_0_keeps_its_digits():
    """Bounds of 10^9 and 10^9 + 1 are one number in float32."""
    actions = BoxActions("test", gym.Box(1e9, 1e9 + 1, (1,), np.float64))
    encoded = actions.encode(torch.tensor([[1e9], [1e9 + 0.25], [1e9 + 1]], dtype=torch.float64))
    np.testing.assert_allclose(encoded.numpy()[:, 0], [-1.0, -0.5, 1.0], atol=1e-6)


def test_a_component_of_one_value_is_encoded_as_0():
    actions = BoxActions("test", gym.Box(np.array([2, -1], np.float32), np.array([2, 1], np.float32)))
    np.testing.assert_array_equal(actions.encode(torch.tensor([[2.0, 0.5]])).numpy(), [[0.0, 0.5]])
    np.testing.assert_array_equal(actions.decode(np.array([[0.7, 0.5]], np.float32)), np.float32([[2.0, 0.5]]))
