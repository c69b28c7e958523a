"""Actions: greedy ones, random ones among those that a mask allows, and noisy ones inside their Box."""

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from updates import box_spaces, continuous_spaces

from marlcore.algos import DQN, IQN, SAC, TD3
from marlcore.spaces import MASK, Spaces
from marlcore.training.config.schedules import Schedule

pytestmark = pytest.mark.usefixtures("seeded_torch")

OF_VALUES = pytest.mark.parametrize("algorithm", [DQN, IQN])
CONTINUOUS = pytest.mark.parametrize("algorithm", [TD3, SAC])
EACH = pytest.mark.parametrize("algorithm", [DQN, IQN, TD3, SAC])
OBSERVATION = gym.Box(-1, 1, (3,), np.float32)


def act(hyper, model, obs, epsilon=None, mask=None, seed=0, **numbers):
    """The actions, and a draw of the generator after them."""
    explore = None if epsilon is None else {"epsilon": epsilon, "noise": 0.3, **numbers}
    generator = np.random.default_rng(seed)
    acting = getattr(model, "acting", model)
    chosen = hyper.act(acting, obs, explore=explore, state=None, mask=mask, generator=generator)
    assert chosen.extras == {} and chosen.state is None
    return chosen.action, generator.random()


def made(algorithm, space=None):
    """An algorithm, its spaces and a model; the spaces are those of four actions, or of the odd Box."""
    hyper = algorithm()
    spaces = continuous_spaces(space) if algorithm in (TD3, SAC) else box_spaces(actions=4)
    return hyper, spaces, hyper.make_model(spaces)


@EACH
def test_epsilon_may_differ_from_row_to_row(algorithm):
    hyper, _, model = made(algorithm)
    obs = torch.randn(40, 3)
    (exploiting, _), (exploring, _) = act(hyper, model, obs, 0.0), act(hyper, model, obs, 1.0)
    mixed, _ = act(hyper, model, obs, np.repeat([0.0, 1.0], 20))
    np.testing.assert_array_equal(mixed, np.concatenate([exploiting[:20], exploring[20:]]))
    assert (exploiting != exploring).any()


@EACH
def test_draws_depend_on_neither_epsilon_nor_mask(algorithm):
    hyper, _, model = made(algorithm)
    cases = [(0.0, None), (0.5, None), (1.0, None)]
    if algorithm in (DQN, IQN):
        cases.append((0.5, torch.eye(4, dtype=torch.bool)))
    assert len({act(hyper, model, torch.randn(4, 3), epsilon, mask, seed=7)[1] for epsilon, mask in cases}) == 1


@EACH
def test_the_same_generator_state_gives_the_same_actions(algorithm):
    hyper, _, model = made(algorithm)
    obs = torch.randn(50, 3)
    np.testing.assert_array_equal(*(act(hyper, model, obs, 0.5, seed=7)[0] for _ in range(2)))


@EACH
def test_the_network_is_not_run_when_every_row_explores(algorithm):
    hyper, _, model = made(algorithm)
    runs = []
    getattr(model, "acting", model).register_forward_hook(lambda *_: runs.append(1))
    act(hyper, model, torch.randn(3, 3), 1.0)
    assert not runs
    act(hyper, model, torch.randn(3, 3), 0.0)
    assert runs


FORMS = [
    *((DQN, space) for space in (
        gym.Discrete(3, start=5), gym.MultiDiscrete([2, 3], start=[4, 1]), gym.MultiBinary(3), gym.MultiBinary((2, 2))
    )),
    (IQN, gym.MultiDiscrete([2, 3], start=[4, 1])),
    *((algorithm, space) for algorithm in (TD3, SAC) for space in (
        continuous_spaces().action, gym.Box(-3, 1, (2,), np.float64), gym.Box(0, 1, (), np.float16)
    )),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "space"), FORMS)
@pytest.mark.parametrize("epsilon", [None, 0.0, 0.5, 1.0])
def test_actions_have_the_form_of_a_row(algorithm, space, epsilon):
    """Actions have the space's shape and dtype, and count from 0 whatever its start."""
    hyper, spaces = algorithm(), Spaces(OBSERVATION, space)
    model = hyper.make_model(spaces)
    if algorithm in (TD3, SAC):
        with torch.no_grad():
            model.acting.output.weight.mul_(100)  # so that tanh, rounded, comes to its ends
    actions, _ = act(hyper, model, torch.randn(300, 3), epsilon)
    assert actions.shape == (300, *space.shape) and actions.dtype == spaces.action_field.dtype
    shifted = spaces.shifted(actions).astype(space.dtype)
    assert all(space.contains(shifted[row, ...]) for row in range(300))


@OF_VALUES
def test_epsilon_zero_is_greedy_and_one_is_uniform(algorithm):
    hyper, _, model = made(algorithm)
    obs = torch.randn(4000, 3)
    best = model(obs).argmax(1).numpy()
    for epsilon in (0.0, None):
        np.testing.assert_array_equal(act(hyper, model, obs, epsilon)[0], best)
    counts = np.bincount(act(hyper, model, obs, 1.0)[0], minlength=4)
    assert ((counts > 880) & (counts < 1120)).all()  # four standard deviations of 27


@settings(max_examples=60)
@given(masks=arrays(bool, (8, 5)), seed=st.integers(0, 2**16))
@pytest.mark.parametrize("epsilon", [None, 0.0, 0.5, 1.0])
def test_only_allowed_actions_are_chosen(epsilon, masks, seed):
    masks[~masks.any(1), seed % 5] = True
    hyper = DQN(hidden=(8,))
    model = hyper.make_model(box_spaces(actions=5))
    obs = torch.randn(8, 3)
    chosen, _ = act(hyper, model, obs, epsilon, torch.from_numpy(masks), seed)
    assert masks[np.arange(8), chosen].all()
    if not epsilon:
        values = model(obs).detach().numpy()
        expected = [max(np.flatnonzero(mask), key=lambda a: line[a]) for mask, line in zip(masks, values, strict=True)]
        np.testing.assert_array_equal(chosen, expected)


@OF_VALUES
def test_random_actions_are_uniform_among_the_allowed(algorithm):
    hyper = algorithm()
    model = hyper.make_model(box_spaces(actions=5))
    mask = torch.tensor([False, True, False, True, True]).expand(3000, 5)
    counts = np.bincount(act(hyper, model, torch.randn(3000, 3), 1.0, mask)[0], minlength=5)
    assert counts[[0, 2]].sum() == 0
    assert ((counts[[1, 3, 4]] > 896) & (counts[[1, 3, 4]] < 1104)).all()  # four standard deviations of 26


def test_components_of_joint_actions_are_masked():
    """The masks of a MultiDiscrete's components exclude every joint action with such a component."""
    hyper = DQN(hidden=(8,))
    spaces = Spaces(OBSERVATION, gym.MultiDiscrete([3, 2]), masked=True)
    mask = torch.tensor([True, False, True, False, True]).expand(400, 5)
    obs = {"observation": torch.randn(400, 3), MASK: mask}
    for epsilon in (None, 1.0):
        chosen, _ = act(hyper, hyper.make_model(spaces), obs, epsilon, mask)
        assert set(map(tuple, chosen.tolist())) <= {(0, 1), (2, 1)}
    assert set(map(tuple, chosen.tolist())) == {(0, 1), (2, 1)}


@CONTINUOUS
def test_epsilon_1_is_uniform_in_the_box(algorithm):
    hyper, spaces, model = made(algorithm)
    action, _ = act(hyper, model, torch.randn(4000, 3), 1.0)
    place = (action - spaces.action.low) / (spaces.action.high - spaces.action.low)
    np.testing.assert_allclose(place.mean(0), 0.5, atol=0.02)  # more than four standard deviations of 0.0046
    np.testing.assert_allclose(place.std(0), 12**-0.5, atol=0.01)


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


@CONTINUOUS
def test_actions_are_uniform_until_the_first_update_by_default(algorithm):
    epsilon = Schedule.from_value("epsilon", algorithm().schedules()["epsilon"])
    assert epsilon.of == "updates" and [epsilon.at(count) for count in (0, 1, 2, 10**6)] == [1.0, 0.0, 0.0, 0.0]
