"""R2D2's loss, targets and priorities against plain NumPy, on windows from a replay."""

import copy
from dataclasses import replace

import batches
import numpy as np
import pytest
import torch
from batches import box_spaces, made_trainer, made_windows, plain_rescaled, plain_restored
from gymnasium import spaces as gym
from hypothesis import given, settings
from hypothesis import strategies as st

from marlcore.algos import R2D2
from marlcore.replay import Prioritized
from marlcore.spaces import MASK, Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

SMALL = R2D2(hidden=(8, 8), units=6, length=12, burn_in=4, period=8, n_step=3)
WIDE = gym.Box(-10, 10, (3,), np.float32)


def values_of(network, batch, held):
    return batches.stepped_values(network, network.torso.acted, batch, held, network.actions.count)


def plain_targets(hyper, batch, held, values, slow, allowed):
    """The targets [B, T] of the transitions that each window holds, one after another."""

    def later(row, step):
        chooser = (values if hyper.double else slow)[row, step]
        among = [a for a in range(len(chooser)) if allowed is None or allowed[row][step][a]]
        future = slow[row, step][max(among or [0], key=lambda a: chooser[a])]
        return plain_restored(future) if hyper.rescale else future

    returns = batches.plain_returns(hyper, batch, held, later)
    return plain_rescaled(returns) if hyper.rescale else returns


@settings(max_examples=10)
@given(
    cell=st.sampled_from(["lstm", "gru"]),
    burn_in=st.sampled_from([0, 4]),
    n_step=st.sampled_from([1, 2, 5, 20]),
    double=st.booleans(),
    rescale=st.booleans(),
    masked=st.booleans(),
    stack=st.sampled_from([1, 3]),
    seed=st.integers(0, 2**16),
)
def test_loss_and_priorities_are_those_of_a_plain_loop(cell, burn_in, n_step, double, rescale, masked, stack, seed):
    """Targets are n-step double ones; returns end with their window."""
    torch.manual_seed(seed)
    options = {"cell": cell, "burn_in": burn_in, "n_step": n_step, "double": double, "rescale": rescale}
    hyper = replace(SMALL, reward_scale=0.5, eta=0.8, **options)
    spaces = Spaces(WIDE, gym.Discrete(4), masked=masked, stack=stack)
    network, trainer = made_trainer(hyper, spaces)
    batch = made_windows(hyper, spaces, 6, seed, prioritized=Prioritized()).torch()
    batch.weight = torch.rand(len(batch))
    held, mask, allowed = batch.valid[..., -1].numpy(), batch.mask.numpy(), None
    if masked:
        allowed = torch.cat([batch.obs[MASK][:, :1], batch.next_obs[MASK]], 1).numpy()
        allowed = allowed[:, :, -1] if stack > 1 else allowed
    values, slow = values_of(network, batch, held), values_of(trainer.target, batch, held)
    targets = plain_targets(hyper, batch, held, values, slow, allowed)
    rows, steps = np.indices(held.shape)
    taken = values[rows, steps, batch.action.numpy()]

    update = trainer.update(batch)

    batches.check_window_update(update, batch, targets - taken)
    in_reward = (plain_restored(taken) if rescale else taken) / 0.5
    assert update.metrics["q_mean"].item() == pytest.approx(in_reward[mask].mean(), rel=1e-3, abs=1e-4)
    assert update.priority.dtype == torch.float32 and not update.priority.requires_grad


def test_windows_of_the_tests_have_every_kind_of_end():
    """Otherwise the test above would not try all of them."""
    batch = made_windows(SMALL, box_spaces(), rows=64)
    held = batch.valid[..., -1].sum(1)
    last = np.arange(64), held - 1
    early = held < 12
    begins = batch.mask[:, 0]
    assert (early & batch.terminated[last]).any() and (early & batch.truncated[last]).any()
    assert (early & ~batch.terminated[last] & ~batch.truncated[last]).any()
    assert (held == 12).any() and begins.any() and not begins.all() and not batch.mask[~begins, :4].any()


def test_a_window_learns_nothing_from_its_burn_in():
    """Rewards of the burn-in change gradients only as inputs, which this test sets to 0."""
    spaces = box_spaces()
    batch = made_windows(SMALL, spaces).torch()
    gradients = []
    for change in (0.0, 5.0):
        torch.manual_seed(0)
        network, trainer = made_trainer(SMALL, spaces)
        before_each = network.torso.before_each
        network.torso.before_each = lambda action, reward, state, same=before_each: same(action, 0 * reward, state)
        trainer.target.torso.before_each = network.torso.before_each
        other = copy.copy(batch)
        burnt = ~batch.mask & batch.valid[..., -1]
        other.reward = batch.reward + change * burnt
        trainer.update(other)
        gradients.append([parameter.grad.clone() for parameter in network.parameters()])
    later = SMALL.n_step  # returns of the burn-in's last steps reach no further back than themselves
    assert later > 1 and burnt.any()
    assert all(map(torch.equal, *gradients))
