"""Actions: greedy or random ones, among those that a mask allows."""

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from updates import box_spaces

from marlcore.algos import DQN, IQN
from marlcore.spaces import MASK, Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

BOTH = pytest.mark.parametrize("algorithm", [DQN, IQN])
OBSERVATION = gym.Box(-1, 1, (3,), np.float32)


def act(hyper, model, obs, epsilon=None, mask=None, seed=0, generator=None):
    explore = None if epsilon is None else {"epsilon": epsilon}
    generator = generator or np.random.default_rng(seed)
    return hyper.act(model, obs, explore=explore, state=None, mask=mask, generator=generator)


@BOTH
def test_epsilon_zero_is_greedy_and_one_is_uniform(algorithm):
    hyper = algorithm()
    model = hyper.make_model(box_spaces(actions=4))
    obs = torch.randn(4000, 3)
    best = model(obs).argmax(1).numpy()
    for epsilon in (0.0, None):
        chosen = act(hyper, model, obs, epsilon)
        assert chosen.action.dtype == np.int64 and chosen.extras == {} and chosen.state is None
        np.testing.assert_array_equal(chosen.action, best)
    counts = np.bincount(act(hyper, model, obs, 1.0).action, minlength=4)
    assert ((counts > 880) & (counts < 1120)).all()  # four standard deviations of 27


@BOTH
def test_epsilon_may_differ_from_row_to_row(algorithm):
    hyper = algorithm()
    model = hyper.make_model(box_spaces(actions=4))
    obs = torch.randn(2000, 3)
    best = model(obs).argmax(1).numpy()
    chosen = act(hyper, model, obs, np.repeat([0.0, 1.0], 1000)).action
    np.testing.assert_array_equal(chosen[:1000], best[:1000])
    assert 680 < (chosen[1000:] != best[1000:]).sum() < 820  # 750 are expected, five standard deviations are 68


@settings(max_examples=60)
@given(masks=arrays(bool, (8, 5)), seed=st.integers(0, 2**16))
@pytest.mark.parametrize("epsilon", [None, 0.0, 0.5, 1.0])
def test_only_allowed_actions_are_chosen(epsilon, masks, seed):
    masks[~masks.any(1), seed % 5] = True
    hyper = DQN(hidden=(8,))
    model = hyper.make_model(box_spaces(actions=5))
    obs = torch.randn(8, 3)
    chosen = act(hyper, model, obs, epsilon, torch.from_numpy(masks), seed).action
    assert masks[np.arange(8), chosen].all()
    if not epsilon:
        values = model(obs).detach().numpy()
        expected = [max(np.flatnonzero(mask), key=lambda a: line[a]) for mask, line in zip(masks, values, strict=True)]
        np.testing.assert_array_equal(chosen, expected)


@BOTH
def test_random_actions_are_uniform_among_the_allowed(algorithm):
    hyper = algorithm()
    model = hyper.make_model(box_spaces(actions=5))
    mask = torch.tensor([False, True, False, True, True]).expand(3000, 5)
    counts = np.bincount(act(hyper, model, torch.randn(3000, 3), 1.0, mask).action, minlength=5)
    assert counts[[0, 2]].sum() == 0
    assert ((counts[[1, 3, 4]] > 896) & (counts[[1, 3, 4]] < 1104)).all()  # four standard deviations of 26


@BOTH
def test_the_network_is_not_run_when_every_row_explores(algorithm):
    hyper = algorithm()
    model = hyper.make_model(box_spaces(actions=4))
    runs = []
    model.register_forward_hook(lambda *_: runs.append(1))
    act(hyper, model, torch.randn(3, 3), 1.0)
    assert not runs
    act(hyper, model, torch.randn(3, 3), 0.0)
    assert runs


@BOTH
def test_draws_depend_on_neither_epsilon_nor_mask(algorithm):
    hyper = algorithm()
    model = hyper.make_model(box_spaces(actions=4))
    after = []
    for epsilon, mask in [(0.0, None), (0.5, None), (1.0, None), (0.5, torch.eye(4, dtype=torch.bool))]:
        generator = np.random.default_rng(7)
        act(hyper, model, torch.randn(4, 3), epsilon, mask, generator=generator)
        after.append(generator.random())
    assert len(set(after)) == 1


@BOTH
def test_the_same_generator_state_gives_the_same_actions(algorithm):
    hyper = algorithm()
    model = hyper.make_model(box_spaces(actions=4))
    obs = torch.randn(50, 3)
    first, second = (act(hyper, model, obs, 0.5, seed=7).action for _ in range(2))
    np.testing.assert_array_equal(first, second)


@BOTH
@pytest.mark.parametrize(
    "space",
    [gym.Discrete(3, start=5), gym.MultiDiscrete([2, 3], start=[4, 1]), gym.MultiBinary(3), gym.MultiBinary((2, 2))],
)
@pytest.mark.parametrize("epsilon", [None, 0.5, 1.0])
def test_actions_have_the_form_of_a_row(algorithm, space, epsilon):
    """Actions have the space's shape and dtype, and count from 0 whatever its start."""
    hyper = algorithm()
    spaces = Spaces(OBSERVATION, space)
    chosen = act(hyper, hyper.make_model(spaces), torch.randn(200, 3), epsilon).action
    assert chosen.shape == (200, *spaces.action_field.shape)
    assert chosen.dtype == spaces.action_field.dtype
    offset = 0 if isinstance(space, gym.MultiBinary) else space.start
    assert all(space.contains((one + offset).astype(space.dtype)) for one in chosen)


def test_components_of_joint_actions_are_masked():
    """The masks of a MultiDiscrete's components exclude every joint action with such a component."""
    hyper = DQN(hidden=(8,))
    spaces = Spaces(OBSERVATION, gym.MultiDiscrete([3, 2]), masked=True)
    mask = torch.tensor([True, False, True, False, True]).expand(400, 5)
    obs = {"observation": torch.randn(400, 3), MASK: mask}
    for epsilon in (None, 1.0):
        chosen = act(hyper, hyper.make_model(spaces), obs, epsilon, mask).action
        assert set(map(tuple, chosen.tolist())) <= {(0, 1), (2, 1)}
    assert set(map(tuple, chosen.tolist())) == {(0, 1), (2, 1)}
