"""TD3's and SAC's targets, losses and steps against plain NumPy."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from batches import continuous_spaces, made_batch, made_trainer
from gymnasium import spaces as gym
from rounding import near, rounding

from marlcore.algos import SAC, TD3

pytestmark = pytest.mark.usefixtures("seeded_torch")

BOTH = pytest.mark.parametrize("algorithm", [TD3, SAC])
SMALL = {"hidden": (8, 5)}
NOISY = {"target_noise": 1.0, "target_noise_clip": 0.4}  # so that clipping matters
ROWS = 12


def numbers(module):
    """Returns a module's tensors as float64 arrays, so that the oracle computes more digits."""
    return {name: tensor.detach().numpy().astype(np.float64) for name, tensor in module.state_dict().items()}


def plain_policy(weights, obs):
    """The last layer's outputs [B, ...] of a policy with two hidden layers."""
    x = obs.numpy().astype(np.float64)
    for layer in ("torso.dense.layers.0", "torso.dense.layers.1"):
        x = np.maximum(x @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"], 0)
    return x @ weights["output.weight"].T + weights["output.bias"]


def plain_critics(weights, obs, action):
    """The values [2, B] of two networks, one after the other."""
    x = np.concatenate([obs.numpy().astype(np.float64), action], 1)
    for layer in range(3):
        x = x @ weights[f"layers.{layer}.weight"] + weights[f"layers.{layer}.bias"]
        x = np.maximum(x, 0) if layer < 2 else x
    return x[:, :, 0]


def plain_scaled(spaces, action):
    low, high = (one.astype(np.float64) for one in (spaces.action.low, spaces.action.high))
    return (2 * (action.numpy() - low) / (high - low) - 1).reshape(len(action), -1)


def plain_gaussian(weights, obs, noise):
    """Actions [B, size] and the logarithms [B] of their densities, by the rule for a change of variables."""
    mean, log_std = np.split(plain_policy(weights, obs), 2, 1)
    std = np.exp(np.clip(log_std, -20, 2))
    before = mean + std * noise
    normal = np.exp(-(((before - mean) / std) ** 2) / 2) / (std * np.sqrt(2 * np.pi))
    return np.tanh(before), np.log(normal / (1 - np.tanh(before) ** 2)).sum(1)


def next_draws(trainer, *shapes):
    """The normal numbers that the trainer will draw."""
    generator = torch.Generator()
    generator.set_state(trainer.generator.get_state())
    return [torch.randn(shape, generator=generator).numpy() for shape in shapes]


def plain_targets(trainer, batch, noise):
    """Fujimoto et al. 2018, Algorithm 1; Haarnoja et al. 2018, equations 3 and 5 with a sample of the policy."""
    reward, discount, hyper = 0.1 * batch.reward.numpy(), batch.discount.numpy(), trainer.hyper
    if isinstance(hyper, TD3):
        policy, critics = numbers(trainer.target.acting), numbers(trainer.target.critics)
        noise = np.clip(hyper.target_noise * noise, -hyper.target_noise_clip, hyper.target_noise_clip)
        smoothed = np.tanh(plain_policy(policy, batch.next_obs)) + noise
        value = plain_critics(critics, batch.next_obs, np.clip(smoothed, -1, 1)).min(0)
    else:
        action, log_prob = plain_gaussian(numbers(trainer.policy), batch.next_obs, noise)
        temperature = np.exp(trainer.log_temperature.item())
        value = plain_critics(numbers(trainer.target), batch.next_obs, action).min(0) - temperature * log_prob
    return reward + discount * value


def plain_policy_loss(trainer, weights, batch, noise, temperature):
    """Returns the loss of a policy with these weights."""
    critics = numbers(trainer.critics)
    if isinstance(trainer.hyper, TD3):
        return -plain_critics(critics, batch.obs, np.tanh(plain_policy(weights, batch.obs)))[0].mean()
    action, log_prob = plain_gaussian(weights, batch.obs, noise)
    return (temperature * log_prob - plain_critics(critics, batch.obs, action).min(0)).mean()


@BOTH
@pytest.mark.parametrize("seed", range(5))
def test_targets_losses_and_priorities_are_those_of_plain_numpy(algorithm, seed):
    torch.manual_seed(seed)
    spaces = continuous_spaces()
    _, trainer = made_trainer(algorithm(**SMALL, **(NOISY if algorithm is TD3 else {})), spaces)
    batch = made_batch(spaces, rows=ROWS, seed=seed)
    (noise,) = next_draws(trainer, (ROWS, 6))
    targets = plain_targets(trainer, batch, noise)
    taken = plain_critics(numbers(trainer.critics), batch.obs, plain_scaled(spaces, batch.action))
    twin = copy.deepcopy(trainer.generator.get_state())
    terms, most = 2 * sum(SMALL["hidden"]) + 60, float(max(np.abs(targets).max(), np.abs(taken).max()))
    np.testing.assert_allclose(trainer.targets(batch).numpy(), targets, **rounding(terms, 10 * most))
    trainer.generator.set_state(twin)

    update = trainer.update(batch)

    errors = targets - taken
    loss = (batch.weight.numpy() * errors**2).mean(1).sum()
    assert update.metrics["loss"].item() == near(loss, terms + 2 * ROWS, 10 * most**2)
    assert update.metrics["q_mean"].item() == near(taken.mean() / 0.1, terms + 2 * ROWS, 10 * most / 0.1)
    np.testing.assert_allclose(update.priority.numpy(), np.abs(errors).mean(0), **rounding(terms, 10 * most))


def assert_descended(before, after, loss, least):
    """Adam's first step has the sign of the gradient; differences of the plain loss give that sign without autograd."""
    checked = 0
    for name, values in before.items():
        for at in np.ndindex(values.shape):
            losses = []
            for step in (-1e-5, 1e-5):
                nudged = {**before, name: values.copy()}
                nudged[name][at] += step
                losses.append(loss(nudged))
            slope = (losses[1] - losses[0]) / 2e-5
            if abs(slope) > least:
                assert after[name][at] - values[at] == pytest.approx(-1e-3 * np.sign(slope), rel=0.01), (name, at)
                checked += 1
    assert checked > 50


@BOTH
@pytest.mark.parametrize("part", ["critics", "policy"])
@pytest.mark.parametrize("seed", range(3))
def test_each_network_descends_the_gradient_of_its_loss(algorithm, part, seed):
    torch.manual_seed(seed)
    spaces = continuous_spaces(gym.Box(-2, 3, (2,), np.float32))
    _, trainer = made_trainer(algorithm(**SMALL, **({"policy_delay": 1} if algorithm is TD3 else {})), spaces)
    batch = made_batch(spaces, rows=ROWS, seed=seed)
    first, second = next_draws(trainer, (ROWS, 2), (ROWS, 2))
    targets, before = plain_targets(trainer, batch, first), numbers(getattr(trainer, part))

    def loss_of_critics(weights):
        errors = targets - plain_critics(weights, batch.obs, plain_scaled(spaces, batch.action))
        return (batch.weight.numpy() * errors**2).mean(1).sum()

    metrics = trainer.update(batch).metrics  # the critics come first: their new weights are those of the policy's loss
    loss_of_policy = partial(plain_policy_loss, trainer, batch=batch, noise=second, temperature=0.1)
    loss, least = (loss_of_critics, 1e-3) if part == "critics" else (loss_of_policy, 1e-4)
    assert_descended(before, numbers(getattr(trainer, part)), loss, least)
    if part == "policy":
        assert metrics["policy_loss"].item() == pytest.approx(loss(before), rel=1e-4, abs=1e-5)


def test_sac_densities_are_those_of_a_squashed_normal():
    """NumPy gives the same densities, also where tanh is nearly flat. The density of one component integrates to 1."""
    policy = SAC(**SMALL).make_model(continuous_spaces(gym.Box(-1, 1, (1,)))).acting
    with torch.no_grad():
        policy.output.bias.copy_(torch.tensor([0.4, -0.7]))
    obs, noise = torch.randn(1, 3).expand(4001, 3), torch.linspace(-6, 6, 4001)[:, None]
    with torch.no_grad():
        action, log_prob = policy.sample(policy(obs), noise)
    plain_action, plain_log_prob = plain_gaussian(numbers(policy), obs, noise.numpy())
    np.testing.assert_allclose(action.numpy(), plain_action, **rounding(60, 10.0))
    np.testing.assert_allclose(log_prob.numpy(), plain_log_prob, **rounding(60, 50.0))
    x, density = action.numpy()[:, 0].astype(np.float64), np.exp(log_prob.numpy().astype(np.float64))
    assert ((density[1:] + density[:-1]) / 2 * np.diff(x)).sum() == pytest.approx(1.0, abs=1e-3)


def test_sac_densities_are_finite_where_tanh_is_1():
    policy = SAC(**SMALL).make_model(continuous_spaces(gym.Box(-1, 1, (1,)))).acting
    with torch.no_grad():
        policy.output.weight.zero_()
        policy.output.bias.copy_(torch.tensor([30.0, 0.0]))
        action, log_prob = policy.sample(policy(torch.zeros(1, 3)), torch.zeros(1, 1))
    assert action.item() == 1.0
    # Far out 1 - tanh(x)^2 is 4 exp(-2 x).
    assert log_prob.item() == near(-np.log(np.sqrt(2 * np.pi)) - np.log(4) + 60, 10)


@pytest.mark.parametrize(("target_entropy", "direction"), [(100.0, 1), (-100.0, -1)])
def test_the_temperature_rises_where_the_entropy_is_below_its_target(target_entropy, direction):
    """It falls where the entropy is above its target. The first step has Adam's step size."""
    _, trainer = made_trainer(SAC(target_entropy=target_entropy, temperature=0.2, **SMALL), continuous_spaces())
    batch = made_batch(continuous_spaces(), rows=ROWS)
    _, noise = next_draws(trainer, (ROWS, 6), (ROWS, 6))
    _, log_prob = plain_gaussian(numbers(trainer.policy), batch.obs, noise)
    update = trainer.update(batch)
    assert update.metrics["temperature"].item() == pytest.approx(0.2)
    assert update.metrics["entropy"].item() == near(-log_prob.mean(), 60 + ROWS, 100.0)
    assert trainer.log_temperature.item() == pytest.approx(np.log(0.2) + direction * 1e-3, abs=1e-6)


def test_the_entropy_that_sac_holds_is_minus_the_number_of_components():
    assert made_trainer(SAC(), continuous_spaces())[1].target_entropy == -6.0
    assert made_trainer(SAC(target_entropy=-2.5), continuous_spaces())[1].target_entropy == -2.5
