"""Recurrent layers against plain NumPy: steps and windows, burn-in, and what is an input."""

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
# Each step sums over inputs, units and two biases, and takes three exponentials; no output or sum exceeds 10.
CLOSE = rounding(STEPS * (INPUTS + UNITS + 2 + 3 * 4), 10.0)
BOTH = pytest.mark.parametrize("kind", ["lstm", "gru"])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def plain_step(layer, x, state):
    """One step as Hochreiter and Schmidhuber (1997) and Cho et al. (2014) write it, in torch's order of the gates."""
    w = {name: one.detach().double().numpy() for name, one in layer.layer.named_parameters()}
    of_x = x @ w["weight_ih_l0"].T + w["bias_ih_l0"]
    of_h = state["hidden"] @ w["weight_hh_l0"].T + w["bias_hh_l0"]
    if "cell" not in state:
        (rx, zx, nx), (rh, zh, nh) = np.split(of_x, 3, 1), np.split(of_h, 3, 1)
        update = sigmoid(zx + zh)
        return {"hidden": (1 - update) * np.tanh(nx + sigmoid(rx + rh) * nh) + update * state["hidden"]}
    keep_in, forget, new, out = np.split(of_x + of_h, 4, 1)
    cell = sigmoid(forget) * state["cell"] + sigmoid(keep_in) * np.tanh(new)
    return {"hidden": sigmoid(out) * np.tanh(cell), "cell": cell}


def plain_unroll(layer, x, state):
    outputs = []
    for step in range(x.shape[1]):
        state = plain_step(layer, x[:, step], state)
        outputs.append(state["hidden"])
    return np.stack(outputs, 1), state


def made(kind):
    layer = Recurrent(kind, INPUTS, UNITS)
    return layer, torch.randn(ROWS, STEPS, INPUTS), {name: torch.randn(ROWS, UNITS) for name in layer.parts}


@BOTH
def test_steps_and_windows_are_what_the_papers_write(kind):
    layer, x, state = made(kind)
    plain_state = {name: part.double().numpy() for name, part in state.items()}
    expected, last = plain_unroll(layer, x.double().numpy(), plain_state)
    window, after = layer(x, state)
    np.testing.assert_allclose(window.detach(), expected, **CLOSE)
    for step in range(STEPS):
        output, state = layer(x[:, step], state)
        np.testing.assert_allclose(output.detach(), expected[:, step], **CLOSE)
    for name in layer.parts:
        np.testing.assert_allclose(after[name].detach(), last[name], **CLOSE)
        np.testing.assert_allclose(state[name].detach(), last[name], **CLOSE)


@BOTH
def test_burn_in_passes_no_gradient_unless_its_state_is_known(kind):
    layer, x, state = made(kind)
    x.requires_grad_()
    known = torch.tensor([False, True, False, True])
    burnt, _ = recurrent.Windows(None, torch.zeros(ROWS, STEPS - 1), 4, known).unroll(layer, x, state)
    torch.testing.assert_close(burnt, layer(x, state)[0], **CLOSE)
    (gradient,) = torch.autograd.grad(burnt[:, 4:].sum(), x)
    reached = gradient.abs().sum(2) > 0
    assert reached[:, 4:].all()
    assert reached[known, :4].all() and not reached[~known, :4].any()


@BOTH
def test_an_untrained_layer_keeps_its_state(kind):
    """After 3 steps a third of a difference is left; with half of it lost at each step it were an eighth."""
    layer = Recurrent(kind, INPUTS, 200)
    x, name = torch.zeros(1, 3, INPUTS), layer.parts[-1]
    zero, one = torch.zeros(1, 200), torch.ones(1, 200)
    ends = [layer(x, {"hidden": zero, name: state})[1][name] for state in (zero, one)]
    assert (ends[1] - ends[0]).mean().item() > 1 / 3


def test_windows_shorter_than_the_burn_in_are_seen_whole():
    layer, x, state = made("lstm")
    known = torch.ones(ROWS, dtype=torch.bool)
    for burn_in in (STEPS, STEPS + 3):
        windows = recurrent.Windows(None, torch.zeros(ROWS, STEPS - 1), burn_in, known)
        torch.testing.assert_close(windows.unroll(layer, x, state)[0], layer(x, state)[0], **CLOSE)


def test_the_last_action_and_reward_are_inputs():
    """Those of the state come first, those of the window follow."""
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
