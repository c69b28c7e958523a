"""Acting of every algorithm: what rows store, greedy actions, random ones among those allowed, noisy ones in a Box."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import SMALL, acted, batch_of, continuous_spaces, made_obs
from gymnasium import spaces as gym

from marlcore.algos import DQN, IQN, PPO, SAC, TD3
from marlcore.config import Schedule
from marlcore.interfaces import QueueSource, ReplaySource
from marlcore.replay import Prioritized, Sequence
from marlcore.spaces import MASK, Spaces
from marlcore.spec import Field, TransitionSpec

pytestmark = pytest.mark.usefixtures("seeded_torch")

CONTINUOUS = pytest.mark.parametrize("name", ["td3", "sac"])
EACH = pytest.mark.parametrize("name", ["dqn", "iqn", "td3", "sac"])
OBSERVATION = gym.Box(-1, 1, (3,), np.float32)


def exploring(epsilon, **numbers):
    return None if epsilon is None else {"epsilon": epsilon, "noise": 0.3, **numbers}


def act(hyper, model, obs, epsilon=None, mask=None, seed=0, **numbers):
    """The actions, and a random number of the generator after them."""
    request = {"explore": exploring(epsilon, **numbers), "state": None, "mask": mask}
    generator = np.random.default_rng(seed)
    return hyper.act(getattr(model, "acting", model), obs, **request, generator=generator).action, generator.random()


def made(name):
    """Returns an algorithm, its spaces and a model; Discrete action spaces have four actions."""
    hyper, spaces = SMALL[name]
    if not spaces.action.shape:
        spaces = replace(spaces, action=gym.Discrete(4))
    return hyper, spaces, hyper.make_model(spaces)


def state_extras(every):
    parts = {"hidden": (6,), "cell": (6,), "previous_action": (4,), "previous_reward": ()}
    return {name: Field(shape, every=every) for name, shape in parts.items()}


CHOSEN = ReplaySource(4, Prioritized(0.9))
QUEUED_ROWS = {"log_prob": Field()}
STORED = {  # what rows hold beside observation and action, and the learner's source
    **dict.fromkeys(SMALL, ({}, CHOSEN)),
    **dict.fromkeys(["ppo", "mappo", "happo"], (QUEUED_ROWS, QueueSource(24))),
    "coma": ({}, QueueSource(24)),
    "recurrentppo": ({**QUEUED_ROWS, **state_extras(1)}, QueueSource(24)),
    "r2d2": (state_extras(8), ReplaySource(1, Prioritized(0.9), Sequence(12, 4, 8))),
}


@pytest.mark.parametrize("name", SMALL)
def test_rows_store_what_acting_returns(name):
    hyper, spaces, model = made(name)
    extras, source = STORED[name]
    assert hyper.transition(spaces) == TransitionSpec(spaces.obs, spaces.action_field, extras)
    assert hyper.source(CHOSEN) == source
    obs = made_obs(spaces, 5, np.random.default_rng(0))
    for epsilon in (None, 0.5):
        chosen = acted(hyper, model, obs, explore=exploring(epsilon))
        assert chosen.action.shape == (5, *spaces.action_field.shape)
        stored = {**chosen.extras, **(chosen.state or {})}
        assert stored.keys() == extras.keys() - (QUEUED_ROWS if epsilon is None else set())
        assert all(stored[part].shape == (5, *extras[part].shape) for part in stored)
        if chosen.state:
            np.testing.assert_array_equal(chosen.state["previous_action"], np.eye(4)[chosen.action])
    np.testing.assert_array_equal(*(acted(hyper, model, obs, seed=seed).action for seed in (0, 1)), "greedy is random")


def test_rows_of_gaussians_store_the_sample():
    assert set(PPO().transition(continuous_spaces()).extras) == {"log_prob", "drawn"}


@EACH
def test_epsilon_may_differ_from_row_to_row(name):
    hyper, _, model = made(name)
    obs = torch.randn(40, 3)
    (exploiting, _), (exploring, _) = act(hyper, model, obs, 0.0), act(hyper, model, obs, 1.0)
    mixed, _ = act(hyper, model, obs, np.repeat([0.0, 1.0], 20))
    np.testing.assert_array_equal(mixed, np.concatenate([exploiting[:20], exploring[20:]]))
    assert (exploiting != exploring).any()


@EACH
def test_draws_depend_on_neither_epsilon_nor_mask(name):
    hyper, _, model = made(name)
    cases = [(0.0, None), (0.5, None), (1.0, None)]
    if name in ("dqn", "iqn"):
        cases.append((0.5, torch.eye(4, dtype=torch.bool)))
    assert len({act(hyper, model, torch.randn(4, 3), epsilon, mask, seed=7)[1] for epsilon, mask in cases}) == 1


@EACH
def test_the_network_is_not_run_when_every_row_explores(name):
    hyper, _, model = made(name)
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
    """Actions have the shape and dtype of their space. Discrete ones count from 0, whatever the space's start is."""
    hyper, spaces = algorithm(), Spaces(OBSERVATION, space)
    model = hyper.make_model(spaces)
    if algorithm in (TD3, SAC):
        with torch.no_grad():
            model.acting.output.weight.mul_(100)  # so that tanh, rounded, comes to its ends
    actions, _ = act(hyper, model, torch.randn(300, 3), epsilon)
    assert actions.shape == (300, *space.shape) and actions.dtype == spaces.action_field.dtype
    shifted = spaces.shifted(actions).astype(space.dtype)
    assert all(space.contains(shifted[row, ...]) for row in range(300))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["dqn", "iqn", "r2d2"])
def test_epsilon_zero_is_greedy_and_one_is_uniform(name, masked):
    """If there is a mask, only the actions that it allows count."""
    hyper, _, model = made(name)
    obs, masks = torch.randn(4000, 3), torch.rand(4000, 4) < 0.5
    masks[:, 0] = True
    values = model(obs, None)[0] if name == "r2d2" else model(obs)
    mask, best = (masks, values.masked_fill(~masks, -torch.inf).argmax(1)) if masked else (None, values.argmax(1))
    for epsilon in (0.0, None):
        np.testing.assert_array_equal(act(hyper, model, obs, epsilon, mask)[0], best)
    weights = masks / masks.sum(1, keepdim=True) if masked else torch.full((4000, 4), 0.25)
    counts = np.bincount(act(hyper, model, obs, 1.0, mask)[0], minlength=4)
    np.testing.assert_allclose(counts, weights.sum(0), atol=128)  # four standard deviations of at most 32


def allowed_by(mask, spaces, action):
    """Returns whether the masks [..., choices] allow the components of actions [..., components]."""
    return np.take_along_axis(mask, action.reshape(*mask.shape[:-1], -1) + spaces.mask_starts, -1)


CHOOSING = [name for name, (_, spaces) in SMALL.items() if not isinstance(spaces.action, gym.Box)]


@pytest.mark.parametrize("name", CHOOSING)
def test_outputs_far_below_zero_let_no_forbidden_action_through(name):
    """All outputs are -5e9. Updates stay finite, also those on rows whose masks allow nothing."""
    hyper, spaces = SMALL[name]
    spaces = replace(spaces, masked=True)
    batch, model = batch_of(hyper, spaces), hyper.make_model(spaces)
    for parameter_name, parameter in getattr(model, "acting", model).named_parameters():
        if "bias" in parameter_name:
            torch.nn.init.constant_(parameter, -5e9)
    obs = made_obs(spaces, 400, np.random.default_rng(0))
    masks = obs[MASK].numpy()
    masks[:, spaces.mask_starts] |= ~np.logical_or.reduceat(masks, spaces.mask_starts, 1)
    for epsilon in (None, 0.0, np.linspace(0, 1, 400)):
        assert allowed_by(masks, spaces, act(hyper, model, obs, epsilon, obs[MASK])[0]).all()
    taken = batch.obs[MASK].numpy()
    np.put_along_axis(taken, batch.action.numpy().reshape(*taken.shape[:-1], -1) + spaces.mask_starts, True, -1)
    batch.obs[MASK] = torch.from_numpy(taken)
    update = hyper.make_trainer(model).update(batch)
    assert all(map(torch.isfinite, update.metrics.values())), update.metrics
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@CONTINUOUS
def test_epsilon_1_is_uniform_in_the_box(name):
    hyper, spaces, model = made(name)
    action, _ = act(hyper, model, torch.randn(4000, 3), 1.0)
    place = (action - spaces.action.low) / (spaces.action.high - spaces.action.low)
    np.testing.assert_allclose(place.mean(0), 0.5, atol=0.02)  # more than four standard deviations of 0.0046
    np.testing.assert_allclose(place.std(0), 12**-0.5, atol=0.01)


def test_the_noise_of_td3_is_the_scheduled_one():
    """The noise is in units of half the range of a component."""
    hyper, spaces = TD3(noise=0.7), continuous_spaces()
    assert hyper.schedules()["noise"] == 0.7
    model, obs = hyper.make_model(spaces), torch.zeros(4000, 3)
    greedy, _ = act(hyper, model, obs)
    np.testing.assert_array_equal(act(hyper, model, obs, 0.0, noise=0.0)[0], greedy)
    away = (act(hyper, model, obs, 0.0, noise=0.05)[0] - greedy) / ((spaces.action.high - spaces.action.low) / 2)
    np.testing.assert_allclose(away.std(0), 0.05, rtol=0.06)  # five standard deviations
    np.testing.assert_allclose(away.mean(0), 0.0, atol=0.004)


@CONTINUOUS
def test_actions_are_uniform_until_the_first_update_by_default(name):
    epsilon = Schedule.from_value("epsilon", SMALL[name][0].schedules()["epsilon"])
    assert epsilon.of == "updates" and [epsilon.at(count) for count in (0, 1, 2, 10**6)] == [1.0, 0.0, 0.0, 0.0]
