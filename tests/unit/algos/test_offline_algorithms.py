"""BC's losses, CQL's penalty and TD3+BC's weighting against plain NumPy; BC acts within masks."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import box_spaces, continuous_spaces, made_batch, made_trainer
from gymnasium import spaces as gym
from rounding import near, rounding
from torch import distributions as plain

import marlcore as mc
from marlcore.spaces import MASK, Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

ROWS = 16
BOX = gym.Box(-9, 9, (3,), np.float32)
CLONED = {
    "discrete": box_spaces(actions=5),
    "masked": box_spaces(actions=5, masked=True),
    "multi": Spaces(BOX, gym.MultiDiscrete([3, 1, 4]), masked=True),
    "binary": Spaces(BOX, gym.MultiBinary((2, 2))),
    "box": continuous_spaces(),
    "unbounded": Spaces(BOX, gym.Box(-np.inf, np.inf, (2,), np.float64)),
}


def demonstrations(spaces, seed):
    """Returns a batch whose masks allow its actions."""
    bounded = spaces if spaces is not CLONED["unbounded"] else Spaces(BOX, gym.Box(-3, 3, (2,), np.float64))
    batch = made_batch(bounded, rows=ROWS, seed=seed)
    if spaces.masked:
        for row, action in enumerate(batch.action.reshape(ROWS, -1).numpy()):
            batch.obs[MASK][row, spaces.mask_starts + action] = True
    return batch


def plain_log_prob(spaces, output, log_std, batch):
    action = batch.action.reshape(ROWS, -1)
    if isinstance(spaces.action, gym.Box):
        low, high = (torch.from_numpy(bound.ravel()) for bound in (spaces.action.low, spaces.action.high))
        drawn = (action - (low + high) / 2) / ((high - low) / 2) if low.isfinite().all() else action
        return plain.Normal(output, log_std.exp()).log_prob(drawn).sum(1)
    if isinstance(spaces.action, gym.MultiBinary):
        return plain.Bernoulli(logits=output).log_prob(action.double()).sum(1)
    if spaces.masked:
        output = output.masked_fill(~batch.obs[MASK], -torch.inf)
    parts = torch.tensor_split(output, spaces.mask_starts[1:].tolist(), 1)
    return sum(plain.Categorical(logits=part).log_prob(action[:, i]) for i, part in enumerate(parts))


@pytest.mark.parametrize("name", CLONED)
def test_bc_s_loss_is_minus_the_mean_log_probability(name):
    spaces = CLONED[name]
    model, trainer = made_trainer(mc.BC(hidden=(8, 8)), spaces)
    torch.nn.init.normal_(model.head.weight)  # else the policy is uniform
    batch = demonstrations(spaces, 3)
    log_std = getattr(model.distribution, "log_std", torch.zeros(())).detach().double()
    log_prob = plain_log_prob(spaces, model(batch.obs).detach().double(), log_std, batch).numpy()

    update = trainer.update(batch)

    most = float(np.abs(log_prob).max()) + 10
    assert update.metrics["loss"].item() == near(-(batch.weight.numpy() * log_prob).mean(), ROWS + 40, 10 * most)
    np.testing.assert_allclose(update.priority, np.maximum(-log_prob, 0), **rounding(60, 10 * most))
    assert trainer.update(batch).metrics["loss"] < update.metrics["loss"]


@pytest.mark.parametrize("masked", [False, True])
def test_cql_s_penalty_is_equation_4(masked):
    spaces = box_spaces(actions=4, masked=masked)
    _, trainer = made_trainer(mc.CQL(hidden=(8, 8), alpha=2.5), spaces)
    batch, values = demonstrations(spaces, 3), 3 * torch.randn(ROWS, 4)
    taken = values.gather(1, batch.action[:, None]).squeeze(1)
    allowed = batch.obs[MASK].numpy() if masked else np.ones((ROWS, 4), bool)
    among = np.log((np.exp(values.double().numpy()) * allowed).sum(1))
    expected = 2.5 * np.mean(batch.weight.numpy() * (among - taken.numpy()))
    assert trainer.penalties(batch, values, taken)["penalty"].item() == near(expected, ROWS + 12, 100.0)


def test_cql_adds_its_penalty_to_dqn_and_nothing_without_alpha():
    updates = {}
    for name, hyper in {"dqn": mc.DQN(), "none": mc.CQL(alpha=0.0), "cql": mc.CQL(alpha=3.0)}.items():
        torch.manual_seed(0)
        model, trainer = made_trainer(hyper, box_spaces())
        updates[name] = trainer.update(made_batch()).metrics, [*model.parameters()]
    assert all(map(torch.equal, updates["dqn"][1], updates["none"][1]))
    assert not all(map(torch.equal, updates["dqn"][1], updates["cql"][1]))
    loss, penalty = updates["cql"][0]["loss"].item(), updates["cql"][0]["penalty"].item()
    assert penalty > 0 and loss - penalty == near(updates["dqn"][0]["loss"].item(), 10, 10.0)


@pytest.mark.parametrize("seed", range(3))
def test_td3_bc_weighs_values_by_their_mean_size(seed):
    """The loss is equations 3 and 5; no gradient passes through the weight."""
    spaces = continuous_spaces()
    _, trainer = made_trainer(mc.TD3BC(hidden=(8, 8), alpha=1.5), spaces)
    batch, rng = made_batch(spaces, rows=ROWS, seed=seed), np.random.default_rng(seed)
    action, value = rng.uniform(-1, 1, (ROWS, 6)), rng.normal(scale=7, size=(1, ROWS))
    low, high = spaces.action.low.ravel(), spaces.action.high.ravel()
    recorded = (batch.action.numpy().reshape(ROWS, 6) - (low + high) / 2) / ((high - low) / 2)
    tensors = [torch.from_numpy(array).float().requires_grad_() for array in (action, value)]

    loss = trainer.policy_loss(SimpleNamespace(action=batch.action), *tensors)
    loss.backward()

    weight, away = 1.5 / np.abs(value).mean(), action - recorded
    assert loss.item() == near((away**2).mean() - weight * value.mean(), ROWS * 6 + 10, 20.0)
    np.testing.assert_allclose(tensors[0].grad, 2 * away / away.size, **rounding(20, 1.0))
    np.testing.assert_allclose(tensors[1].grad, np.full((1, ROWS), -weight / ROWS), **rounding(ROWS + 10, 1.0))
