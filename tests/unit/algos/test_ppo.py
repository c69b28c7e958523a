"""PPO's update against plain NumPy: the objective, the correction of older transitions, minibatches, resumption."""

import copy
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import NUMBERS, SMALL, plain_advantages, queue_batch
from gymnasium import spaces as gym
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import near, rounding
from torch.nn import functional

from marlcore.algos import PPO, RecurrentPPO
from marlcore.algos.bases.clipped_policy import ADAM_EPS, Evaluated
from marlcore.algos.recurrent_ppo import first_rows
from marlcore.observations import ALONE
from marlcore.spaces import JOINT, MASK, Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

WIDE = gym.Box(-10, 10, (3,), np.float32)
DISCRETE = Spaces(WIDE, gym.Discrete(4))
SINGLE = PPO(epochs=1, batch_size=24, minibatch_size=24, hidden=(8, 8), target_kl=None)


def plain_loss(hyper, log_prob, before, entropy, value, advantage, target):
    ratio = np.exp(log_prob - before)
    clipped = np.clip(ratio, 1 - hyper.clip, 1 + hyper.clip)
    policy = -np.minimum(ratio * advantage, clipped * advantage).mean()
    worth = 0.5 * ((value - target) ** 2).mean()
    bonus = NUMBERS["entropy_coefficient"] * entropy.mean()
    return policy, worth, policy + hyper.value_coefficient * worth - bonus


@settings(max_examples=40)
@given(
    correction=st.sampled_from(["vtrace", "gae"]),
    normalize=st.booleans(),
    units=st.booleans(),
    masked=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_the_loss_is_the_clipped_objective(correction, normalize, units, masked, seed):
    torch.manual_seed(seed)
    spaces = replace(DISCRETE, masked=masked)
    options = {"correction": correction, "normalize_advantages": normalize, "normalize_values": units}
    hyper = replace(SINGLE, ratio_clip=1.5, **options)
    batch, _ = queue_batch(hyper, spaces, seed=seed, stale=0.5)
    _, model = queue_batch(hyper, spaces, seed=seed + 1)
    with torch.no_grad():
        output, value = (one.numpy() for one in model(batch.obs))
        last = model.critic(batch.next_obs).numpy()
    if masked:
        output = np.where(batch.obs[MASK].numpy(), output, -1e9)
    logs = functional.log_softmax(torch.from_numpy(output), 1).numpy()
    log_prob = logs[np.arange(24), batch.action.numpy()]
    entropy = -(np.exp(logs) * logs).sum(1)
    acted = batch.extras["log_prob"].numpy()
    corrected = correction == "vtrace"
    ratio = np.exp(log_prob - acted) if corrected else np.ones(24)
    continues = batch.continues.numpy()
    following = np.where(continues, np.append(value[1:], 0.0), last)
    rows = batch.reward.numpy(), batch.discount.numpy(), value, following, continues, ratio
    advantage, target = plain_advantages(*rows, hyper.gae_lambda, 1.5, 1.0)
    if normalize:
        advantage = (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)
    before = log_prob if corrected else acted
    explained = 1 - (target - value).var(ddof=1) / target.var(ddof=1)
    mean, deviation = (target.mean(), target.std()) if units else (0.0, 1.0)
    goal = (target - mean) / deviation
    policy, worth, loss = plain_loss(hyper, log_prob, before, entropy, value, advantage, goal)

    update = hyper.make_trainer(model).update(batch)

    metrics = {name: float(one) for name, one in update.metrics.items()}
    moved = log_prob - before
    # Sums over 24 rows: of the advantages, their mean and deviation, and the loss; rows sum over runs and two layers.
    terms, most = 4 * 24 + 60, float(np.abs(advantage).max() * np.exp(np.abs(moved).max()))
    errors = float(np.square(np.abs(goal).max() + np.abs(value).max()))
    assert metrics["policy_loss"] == near(policy, terms, most)
    assert metrics["value_loss"] == near(worth, terms, errors)
    assert metrics["entropy"] == near(entropy.mean(), terms)
    assert metrics["loss"] == near(loss, terms, most + errors)
    summed = (np.exp(moved) + 1 + np.abs(moved)).mean() * (1 + np.abs(log_prob).max())
    assert metrics["approx_kl"] == near((np.exp(moved) - 1 - moved).mean(), terms, summed)
    assert metrics["clip_fraction"] == near((np.abs(np.exp(moved) - 1) > hyper.clip).mean(), 24)
    squares = np.square(np.abs(target).max() + np.abs(value).max()) / target.var()
    assert metrics["explained_variance"] == near(explained, terms, 1 + float(squares))
    assert update.updates == 1


@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
def test_a_ratio_that_is_too_large_for_a_float_has_no_slope(advantage):
    """For an advantage the paper's bound has none (Schulman et al. 2017, equation 7); the loss is a number always."""
    trainer = SINGLE.make_trainer(SINGLE.make_model(DISCRETE))
    moved = torch.tensor([90.0, 0.0], requires_grad=True)
    rows = SimpleNamespace(log_prob=torch.zeros(2), advantage=torch.full((2,), advantage))
    loss, *_ = trainer._policy_loss(moved, rows, torch.mean)
    loss.backward()
    assert loss.isfinite() and moved.grad.tolist() == [0.0, -advantage / 2]


CLIPPED = {"normalize_values": True, "correction": "gae", "gae_lambda": 0.0, "target_kl": None, "learning_rate": 0.01}


@pytest.mark.parametrize("name", ["ppo", "mappo", "recurrentppo", "happo"])
def test_value_clipping_bounds_moves_from_todays_predictions(name):
    """Against NumPy, on a second batch with other rewards, in whose units the critic does not yet predict.

    The loss is the larger error, of the prediction or of the one clipped around that before the update (Huang et al.
    2022, detail 9), each in the units of the running statistics of targets (Yu et al. 2022): so the first step's is
    plain.
    """
    hyper, spaces = SMALL[name]
    hyper = replace(hyper, **CLIPPED, clip_value=0.05, batch_size=24, minibatch_size=24, epochs=2)
    first, model = queue_batch(hyper, spaces)
    second, _ = queue_batch(hyper, spaces, seed=1, numbers=NUMBERS | {"learning_rate": 0.05})
    second.reward = 5 * second.reward + 30
    trainer, targets, values = hyper.make_trainer(model), [], []
    minibatches = trainer.minibatches
    trainer.minibatches = lambda rows: values.append(predicted(trainer, batch)) or minibatches(rows)
    for batch in (first, second):
        now = predicted(trainer, batch)
        mean, deviation = plain_statistics(targets)
        following = np.where(batch.continues, np.append(now[1:], 0.0), after(trainer, batch))
        targets.append(batch.reward.numpy() + batch.discount.numpy() * (mean + deviation * following))
        update = trainer.update(copy.copy(batch))
    mean, deviation = plain_statistics(targets)
    goal = (targets[-1] - mean) / deviation
    before, moved = values[-2:]  # at the critic's last two steps
    clipped = before + np.clip(moved - before, -0.05, 0.05)
    assert (np.abs(moved - before) > 0.05).mean() > 0.3, "else nothing was clipped"
    losses = (before - goal) ** 2, np.maximum((moved - goal) ** 2, (clipped - goal) ** 2)
    assert update.metrics["value_loss"].item() == pytest.approx(0.25 * sum(loss.mean() for loss in losses), rel=1e-3)


def plain_statistics(targets):
    """The mean and deviation of exponential averages with decay 0.99, debiased; 0 and 1 before the first batch."""
    if not targets:
        return 0.0, 1.0
    weights = 0.99 ** np.arange(len(targets))[::-1]
    mean, square = (np.average([(one**power).mean() for one in targets], weights=weights) for power in (1, 2))
    return mean, np.sqrt(square - mean**2)


@torch.no_grad()
def predicted(trainer, batch):
    """Returns the critic's values of a batch's observations, in its own units."""
    model = trainer.model
    if isinstance(trainer.hyper, RecurrentPPO):
        return model(batch.obs, batch.extras, first_rows(batch.continues, trainer.hyper.unroll))[1].numpy()
    return model.critic(batch.obs).numpy()


@torch.no_grad()
def after(trainer, batch):
    return trainer.values_after(batch, torch.arange(24)).numpy()


def test_each_epoch_visits_every_row_once():
    hyper = replace(SINGLE, epochs=3, minibatch_size=7)
    batch, model = queue_batch(hyper, DISCRETE, stale=0.5)
    batch.obs[:, 0] = torch.arange(24)
    seen = []
    model.acting.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][:, 0].tolist()))
    assert hyper.make_trainer(model).update(batch).updates == 12
    minibatches = seen[1:]  # the first call is of the whole batch, in its order
    assert seen[0] == list(range(24)) and [len(one) for one in minibatches] == [7, 7, 7, 3] * 3
    epochs = [list(chain.from_iterable(minibatches[i : i + 4])) for i in (0, 4, 8)]
    assert all(sorted(one) == list(range(24)) for one in epochs)
    assert len({tuple(one) for one in epochs}) == 3


def test_a_single_step_is_the_step_of_minibatches():
    """The shortcut needs one pass, and changes the network as the general way does, except for the order of sums.

    Adam's first step is the rate times g / (|g| + eps) for a gradient g, so where g is off by `off`, at most the rate
    times off / eps away. Sums over 24 rows and two layers of 8 make g, whose norm is clipped to 0.5.
    """
    off = rounding(24 + 2 * 8 + 10)["atol"] * SINGLE.max_grad_norm
    batch, model = queue_batch(SINGLE, DISCRETE, stale=0.5)
    twin, calls = copy.deepcopy(model), []
    model.acting.register_forward_pre_hook(lambda _, inputs: calls.append(len(inputs[0])))
    SINGLE.make_trainer(model).update(batch)
    assert calls == [24]
    trainer = SINGLE.make_trainer(twin)
    assert trainer.optimizer.defaults["eps"] == ADAM_EPS == 1e-5
    trainer.optimizer.set_learning_rate(NUMBERS["learning_rate"])
    now = Evaluated(*(one.detach() for one in trainer.evaluate(batch)))
    rows, _ = trainer.prepare(batch, now)
    (minibatch,) = trainer.minibatches(rows)
    trainer._step(trainer.evaluate(minibatch), minibatch, NUMBERS["entropy_coefficient"])
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=NUMBERS["learning_rate"] * off / ADAM_EPS)


def test_target_kl_ends_the_passes():
    hyper = replace(SINGLE, epochs=50, minibatch_size=6, target_kl=1e-3)
    batch, model = queue_batch(hyper, DISCRETE, stale=0.5, numbers=NUMBERS | {"learning_rate": 0.05})
    assert hyper.make_trainer(model).update(batch).updates < 40


def test_the_learning_rate_and_the_entropy_follow_the_schedules():
    moved = {}
    for rate in (0.0, 1e-3):
        torch.manual_seed(0)
        batch, model = queue_batch(SINGLE, DISCRETE, numbers={"learning_rate": rate, "entropy_coefficient": 0.5})
        before = [one.detach().clone() for one in model.parameters()]
        metrics = SINGLE.make_trainer(model).update(batch).metrics
        pairs = zip(model.parameters(), before, strict=True)
        moved[rate] = max(float((one.detach() - old).abs().max()) for one, old in pairs)
        expected = metrics["policy_loss"] + 0.5 * metrics["value_loss"] - 0.5 * metrics["entropy"]
        assert float(metrics["loss"]) == near(float(expected), 8, 10.0)
    assert moved[0.0] == 0 and 0.5e-3 < moved[1e-3] < 2e-3
    assert PPO(learning_rate="linear(1, 0, 10)").schedules()["learning_rate"] == "linear(1, 0, 10)"


def test_the_joint_observation_changes_values_and_no_action():
    hyper, spaces = SMALL["mappo"]
    model = hyper.make_model(spaces)
    obs = {ALONE: torch.randn(8, 3), JOINT: torch.randn(8, 6)}
    output, value = model(obs)
    again, others = model({**obs, JOINT: torch.randn(8, 6)})
    assert torch.equal(output, again) and (value != others).all()
    assert model.acting.torso.dense.layers[0].in_features == 3
    assert model.critic.torso.dense.layers[0].in_features == 9
