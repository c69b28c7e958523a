"""Dense layers and the head: exactly the modules that they stand for, also in copies."""

import copy
import io
import pickle

import pytest
import torch
from rounding import rounding
from torch import nn
from updates import box_spaces

from marlcore.algos import DQN, IQN
from marlcore.algos.networks.head import FEW, Head
from marlcore.algos.networks.torso import Dense

pytestmark = pytest.mark.usefixtures("seeded_torch")

BOTH = pytest.mark.parametrize("algorithm", [DQN, IQN])


def test_dense_layers_equal_a_sequence_of_modules_exactly():
    dense = Dense(5, (7, 3))
    modules = nn.Sequential(*(part for layer in dense.layers for part in (layer, nn.ReLU())))
    x = torch.randn(11, 5)
    assert torch.equal(dense(x), modules(x))
    dense(x).sum().backward()
    found = [one.grad.clone() for one in dense.parameters()]
    dense.zero_grad()
    modules(x).sum().backward()
    assert all(map(torch.equal, found, (one.grad for one in modules.parameters())))


@pytest.mark.parametrize("actions", [1, 3, FEW, FEW + 1])
def test_dueling_values_add_centred_advantages(actions):
    """Dueling values are the state value plus centred advantages."""
    head = Head(6, 8, actions, dueling=True)
    x = torch.randn(4, 2, 6)
    raw = head.output(torch.relu(head.hidden(x)))
    advantage, value = raw[..., :actions], raw[..., actions:]
    close = rounding(2 * actions + 3, 2 * float(raw.detach().abs().max()) * actions)
    torch.testing.assert_close(head(x), value + advantage - advantage.mean(-1, keepdim=True), **close)
    torch.testing.assert_close(head(x).mean(-1, keepdim=True), value, **close)


def test_a_head_without_dueling_is_two_layers():
    head = Head(6, 8, 3, dueling=False)
    x = torch.randn(4, 6)
    assert torch.equal(head(x), head.output(torch.relu(head.hidden(x))))


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@BOTH
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), saved_and_loaded])
def test_a_copy_computes_with_its_own_parameters(algorithm, copied):
    model = algorithm(hidden=(8, 8)).make_model(box_spaces())
    twin = copied(model)
    obs = torch.randn(4, 3)
    before = model(obs)
    assert torch.equal(twin(obs), before)
    for parameter in twin.parameters():
        with torch.no_grad():
            parameter.zero_()
    assert (twin(obs) == 0).all() and torch.equal(model(obs), before)


@BOTH
def test_a_replaced_parameter_is_used(algorithm):
    """A parameter that replaces another, as `load_state_dict(assign=True)` does, is the one that is used."""
    model, other = (algorithm(hidden=(8, 8)).make_model(box_spaces()) for _ in range(2))
    model.load_state_dict(other.state_dict(), assign=True)
    obs = torch.randn(4, 3)
    assert torch.equal(model(obs), other(obs))
