"""Continuous actions are inside their Box, whatever its bounds, shape and dtype; and exploration draws them."""

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from hypothesis import given, settings
from hypothesis import strategies as st
from updates import continuous_spaces

from marlcore.algos import SAC, TD3
from marlcore.algos.networks.actions import BoxActions

pytestmark = pytest.mark.usefixtures("seeded_torch")

BOTH = pytest.mark.parametrize("algorithm", [TD3, SAC])
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


def act(hyper, model, obs, epsilon=None, seed=0, **numbers):
    explore = None if epsilon is None else {"epsilon": epsilon, "noise": 0.3, **numbers}
    generator = np.random.default_rng(seed)
    chosen = hyper.act(model.acting, obs, explore=explore, state=None, mask=None, generator=generator)
    return chosen.action, generator.random()


@BOTH
@pytest.mark.parametrize(
    "space", [None, gym.Box(-3, 1, (2,), np.float64), gym.Box(0, 1, (), np.float16)], ids=["odd", "float64", "float16"]
)
@pytest.mark.parametrize("epsilon", [None, 0.0, 0.5, 1.0])
def test_chosen_actions_have_the_form_of_a_row(algorithm, space, epsilon):
    hyper, spaces = algorithm(), continuous_spaces(space)
    model = hyper.make_model(spaces)
    with torch.no_grad():
        model.acting.output.weight.mul_(100)  # so that tanh, rounded, comes to its ends
    action, _ = act(hyper, model, torch.randn(300, 3), epsilon)
    assert action.shape == (300, *spaces.action.shape) and action.dtype == spaces.action.dtype
    assert all(spaces.action.contains(action[row, ...]) for row in range(300))


@BOTH
def test_epsilon_1_is_uniform_and_runs_no_network(algorithm):
    hyper, spaces = algorithm(), continuous_spaces()
    model = hyper.make_model(spaces)
    runs = []
    model.acting.register_forward_hook(lambda *_: runs.append(1))
    action, _ = act(hyper, model, torch.randn(4000, 3), 1.0)
    assert not runs
    place = (action - spaces.action.low) / (spaces.action.high - spaces.action.low)
    np.testing.assert_allclose(place.mean(0), 0.5, atol=0.02)  # more than four standard deviations of 0.0046
    np.testing.assert_allclose(place.std(0), 12**-0.5, atol=0.01)
    act(hyper, model, torch.randn(3, 3), 0.0)
    assert runs


@BOTH
def test_epsilon_may_differ_from_row_to_row(algorithm):
    hyper, spaces = algorithm(), continuous_spaces()
    model, obs = hyper.make_model(spaces), torch.randn(40, 3)
    (noisy, _), (uniform, _) = act(hyper, model, obs, 0.0), act(hyper, model, obs, 1.0)
    mixed, _ = act(hyper, model, obs, np.repeat([0.0, 1.0], 20))
    np.testing.assert_array_equal(mixed, np.concatenate([noisy[:20], uniform[20:]]))


@BOTH
def test_draws_do_not_depend_on_epsilon(algorithm):
    hyper = algorithm()
    model = hyper.make_model(continuous_spaces())
    assert len({act(hyper, model, torch.randn(4, 3), epsilon)[1] for epsilon in (0.0, 0.5, 1.0)}) == 1


def test_the_noise_of_td3_is_the_scheduled_one():
    """It is in units of half a component's range."""
    hyper, spaces = TD3(noise=0.7), continuous_spaces()
    assert hyper.schedules()["noise"] == 0.7
    model, obs = hyper.make_model(spaces), torch.zeros(4000, 3)
    greedy, _ = act(hyper, model, obs)
    np.testing.assert_array_equal(act(hyper, model, obs, 0.0, noise=0.0)[0], greedy)
    away = (act(hyper, model, obs, 0.0, noise=0.05)[0] - greedy) / ((spaces.action.high - spaces.action.low) / 2)
    np.testing.assert_allclose(away.std(0), 0.05, rtol=0.06)  # five standard deviations
    np.testing.assert_allclose(away.mean(0), 0.0, atol=0.004)


@BOTH
def test_actions_are_uniform_until_the_first_update_by_default(algorithm):
    from marlcore.training.config.schedules import Schedule

    epsilon = Schedule.from_value("epsilon", algorithm().schedules()["epsilon"])
    assert epsilon.of == "updates" and [epsilon.at(count) for count in (0, 1, 2, 10**6)] == [1.0, 0.0, 0.0, 0.0]
