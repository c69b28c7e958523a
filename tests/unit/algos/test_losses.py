"""The networks' values, losses, targets and priorities against plain NumPy, with and without masks."""

from itertools import product

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


def choices(spaces):
    """Each joint action as a tuple of its components, in the order of the network's outputs."""
    space = spaces.action
    sizes = getattr(space, "nvec", None)
    if sizes is None:
        sizes = [space.n] if isinstance(space, gym.Discrete) else [2] * int(np.prod(space.shape))
    return list(product(*(range(size) for size in sizes))), [int(size) for size in sizes]


def plain_allowed(spaces, obs):
    """bool [B, joint actions], from the last frame's mask; a row that allows nothing counts as one that allows all."""
    joint, sizes = choices(spaces)
    if not spaces.masked:
        return None
    masks = obs[MASK].numpy() if spaces.stack == 1 else obs[MASK].numpy()[:, -1]
    starts = np.cumsum([0, *sizes[:-1]])
    return np.array([[all(mask[at + one] for at, one in zip(starts, a, strict=True)) for a in joint] for mask in masks])


def plain_best(values, allowed):
    """Each row's best allowed action, by comparing one after another; -1 if none is allowed."""
    found = []
    for row, line in enumerate(values):
        among = [a for a in range(len(line)) if allowed is None or allowed[row][a]]
        found.append(max(among, key=lambda a: line[a]) if among else -1)
    return np.array(found)


def taken_index(spaces, batch):
    joint, _ = choices(spaces)
    return np.array([joint.index(tuple(np.ravel(action).tolist())) for action in batch.action.numpy()])


def plain_quantile_loss(predicted, target, taus, kappa):
    loss = np.zeros(len(predicted))
    for row in range(len(predicted)):
        for i, tau in enumerate(taus[row]):
            for sample in target[row]:
                error = sample - predicted[row, i]
                loss[row] += abs(tau - (error < 0)) * huber(error, kappa) / kappa / len(target[row])
    return loss


@torch.no_grad()
def values_of(network, obs, taus=None):
    """A network's quantiles [B, N, actions] at these fractions; without them its values [B, 1, actions]."""
    return (network(obs)[:, None] if taus is None else network(obs, taus)).numpy()


def next_fractions(trainer, *counts):
    """The fractions that the trainer will draw."""
    generator = torch.Generator()
    generator.set_state(trainer.generator.get_state())
    return [torch.rand(ROWS, count, generator=generator) for count in counts]


def ended_where_nothing_is_allowed(spaces, batch):
    """The batch, its episodes terminated where the next observation's mask allows nothing."""
    allowed = plain_allowed(spaces, batch.next_obs)
    if allowed is not None:
        batch.discount[torch.from_numpy(~allowed.any(1))] = 0
    return batch


@BOTH
@settings(max_examples=30)
@given(spaces=all_spaces(), double=st.booleans(), kappa=st.sampled_from([0.05, 0.5, 1.0]), seed=st.integers(0, 2**16))
def test_the_loss_is_the_weighted_one_of_the_paper(algorithm, spaces, double, kappa, seed):
    """DQN's Huber loss, whose |error| is the priority; IQN's quantile Huber loss; towards the best allowed action."""
    torch.manual_seed(seed)
    of_iqn = {"n_tau": 3, "n_tau_prime": 5, "kappa": kappa} if algorithm is IQN else {}
    network, trainer = made_trainer(algorithm(double=double, hidden=(8, 8), **of_iqn), spaces)
    batch = ended_where_nothing_is_allowed(spaces, made_batch(spaces, rows=ROWS, seed=seed))
    taus, next_taus = next_fractions(trainer, 3, 5) if algorithm is IQN else (None, None)
    now, after = values_of(network, batch.obs, taus), values_of(trainer.target, batch.next_obs, next_taus)
    chooser = values_of(network if double else trainer.target, batch.next_obs)[:, 0]
    rows = np.arange(ROWS)
    action = plain_best(chooser, plain_allowed(spaces, batch.next_obs))
    target = 0.1 * batch.reward.numpy()[:, None] + batch.discount.numpy()[:, None] * after[rows, :, action]
    taken = now[rows, :, taken_index(spaces, batch)]
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
    """Where quantiles do not depend on the fraction, the two are equal up to the fractions that the trainer draws."""
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
