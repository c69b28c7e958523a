"""Recurrent layers: steps and windows against torch's cells, burn-in, inputs, and rescaled values."""

import numpy as np
import pytest
import torch
from batches import plain_rescaled, plain_restored
from gymnasium import spaces as gym
from rounding import rounding

from marlcore.algos import R2D2
from marlcore.algos.networks import recurrent
from marlcore.algos.networks.recurrent import PREVIOUS_ACTION, Recurrent, RecurrentTorso, rescaled, restored
from marlcore.interfaces import PREVIOUS_REWARD
from marlcore.spaces import Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

ROWS, STEPS, INPUTS, UNITS = 4, 9, 5, 3
# A step sums over inputs, units and two biases, and takes three exponentials; no output or sum exceeds 10.
CLOSE = rounding(STEPS * (INPUTS + UNITS + 2 + 3 * 4), 10.0)
BOTH = pytest.mark.parametrize("kind", ["lstm", "gru"])


def made(kind):
    layer = Recurrent(kind, INPUTS, UNITS)
    return layer, torch.randn(ROWS, STEPS, INPUTS), {name: torch.randn(ROWS, UNITS) for name in layer.parts}


@BOTH
def test_steps_and_windows_are_those_of_torchs_cells(kind):
    layer, x, state = made(kind)
    window, after = layer(x, state)
    weights, parts = list(layer.layer.parameters()), tuple(state.values())
    for step in range(STEPS):
        if kind == "lstm":
            parts = torch.lstm_cell(x[:, step], parts, *weights)
        else:
            parts = (torch.gru_cell(x[:, step], *parts, *weights),)
        output, state = layer(x[:, step], state)
        torch.testing.assert_close((window[:, step], output), (parts[0], parts[0]), **CLOSE)
    for found in (state, after):
        torch.testing.assert_close(found, dict(zip(layer.parts, parts, strict=True)), **CLOSE)


@BOTH
def test_burn_in_passes_no_gradient_unless_its_state_is_known(kind):
    layer, x, state = made(kind)
    x.requires_grad_()
    known = torch.tensor([False, True, False, True])
    for burn_in in (STEPS + 3, STEPS, 4):  # windows of up to its length are seen whole
        burnt, _ = recurrent.Windows(None, torch.zeros(ROWS, STEPS - 1), burn_in, known).unroll(layer, x, state)
        torch.testing.assert_close(burnt, layer(x, state)[0], **CLOSE)
    (gradient,) = torch.autograd.grad(burnt[:, 4:].sum(), x)
    reached = gradient.abs().sum(2) > 0
    assert reached[:, 4:].all()
    assert reached[known, :4].all() and not reached[~known, :4].any()


@BOTH
def test_an_untrained_layer_keeps_its_state(kind):
    """After 3 steps, over a third of a difference is left; a layer that halved it in each step would keep an eighth."""
    layer = Recurrent(kind, INPUTS, 200)
    x, name = torch.zeros(1, 3, INPUTS), layer.parts[-1]
    zero, one = torch.zeros(1, 200), torch.ones(1, 200)
    ends = [layer(x, {"hidden": zero, name: state})[1][name] for state in (zero, one)]
    assert (ends[1] - ends[0]).mean().item() > 1 / 3


def test_the_last_action_and_reward_are_inputs():
    """The state has the action and reward before a window, the batch those within it."""
    spaces = Spaces(gym.Box(-1, 1, (2,), np.float32), gym.MultiDiscrete([2, 3], start=[5, -1]))
    torso = RecurrentTorso(R2D2(units=UNITS), spaces, ())
    obs, reward = torch.randn(2, 4, 2), torch.tensor([[3.0, -8.0, 0.5], [1.0, 2.0, 4.0]])
    action = torch.tensor([[[0, 1], [1, 2], [1, 0]], [[1, 1], [0, 0], [0, 2]]])  # as rows hold them, from 0
    state = {
        **{name: torch.zeros(2, UNITS) for name in ("hidden", "cell")},
        PREVIOUS_ACTION: torch.tensor([[1.0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]),
        PREVIOUS_REWARD: torch.tensor([7.0, 0.0]),
    }
    before = torso.before_each(action, reward, state)
    found, _ = torso(obs.flatten(0, 1), before, lambda core, inputs, state: (inputs.view(2, 4, -1), state))
    found = found.detach().numpy()
    one_hot = np.concatenate([np.eye(2)[action[..., 0]], np.eye(3)[action[..., 1]]], 2)
    actions = np.concatenate([state[PREVIOUS_ACTION][:, None].numpy(), one_hot], 1)
    rewards = np.concatenate([[[7.0], [0.0]], reward], 1)
    np.testing.assert_allclose(found[..., :2], obs)
    np.testing.assert_array_equal(found[..., 2:7], actions)
    np.testing.assert_allclose(found[..., 7], plain_rescaled(rewards), **rounding(10))


def test_values_are_rescaled_as_the_paper_says():
    values = np.concatenate([[0.0], np.geomspace(1e-3, 1e6, 40), -np.geomspace(1e-3, 1e6, 40)])
    assert (np.diff(plain_rescaled(np.sort(values))) > 0).all()
    np.testing.assert_allclose(rescaled(torch.from_numpy(values)), plain_rescaled(values), rtol=1e-12)
    np.testing.assert_allclose(restored(torch.from_numpy(values)), plain_restored(values), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(restored(rescaled(torch.from_numpy(values))), values, rtol=1e-8, atol=1e-10)
    small = torch.linspace(-0.1, 0.1, 201)  # for which the paper's own form of the inverse is wrong by some 5e-5
    torch.testing.assert_close(restored(rescaled(small)), small, rtol=0, atol=1e-6)
