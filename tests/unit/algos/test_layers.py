"""The options of built-in layers, for every algorithm: activation, normalization and initialization."""

import math
from dataclasses import replace

import pytest
import torch
from batches import SMALL, box_spaces, continuous_spaces
from torch import nn
from torch.nn import functional

import marlcore as mc
from marlcore.algos.compiled import with_engine
from marlcore.algos.networks.torso import StackedLinear

pytestmark = pytest.mark.usefixtures("seeded_torch")

EACH = pytest.mark.parametrize("name", SMALL)
ACTIVATIONS = ["tanh", "relu", "elu", "gelu", "silu"]
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layer_norm", [True, False])
def test_layers_of_values_are_those_of_the_options(activation, layer_norm):
    hyper = mc.DQN(hidden=(8, 6), dueling=False, activation=activation, layer_norm=layer_norm)
    model, obs = hyper.make_model(box_spaces()), torch.randn(5, 3)

    def expected(x, block):
        linear = block[0] if layer_norm else block
        x = functional.linear(x, linear.weight, linear.bias)
        if layer_norm:
            x = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
        return getattr(torch, activation, getattr(functional, activation))(x)

    features = expected(expected(obs, model.torso.dense.layers[0]), model.head.hidden)
    torch.testing.assert_close(model(obs), model.head.output(features), **CLOSE)
    trainer = hyper.make_trainer(model)
    plain = activation in ("relu", "tanh") and not layer_norm
    assert (with_engine(trainer, "auto")[0] is trainer) != plain


def test_critics_are_two_networks():
    critics = mc.TD3(hidden=(8, 6), activation="silu", layer_norm=True).make_model(continuous_spaces()).critics
    with torch.no_grad():
        for parameter in critics.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    obs, action = torch.randn(5, 3), torch.rand(5, 6)
    for i, values in enumerate(critics(obs, action)):
        x = torch.cat([obs, action], 1)
        for linear, norm in critics.layers[:-1]:
            x = x @ linear.weight[i] + linear.bias[i]
            x = functional.silu(functional.layer_norm(x, x.shape[1:], norm.weight[i, 0], norm.bias[i, 0]))
        last = critics.layers[-1]
        torch.testing.assert_close(values, (x @ last.weight[i] + last.bias[i]).squeeze(1), **CLOSE)


def weights_of(model):
    """The matrices of layers [outputs, inputs], with their biases."""
    for layer in model.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            yield layer.weight.detach().flatten(1), layer.bias
        elif isinstance(layer, StackedLinear):
            yield from zip((weight.t() for weight in layer.weight.detach()), layer.bias, strict=True)


KINDS = {
    1: "bc cql dqn iqn r2d2",
    2: "ppo mappo recurrentppo vdn qmix",
    3: "coma td3 sac td3bc maddpg",
    4: "matd3 happo",
}
LAST = {name: count for count, names in KINDS.items() for name in names.split()}  # layers of other gains


@EACH
def test_orthogonal_weights_are_orthogonal_and_xaviers_uniform(name):
    hyper, spaces = SMALL[name]
    for weight, bias in weights_of(replace(hyper, initialization="xavier").make_model(spaces)):
        bound = math.sqrt(2) * math.sqrt(6 / sum(weight.shape))
        assert weight.abs().max() <= bound and not bias.any()
    gains = []
    for weight, bias in weights_of(replace(hyper, initialization="orthogonal").make_model(spaces)):
        product = weight @ weight.t() if len(weight) <= weight.shape[1] else weight.t() @ weight
        gain = float(product[0, 0].sqrt())
        torch.testing.assert_close(product, gain**2 * torch.eye(len(product)), **CLOSE)
        assert not bias.any()
        gains.append(gain)
    others = [gain for gain in gains if not math.isclose(gain, math.sqrt(2), rel_tol=1e-4)]
    assert len(others) == LAST[name] and all(min(abs(gain - 1), abs(gain - 0.01)) < 1e-4 for gain in others)


def test_the_defaults_are_those_of_the_papers():
    for kind in (mc.DQN, mc.PPO, mc.TD3):
        hyper = kind()
        assert (hyper.channels, hyper.kernels, hyper.strides) == ((16, 32), (8, 4), (4, 2))
        assert (hyper.network, hyper.layer_norm, hyper.image_side) == (None, False, 32)
    assert (mc.PPO().activation, mc.PPO().initialization) == ("tanh", "orthogonal")
    assert (mc.DQN().activation, mc.DQN().initialization) == ("relu", "default")
