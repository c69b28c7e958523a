"""What is written out: passes of fully connected layers against autograd, and Adam against torch's."""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from batches import box_spaces, made_batch, made_obs, made_trainer
from gymnasium import spaces as gym
from rounding import near, rounding
from tiers import long_but
from torch.nn import functional

from marlcore.algos import DQN
from marlcore.algos.fast import ClippedAdam, passes
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
    assert isinstance(passes(DQN().make_model(box_spaces((32, 32), dtype=np.uint8))), AutogradPass)
    stay = {name for name, values in network.state_dict().items() if torch.equal(values, before[name])}
    assert stay == {name for name in before if change is frozen and name.startswith("torso.")}


MAX_NORM, RATE = 0.5, 0.01
NUMBERS = 32  # of the network
# torch's clipping divides by the norm plus 1e-6, and Adam by the root of squares that are scaled alike: a step changes
# by twice that share of the norm at most. No step is longer than ten times the rate.
CLIPPING = 2 * 1e-6 / MAX_NORM


def made_network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))


def step(network, optimizer, inputs, clip_and_step):
    optimizer.zero_grad()
    network(inputs).square().sum().backward()
    return clip_and_step()


@pytest.mark.parametrize("scale", [0.01, 10.0], ids=["short gradients", "clipped ones"])
def test_steps_are_those_of_torch(scale):
    """Each of 20 steps from the same state: differences between steps would add up to any amount."""
    ours, theirs = made_network(), made_network()
    adam = ClippedAdam(list(ours.parameters()), lr=RATE)
    peer = torch.optim.Adam(theirs.parameters(), lr=RATE)

    def clip_and_step_peer():
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), MAX_NORM)
        peer.step()
        return norm

    for _ in range(20):
        theirs.load_state_dict(ours.state_dict())
        peer.load_state_dict(copy.deepcopy(adam.state_dict()))
        inputs = scale * torch.randn(7, 3)
        norm = step(ours, adam, inputs, lambda: adam.clip_and_step(MAX_NORM))
        peer_norm = step(theirs, peer, inputs, clip_and_step_peer)
        assert norm.item() == near(peer_norm.item(), NUMBERS, 0.0)
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            most = rounding(NUMBERS + 20, 10 * RATE)
            torch.testing.assert_close(one, other, rtol=most["rtol"], atol=most["atol"] + 10 * RATE * CLIPPING)


def test_the_state_of_torchs_adam_goes_on_bit_for_bit():
    network = made_network()
    adam = torch.optim.Adam(network.parameters(), lr=RATE, fused=True)
    for _ in range(3):
        step(network, adam, torch.randn(7, 3), adam.step)
    twin = copy.deepcopy(network)
    resumed = ClippedAdam(list(twin.parameters()), lr=RATE)
    resumed.load_state_dict(copy.deepcopy(adam.state_dict()))
    inputs = torch.randn(7, 3)
    step(network, adam, inputs, adam.step)
    step(twin, resumed, inputs, lambda: resumed.clip_and_step(1e9))
    assert all(map(torch.equal, network.parameters(), twin.parameters()))


@pytest.mark.long
def test_it_does_not_import_torchs_compiler():
    """Which takes a second, in each learner of a run."""
    program = """
import sys, torch
from marlcore.algos.fast import ClippedAdam
adam = ClippedAdam([torch.nn.Parameter(torch.zeros(3))], lr=0.1)
adam.clip_and_step(1.0)
adam.load_state_dict(adam.state_dict())
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
