"""The networks of values."""

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
