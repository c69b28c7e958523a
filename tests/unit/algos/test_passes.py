"""The passes of fully connected layers that are written out, against autograd, and when DQN uses them."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from rounding import near, rounding
from updates import box_spaces, made_batch, made_obs, made_trainer

from marlcore.algos import DQN
from marlcore.algos.dqn import DQNNetwork, DQNTrainer
from marlcore.algos.fast.passes import AutogradPass, LayersPass, passes
from marlcore.algos.networks.qnetwork import FEW
from marlcore.spaces import Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

HYPER = DQN(hidden=(8, 8))
MIXED = gym.Dict({"place": gym.MultiDiscrete([3, 4]), "speed": gym.Box(-1, 1, (2, 3), np.float32)})


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("observation", [gym.Box(-1, 1, (3,), np.float32), gym.Discrete(5), MIXED], ids=str)
@pytest.mark.parametrize("actions", [1, 3, FEW + 1])
@pytest.mark.parametrize(("dueling", "hidden"), [(True, (8,)), (True, (8, 8)), (False, (8, 7, 8))])
def test_both_passes_of_a_network_agree(dueling, hidden, actions, observation, stack):
    spaces = Spaces(observation, gym.Discrete(actions), stack=stack)
    network, trainer = made_trainer(DQN(hidden=hidden, dueling=dueling), spaces)
    assert isinstance(passes(network), LayersPass)
    obs, gradient = made_obs(spaces, 6, np.random.default_rng(0)), torch.randn(6, actions)
    found = []
    for one in (passes(network), AutogradPass(network)):
        trainer.optimizer.zero_grad()
        with torch.no_grad():
            values = one.forward(obs)
            one.backward(gradient)
        found.append([values, *(parameter.grad.clone() for parameter in network.parameters())])
    for written, recorded in zip(*found, strict=True):
        scale = float(recorded.abs().max())
        torch.testing.assert_close(written, recorded, **rounding(6 + 30 + 4 * 8 + 2 * actions, scale))


def test_an_update_makes_the_step_of_both_passes():
    network, trainer = made_trainer(HYPER)
    other = copy.deepcopy(network)
    twin = DQNTrainer(HYPER, other)
    twin.load_state_dict(copy.deepcopy(trainer.state_dict()))
    other.register_forward_hook(lambda *_: None)
    assert isinstance(passes(other), AutogradPass)
    for seed in range(3):
        updates = [one.update(made_batch(seed=seed)) for one in (trainer, twin)]
        other.load_state_dict(network.state_dict())  # differences between steps would add up to any amount
        for name, value in updates[0].metrics.items():
            assert value.item() == near(updates[1].metrics[name].item(), 40, 100.0), name


class Louder(DQNNetwork):
    """A network of the same parts that computes something else with them."""

    def forward(self, obs):
        return 2 * super().forward(obs)


def frozen(hyper: DQN, spaces: Spaces) -> DQNNetwork:
    network = hyper.make_model(spaces)
    network.torso.requires_grad_(False)
    return network


def compiled(hyper: DQN, spaces: Spaces) -> DQNNetwork:
    network = hyper.make_model(spaces)
    network.compile(backend="eager")
    return network


def of_images(hyper: DQN, _: Spaces) -> DQNNetwork:
    return hyper.make_model(box_spaces((32, 32), dtype=np.uint8))


def sharing(hyper: DQN, spaces: Spaces) -> DQNNetwork:
    """Two of its layers have the same weights, whose gradients add up."""
    network = DQN(hidden=(8, 8, 8)).make_model(spaces)
    network.torso.dense.layers[1].weight = network.head.hidden.weight
    return network


@pytest.mark.parametrize("made", [Louder, frozen, compiled, of_images, sharing])
def test_other_networks_take_the_pass_of_autograd(made):
    network = made(HYPER, box_spaces())
    assert isinstance(passes(network), AutogradPass)


def test_the_frozen_part_of_a_network_stays():
    network = frozen(HYPER, box_spaces())
    before = copy.deepcopy(network.state_dict())
    DQNTrainer(HYPER, network).update(made_batch())
    changed = {name for name, one in network.state_dict().items() if not torch.equal(one, before[name])}
    assert changed and all(name.startswith("head.") for name in changed)
