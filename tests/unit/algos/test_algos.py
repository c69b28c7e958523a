"""The networks of values, and that the algorithms learn."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import box_spaces
from rounding import rounding

from marlcore.algos import DQN, IQN
from marlcore.algos.networks.qnetwork import FEW, Head

pytestmark = pytest.mark.usefixtures("seeded_torch")

# Sums over 64 cosines, two layers of at most 64 and 8 fractions, all under 10
CLOSE = rounding(3 * 64 + 8 + 10, 10.0)
BOTH = pytest.mark.parametrize("algorithm", [DQN, IQN])


def test_iqn_values_are_the_mean_of_quantiles_at_midpoints():
    network = IQN(n_policy=4).make_model(box_spaces())
    obs = torch.randn(5, 3)
    taus = torch.tensor([0.125, 0.375, 0.625, 0.875]).expand(5, 4)
    torch.testing.assert_close(network(obs), network(obs, taus).mean(1), **CLOSE)


def test_iqn_embeds_fractions_by_cosines():
    network = IQN(n_cos=5, hidden=(4, 4), dueling=False).make_model(box_spaces())
    obs, tau = torch.randn(1, 3), 0.3
    cosines = torch.tensor([np.cos(np.pi * i * tau) for i in range(5)], dtype=torch.float32)
    expected = network.head(network.torso(obs) * torch.relu(network.embedding.layers[0](cosines)))
    torch.testing.assert_close(network(obs, torch.tensor([[tau]]))[:, 0], expected, **CLOSE)


@pytest.mark.parametrize("actions", [1, 3, FEW, FEW + 1])
def test_dueling_values_add_centred_advantages(actions):
    head = Head(DQN(hidden=(8,)), 6, actions)
    x = torch.randn(4, 2, 6)
    raw = head.output(torch.relu(head.hidden(x)))
    advantage, value = raw[..., :actions], raw[..., actions:]
    close = rounding(2 * actions + 3, 2 * float(raw.detach().abs().max()) * actions)
    torch.testing.assert_close(head(x), value + advantage - advantage.mean(-1, keepdim=True), **close)
    torch.testing.assert_close(head(x).mean(-1, keepdim=True), value, **close)


def chain_batch(rng, rows=64, length=4):
    """Random moves on a line: right leads to +10 past its end, left to +2 at once and back to the start."""
    state, action = rng.integers(length, size=rows), rng.integers(2, size=rows)
    arrived = (action == 1) & (state == length - 1)
    following = np.where(action == 1, np.minimum(state + 1, length - 1), 0)
    one_hot = torch.eye(length)
    return SimpleNamespace(
        obs=one_hot[state],
        next_obs=one_hot[following],
        action=torch.from_numpy(action),
        reward=torch.from_numpy((10.0 * arrived + 2.0 * (action == 0)).astype(np.float32)),
        discount=torch.from_numpy(np.where(arrived, 0.0, 0.6).astype(np.float32)),
        weight=torch.ones(rows),
    )


@pytest.mark.long
@BOTH
@pytest.mark.parametrize("variant", [{}, {"double": False, "dueling": False, "target_update_freq": 20}])
def test_the_optimal_policy_of_a_chain_is_learned(algorithm, variant):
    hyper = algorithm(learning_rate=3e-3, tau=0.1, **variant)
    network = hyper.make_model(box_spaces((4,)))
    trainer = hyper.make_trainer(network)
    rng = np.random.default_rng(0)
    for _ in range(400):
        trainer.update(chain_batch(rng))
    values = network(torch.eye(4)).detach().numpy() / hyper.reward_scale
    expected = optimal_chain_values()
    assert expected.argmax(1).tolist() == [0, 0, 1, 1]  # a far reward is not worth the walk, a near one is
    np.testing.assert_array_equal(values.argmax(1), expected.argmax(1))
    np.testing.assert_allclose(values, expected, atol=0.5)


def optimal_chain_values(length=4):
    values = np.zeros((length, 2))
    for _ in range(100):
        best = values.max(1)
        values[:, 0] = 2 + 0.6 * best[0]
        values[:-1, 1] = 0.6 * best[1:]
        values[-1, 1] = 10
    return values
