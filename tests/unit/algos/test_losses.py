"""The networks' values, losses, targets and priorities against plain NumPy, with and without masks."""

import numpy as np
import pytest
import torch
from batches import box_spaces, huber, made_batch, made_trainer
from gymnasium import spaces as gym
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import near, rounding

from marlcore.algos import DQN, IQN
from marlcore.algos.networks.qnetwork import FEW, Head
from marlcore.spaces import MASK, Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

BOTH = pytest.mark.parametrize("algorithm", [DQN, IQN])
WIDE = gym.Box(-10, 10, (3,), np.float32)
ROWS = 16


@st.composite
def all_spaces(draw):
    """Spaces of each kind of action, masked where there may be a mask, with and without a stack."""
    kind = draw(st.sampled_from(["discrete", "multi", "binary"]))
    if kind == "discrete":
        action = gym.Discrete(draw(st.integers(1, 6)), start=draw(st.integers(-2, 2)))
    elif kind == "multi":
        action = gym.MultiDiscrete(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    else:
        action = gym.MultiBinary(draw(st.sampled_from([1, 3, (2, 2)])))
    masked = kind != "binary" and draw(st.booleans())
    return Spaces(WIDE, action, masked=masked, stack=draw(st.sampled_from([1, 3])))


def sizes_of(space):
    """The numbers of choices of an action's components."""
    if isinstance(space, gym.Discrete):
        return np.array([space.n])
    return getattr(space, "nvec", np.full(space.shape, 2)).ravel()


def plain_allowed(spaces, obs):
    """Returns bool [B, joint actions] by the last frame's mask, in the order of the network's outputs."""
    sizes = sizes_of(spaces.action)
    if not spaces.masked:
        return np.ones((ROWS, np.prod(sizes)), bool)
    masks = obs[MASK].numpy().reshape(ROWS, -1, sizes.sum())[:, -1]
    places = np.cumsum([0, *sizes[:-1]]) + list(np.ndindex(*sizes))
    return masks[:, places].all(2)


def plain_quantile_loss(predicted, target, taus, kappa):
    error = target[:, None, :] - predicted[:, :, None]
    return (abs(taus[:, :, None] - (error < 0)) * huber(error, kappa) / kappa).mean(2).sum(1)


@torch.no_grad()
def values_of(network, obs, taus=None):
    """A network's quantiles [B, N, actions] at these fractions; without them its values [B, 1, actions]."""
    return (network(obs)[:, None] if taus is None else network(obs, taus)).numpy()


def next_fractions(trainer, *counts):
    """The fractions that the trainer will draw."""
    generator = torch.Generator()
    generator.set_state(trainer.generator.get_state())
    return [torch.rand(ROWS, count, generator=generator) for count in counts]


@BOTH
@settings(max_examples=30)
@given(spaces=all_spaces(), double=st.booleans(), kappa=st.sampled_from([0.05, 0.5, 1.0]), seed=st.integers(0, 2**16))
def test_the_loss_is_the_weighted_one_of_the_paper(algorithm, spaces, double, kappa, seed):
    """DQN has the Huber loss, and |error| as priority; IQN has the quantile Huber loss, which is also its priority."""
    torch.manual_seed(seed)
    of_iqn = {"n_tau": 3, "n_tau_prime": 5, "kappa": kappa} if algorithm is IQN else {}
    network, trainer = made_trainer(algorithm(double=double, hidden=(8, 8), **of_iqn), spaces)
    batch = made_batch(spaces, rows=ROWS, seed=seed)
    allowed = plain_allowed(spaces, batch.next_obs)
    batch.discount[torch.from_numpy(~allowed.any(1))] = 0  # where an episode goes on, some action is allowed
    taus, next_taus = next_fractions(trainer, 3, 5) if algorithm is IQN else (None, None)
    now, after = values_of(network, batch.obs, taus), values_of(trainer.target, batch.next_obs, next_taus)
    chooser = values_of(network if double else trainer.target, batch.next_obs)[:, 0]
    rows = np.arange(ROWS)
    action = np.where(allowed, chooser, -np.inf).argmax(1)
    target = 0.1 * batch.reward.numpy()[:, None] + batch.discount.numpy()[:, None] * after[rows, :, action]
    taken = now[rows, :, np.ravel_multi_index(batch.action.reshape(ROWS, -1).numpy().T, sizes_of(spaces.action))]
    if algorithm is IQN:
        losses = priority = plain_quantile_loss(taken, target, taus.numpy(), kappa)
    else:
        losses, priority = huber(target - taken)[:, 0], np.abs(target - taken)[:, 0]
        np.testing.assert_allclose(trainer.targets(batch), target[:, 0], rtol=1e-4, atol=1e-4)

    update = trainer.update(batch)

    # A row's loss is of differences of two numbers, IQN's of a sum of 3 times 5 pairs; those of the rows are averaged.
    most = float(max(np.abs(target).max(), np.abs(taken).max()))
    assert update.metrics["loss"].item() == near(np.mean(batch.weight.numpy() * losses), ROWS + 15 + 8, 3 * most)
    assert update.metrics["q_mean"].item() == near(taken.mean() / 0.1, ROWS * 3 + 2, most / 0.1)
    np.testing.assert_allclose(update.priority.numpy(), priority, **rounding(15 + 8, 3 * most))


@pytest.mark.parametrize("kappa", [0.5, 1.0, 4.0])
@BOTH
def test_actors_first_priorities_have_the_unit_of_the_trainers(algorithm, kappa):
    """If quantiles do not depend on the fraction, both are equal except for the fractions that the trainer draws."""
    hyper = IQN(n_tau=400, kappa=kappa) if algorithm is IQN else DQN()
    network, trainer = made_trainer(hyper, box_spaces())
    if algorithm is IQN:
        with torch.no_grad():
            for embedding in (network.embedding, trainer.target.embedding):
                for name, parameter in embedding.named_parameters():
                    parameter.fill_(float(name.endswith("bias")))
    trainer.target.load_state_dict(network.state_dict())
    batch = made_batch(rows=64, discount=torch.full((64,), 0.9))
    with torch.no_grad():
        now, after = network(batch.obs).numpy(), network(batch.next_obs).numpy()
    before = {"taken": now[np.arange(64), batch.action.numpy()]}
    first = hyper.first_priority(before, batch.reward.numpy(), 0.9, {"best": after.max(1)})
    assert first.dtype == np.float32
    np.testing.assert_allclose(first, trainer.update(batch).priority.numpy(), rtol=0.2, atol=1e-6)
    unknown = hyper.first_priority({"taken": np.full(1, np.nan)}, np.ones(1), 0.9, {"best": np.ones(1)})
    assert np.isnan(unknown).all()


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
