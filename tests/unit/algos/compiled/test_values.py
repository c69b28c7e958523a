"""Compiled updates of DQN, CQL and IQN beside their text: each from an equal state, on random spaces and options."""

import copy
import itertools

import numpy as np
import pytest
import torch
from batches import box_spaces, made_batch, made_trainer
from gymnasium import spaces as gym
from rounding import near, rounding
from tiers import long_but

from marlcore.algos import CQL, DQN, IQN
from marlcore.algos.compiled import with_engine
from marlcore.algos.compiled.trainer import as_arrays
from marlcore.algos.networks.qnetwork import QNetwork
from marlcore.compiled import use_level
from marlcore.spaces import Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

BOX = gym.Box(-1, 1, (3,), np.float32)
PLACE = gym.MultiDiscrete([3, 4], start=[1, -2])
NESTED = gym.Dict({"place": PLACE, "speed": gym.Box(-1, 1, (2, 3)), "on": gym.Discrete(3)})
ACTIONS = [gym.Discrete(1), gym.Discrete(4), gym.Discrete(70), gym.MultiDiscrete([3, 2]), gym.MultiBinary(2)]
SPACES = [
    Spaces(observation, action, masked, stack)
    for observation, action, masked, stack in itertools.product((BOX, NESTED), ACTIONS, (False, True), (1, 2))
    if not (masked and isinstance(action, gym.MultiBinary))
]
OPTIONS = {
    "double": [True, False],
    "dueling": [True, False],
    "hidden": [(8,), (17, 5), (4, 16, 33)],
    "activation": ["relu", "tanh"],
    "target_update_freq": [0, 2],
    "max_grad_norm": [1e9, 0.01],
    "learning_rate": [1e-3, "linear(1e-3, 0, 100)"],
}
OWN = {
    DQN: {},
    CQL: {"alpha": [0.0, 2.5]},
    IQN: {"n_cos": [1, 20], "n_tau": [1, 5], "n_tau_prime": [1, 3], "n_policy": [1, 6], "kappa": [0.5, 1.0]},
}
RATE = 2e-3  # that of the batches, where it is a schedule
QUICK, LONG = [(case, 4) for case in range(6)], [(case, 200) for case in range(12)]
TERMS, SCALE = 300, 10.0  # of a gradient: sums over rows and units; rows' slopes are means, of numbers below 10


def chosen(kind, rng):
    options = {name: values[rng.integers(len(values))] for name, values in {**OPTIONS, **OWN[kind]}.items()}
    return kind(**options), SPACES[rng.integers(len(SPACES))]


def state_of(model, trainer):
    return copy.deepcopy((model.state_dict(), trainer.target.state_dict(), trainer.state_dict()))


def check_step(hyper, before, text, compiled, rate):
    """Moments are linear in the gradient and its square; weights follow from moments, targets from weights."""
    saved = [state["optimizer"]["state"] for state in (before[2], text[2], compiled[2])]
    weights = [*zip(before[0].items(), compiled[0].values(), before[1].values(), compiled[1].values(), strict=True)]
    updates = compiled[2]["updates"]
    assert updates == text[2]["updates"] == before[2]["updates"] + 1
    share = hyper.tau if not hyper.target_update_freq else float(updates % hyper.target_update_freq == 0)
    for (old, ours, theirs), ((name, weight), after, target, moved) in zip(
        ((saved[0][i], saved[2][i], saved[1][i]) for i in saved[0]), weights, strict=True
    ):
        most = rounding(TERMS, SCALE)["atol"]
        torch.testing.assert_close(ours["exp_avg"], theirs["exp_avg"], rtol=1e-6, atol=0.1 * most, msg=name)
        gradient = (ours["exp_avg"] - 0.9 * old["exp_avg"]).abs().max() / 0.1
        squares = 0.001 * (2 * float(gradient) + most) * most
        torch.testing.assert_close(ours["exp_avg_sq"], theirs["exp_avg_sq"], rtol=1e-6, atol=squares, msg=name)
        number = float(ours["step"])
        assert number == float(theirs["step"]) == float(old["step"]) + 1
        mean, square = (ours[key].double() for key in ("exp_avg", "exp_avg_sq"))
        step = rate * mean / (1 - 0.9**number) / ((square / (1 - 0.999**number)).sqrt() + 1e-8)
        torch.testing.assert_close(after.double(), weight - step, **rounding(30, 10 * rate + float(weight.abs().max())))
        expected = target.lerp(after, share)
        torch.testing.assert_close(moved, expected, **rounding(4, 2 * float(target.abs().max())))


@pytest.mark.parametrize("level", ["baseline", "avx2", "avx512"])
@pytest.mark.parametrize("case, updates", long_but(QUICK, QUICK + LONG))
@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_an_update_is_that_of_the_text(kind, case, updates, level):
    """With other numbers of rows from update to update, in arrays and in tensors; both draw the same fractions."""
    rng = np.random.default_rng(case)
    hyper, spaces = chosen(kind, rng)
    model, text = made_trainer(hyper, spaces)
    twin = copy.deepcopy(model)
    compiled, _ = with_engine(hyper.make_trainer(twin), "compiled")
    rate = RATE if isinstance(hyper.learning_rate, str) else hyper.learning_rate
    use_level(level)
    try:
        for number in range(updates):
            before = state_of(model, text)
            twin.load_state_dict(before[0])
            compiled.trainer.target.load_state_dict(before[1])
            compiled.load_state_dict(copy.deepcopy(before[2]))
            rows = int(rng.choice([1, 7, 64]))
            batch = made_batch(spaces, rows, seed=100 * case + number, numbers={"learning_rate": rate})
            theirs, ours = text.update(copy.copy(batch)), compiled.update(as_arrays(batch) if number % 2 else batch)
            check_step(hyper, before, state_of(model, text), state_of(twin, compiled.trainer), rate)
            assert ours.metrics.keys() == theirs.metrics.keys()
            for name, value in theirs.metrics.items():
                assert ours.metrics[name] == near(float(value), TERMS, 10 * SCALE), name
            torch.testing.assert_close(torch.from_numpy(ours.priority), theirs.priority, **rounding(TERMS, 10 * SCALE))
    finally:
        use_level("avx512")


class Louder(QNetwork):
    """A network of the same parts that computes something else with them."""

    def forward(self, obs):
        return 2 * super().forward(obs)


def louder(network):
    network.__class__ = Louder


def frozen(network):
    network.torso.requires_grad_(False)


def hooked(network):
    network.torso.dense.layers[0].register_forward_hook(lambda *_: None)


def with_a_gradient_s_hook(network):
    network.head.output.weight.register_hook(lambda gradient: 2 * gradient)


def sharing(network):
    """Two layers have the same weights, whose gradients add up."""
    network.torso.dense.layers[1].weight = network.head.hidden.weight


def moved(network):
    network.head.output.weight.data = network.head.output.weight.data.clone()


CHANGES = [louder, frozen, hooked, with_a_gradient_s_hook, sharing, moved]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_the_text_updates_a_network_that_was_changed(kind, change):
    hyper = kind(hidden=(8, 8, 8))
    model, trainer = made_trainer(hyper, box_spaces())
    compiled, calls = with_engine(trainer, "compiled")[0], []
    batch = made_batch(numbers={})
    compiled.update(batch)
    trainer.update = calls.append
    compiled.update(batch)
    assert not calls
    change(model)
    compiled.update(batch)
    assert calls == [batch]
    if change is not moved:
        other = hyper.make_trainer(model)
        assert with_engine(other, "auto")[0] is other


@pytest.mark.parametrize("number", [-1, 2])
@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_an_action_that_is_none_changes_nothing(kind, number):
    hyper, batch = kind(hidden=(8, 8)), made_batch(numbers={})
    model, text = made_trainer(hyper, box_spaces())
    compiled, before = with_engine(text, "compiled")[0], copy.deepcopy(model.state_dict())
    batch.action[3] = number
    with pytest.raises(
        ValueError, match=rf"^action: expected numbers from 0 to 1, got {min(number, 0)} to {max(number, 1)}$"
    ):
        compiled.update(batch)
    assert all(map(torch.equal, before.values(), model.state_dict().values())) and not text.updates


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_numbers_that_are_not_finite_show_in_the_loss(kind):
    _, trainer = made_trainer(kind(hidden=(8, 8)), box_spaces())
    batch = made_batch(numbers={})
    batch.reward[2] = float("nan")
    update = with_engine(trainer, "compiled")[0].update(batch)
    assert np.isnan(update.metrics["loss"]) and np.isnan(update.priority).tolist() == [row == 2 for row in range(6)]
