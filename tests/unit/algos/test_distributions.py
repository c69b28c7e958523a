"""Distributions over actions against torch.distributions, and what is drawn against what is said of it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from rounding import rounding
from torch import distributions as plain

from marlcore.algos.networks.distributions import DRAWN, distribution_of

pytestmark = pytest.mark.usefixtures("seeded_torch")

ROWS = 64
CLOSE = rounding(8 + 5 * 4, 100.0)  # at most 8 components of under 12 each, with five exponentials or logarithms
BOX = gym.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
WIDE = gym.Box(-3e38, 3e38, (2,), np.float32)  # wider than a float32 can say
SPACES = {
    "discrete": gym.Discrete(5, start=2),
    "multi": gym.MultiDiscrete([3, 1, 4]),
    "binary": gym.MultiBinary((2, 3)),
    "box": BOX,
    "unbounded": gym.Box(-np.inf, np.inf, (2, 2), np.float64),
}


def drawn(space, scale=1.0, seed=0):
    distribution = distribution_of("PPO", space)
    output = scale * torch.randn(ROWS, distribution.outputs)
    with torch.no_grad():
        for parameter in distribution.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
        sampled = distribution.sample(output, None, np.random.default_rng(seed))
    return distribution, output, sampled, batch_of(sampled)


def batch_of(sampled):
    action, _, extras = sampled
    tensors = {name: torch.from_numpy(values) for name, values in extras.items()}
    return SimpleNamespace(action=torch.from_numpy(action), extras=tensors)


def oracle(space, distribution, output, batch):
    """Returns torch's distributions of the components, and each one's part of a batch's actions."""
    if isinstance(space, gym.Box):
        normal = plain.Independent(plain.Normal(output, distribution.log_std.exp()), 1)
        return [normal], [batch.extras[DRAWN].reshape(output.shape)]
    if isinstance(space, gym.MultiBinary):
        return [plain.Independent(plain.Bernoulli(logits=output), 1)], [batch.action.reshape(output.shape).float()]
    sizes = [5] if isinstance(space, gym.Discrete) else [3, 1, 4]
    return [plain.Categorical(logits=one) for one in output.split(sizes, 1)], batch.action.view(ROWS, -1).unbind(1)


@pytest.mark.parametrize("name", SPACES)
def test_log_probability_and_entropy_are_those_of_torch(name):
    """Components are independent, so their log-probabilities and entropies add up."""
    distribution, output, (_, of_draws, _), batch = drawn(SPACES[name])
    log_prob, entropy = distribution(output, None, batch)
    assert of_draws.dtype == np.float32 and of_draws.shape == (ROWS,)
    np.testing.assert_allclose(of_draws, log_prob.detach(), **CLOSE)
    parts, taken = oracle(SPACES[name], distribution, output, batch)
    judged = sum(part.log_prob(own) for part, own in zip(parts, taken, strict=True))
    torch.testing.assert_close(log_prob, judged, **CLOSE)
    torch.testing.assert_close(entropy, sum(part.entropy() for part in parts).expand(ROWS), **CLOSE)


@pytest.mark.parametrize("name", list(SPACES))
def test_actions_are_members_of_the_space(name):
    space = SPACES[name]
    start = getattr(space, "start", 0)
    distribution, output, (sampled, *_), _ = drawn(space, scale=5.0)
    for actions in (sampled, distribution.mode(output, None).numpy()):
        assert actions.dtype == space.dtype and actions.shape == (ROWS, *space.shape)
        assert all(space.contains(one + start if isinstance(space, gym.Discrete) else one) for one in actions)


@pytest.mark.parametrize("shift", [0.0, -2e9])
@pytest.mark.parametrize("name", ["discrete", "multi"])
def test_a_forbidden_value_is_never_taken(name, shift):
    space = SPACES[name]
    sizes = [5] if name == "discrete" else [3, 1, 4]
    distribution = distribution_of("PPO", space)
    rng = np.random.default_rng(1)
    masks = rng.random((ROWS, sum(sizes))) < 0.4
    starts = np.cumsum([0, *sizes[:-1]])
    for start, size in zip(starts, sizes, strict=True):
        masks[np.arange(ROWS), start + rng.integers(size, size=ROWS)] = True
    mask = torch.from_numpy(masks)
    output = 5 * torch.randn(ROWS, sum(sizes)) + shift
    sampled = distribution.sample(output, mask, rng)
    for actions in (sampled[0], distribution.mode(output, mask).numpy()):
        taken = actions.reshape(ROWS, -1) + starts
        assert np.take_along_axis(masks, taken, 1).all()
    log_prob, entropy = distribution(output, mask, batch_of(sampled))
    np.testing.assert_allclose(sampled[1], log_prob, **CLOSE)
    far = output.double()  # whose logarithms float32 rounds away
    parts = [plain.Categorical(logits=one) for one in far.masked_fill(~mask, -torch.inf).split(sizes, 1)]
    expected = sum(-(one.probs * one.logits.clamp(min=-1e9)).sum(1) for one in parts)
    torch.testing.assert_close(entropy, expected.float(), **CLOSE)


def test_rows_without_an_allowed_value_and_their_gradients_are_finite():
    distribution = distribution_of("PPO", SPACES["multi"])
    output = torch.randn(ROWS, 8, requires_grad=True)
    mask = torch.ones(ROWS, 8, dtype=torch.bool)
    mask[0], mask[1, 4:] = False, False  # all of a row, and a component of another
    judged = distribution(output, mask, SimpleNamespace(action=torch.zeros(ROWS, 3), extras={}))
    torch.autograd.backward([*judged], [torch.ones(ROWS)] * 2)
    assert all(map(torch.Tensor.all, map(torch.isfinite, (*judged, output.grad))))


@pytest.mark.parametrize("name", list(SPACES))
def test_draws_follow_the_distribution(name):
    """Over many draws of one output, the mean log-probability is minus the entropy, up to chance."""
    distribution = distribution_of("PPO", SPACES[name])
    output = torch.randn(1, distribution.outputs).expand(20_000, -1)
    sampled = distribution.sample(output, None, np.random.default_rng(0))
    _, entropy = distribution(output, None, batch_of(sampled))
    log_prob = sampled[1]
    error = 4 * log_prob.std() / np.sqrt(len(log_prob)) + 1e-6
    assert abs(log_prob.mean() + float(entropy[0].detach())) < error


@pytest.mark.parametrize(("space", "centre", "half"), [(BOX, [0.0, 5.0], [2.0, 5.0]), (WIDE, [0.0, 0.0], 3e38)])
def test_a_gaussian_draws_in_units_of_half_the_range(space, centre, half):
    distribution = distribution_of("PPO", space)
    with torch.no_grad():
        distribution.log_std.fill_(-20)
    output = torch.tensor([[0.0, 0.0], [0.5, -0.5], [3.0, -3.0]])
    expected = centre + np.array([[0.0, 0.0], [0.5, -0.5], [1.0, -1.0]]) * half
    np.testing.assert_allclose(distribution.mode(output, None), expected, rtol=1e-6)
    action, _, extras = distribution.sample(output, None, np.random.default_rng(0))
    np.testing.assert_allclose(action, expected, atol=1e-6 * np.max(half))
    np.testing.assert_allclose(extras[DRAWN], output, atol=1e-6)  # not clipped
