"""The passes of fully connected layers that are written out, against autograd, and when DQN uses them."""

import copy

import numpy as np
import pytest
import torch
from batches import box_spaces, made_batch, made_obs, made_trainer
from gymnasium import spaces as gym
from rounding import rounding
from tiers import long_but
from torch.nn import functional

from marlcore.algos import DQN
from marlcore.algos.fast import passes
from marlcore.algos.fast.passes import AutogradPass, LayersPass
from marlcore.algos.networks.qnetwork import FEW, QNetwork
from marlcore.spaces import Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

MIXED = gym.Dict({"place": gym.MultiDiscrete([3, 4]), "speed": gym.Box(-1, 1, (2, 3), np.float32)})


OBSERVED, COUNTS = [gym.Box(-1, 1, (3,), np.float32), gym.Discrete(5), MIXED], [1, 3, FEW + 1]
LAYERS = [(True, (8,)), (True, (8, 8)), (False, (8, 7, 8))]
CASES = [(i, j, (i + j) % 3) for i in range(3) for j in range(3)]  # each pair of options once


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_passes_of_a_network_agree(case, stack):
    (dueling, hidden), actions, observation = LAYERS[case[0]], COUNTS[case[1]], OBSERVED[case[2]]
    spaces = Spaces(observation, gym.Discrete(actions), stack=stack)
    network, trainer = made_trainer(DQN(hidden=hidden, dueling=dueling), spaces)
    assert isinstance(passes(network), LayersPass)
    obs, further = (made_obs(spaces, rows, np.random.default_rng(rows)) for rows in (6, 5))
    gradient, results = torch.randn(6, actions), []
    for both in (passes(network), AutogradPass(network)):
        trainer.optimizer.zero_grad()
        with torch.no_grad():
            values = both.forward(obs, further)
            both.backward(gradient)
        results.append([*values, *(parameter.grad.clone() for parameter in network.parameters())])
    for written, recorded in zip(*results, strict=True):
        scale = float(recorded.abs().max())
        torch.testing.assert_close(written, recorded, **rounding(6 + 30 + 4 * 8 + 2 * actions, scale))


def test_an_update_steps_along_the_gradient_of_the_huber_loss():
    network, trainer = made_trainer(DQN(hidden=(8, 8), max_grad_norm=1e9), box_spaces())
    batch = made_batch()
    taken = network(batch.obs).gather(1, batch.action[:, None]).squeeze(1)
    loss = (batch.weight * functional.huber_loss(taken, trainer.targets(batch), reduction="none")).mean()
    expected = torch.autograd.grad(loss, list(network.parameters()))
    trainer.update(batch)
    for parameter, gradient in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, **rounding(6 + 30 + 4 * 8, 100.0))


class Louder(QNetwork):
    """A network of the same parts that computes something else with them."""

    def forward(self, obs):
        return 2 * super().forward(obs)


def louder(network):
    network.__class__ = Louder


def frozen(network):
    network.torso.requires_grad_(False)


def compiled(network):
    network.compile(backend="eager")


def sharing(network):
    """Two layers have the same weights, whose gradients add up."""
    network.torso.dense.layers[1].weight = network.head.hidden.weight


@pytest.mark.parametrize("change", long_but([louder, frozen, sharing], [louder, frozen, compiled, sharing]))
def test_other_networks_take_the_pass_of_autograd(change):
    network, trainer = made_trainer(DQN(hidden=(8, 8, 8)), box_spaces())
    change(network)
    assert isinstance(passes(network), AutogradPass)
    before = copy.deepcopy(network.state_dict())
    trainer.update(made_batch())
    stay = {name for name, values in network.state_dict().items() if torch.equal(values, before[name])}
    assert stay == {name for name in before if change is frozen and name.startswith("torso.")}


def test_networks_of_images_take_the_pass_of_autograd():
    assert isinstance(passes(DQN().make_model(box_spaces((32, 32), dtype=np.uint8))), AutogradPass)
