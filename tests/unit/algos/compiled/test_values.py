"""Compiled updates of DQN, CQL and IQN beside their text: each from an equal state, on random spaces and options."""

import copy
import itertools

import numpy as np
import pytest
import torch
from alike import check_updates_alike
from batches import box_spaces, made_batch, made_trainer
from gymnasium import spaces as gym
from tiers import long_but

from marlcore.algos import CQL, DQN, IQN
from marlcore.algos.compiled import with_engine
from marlcore.algos.networks.qnetwork import QNetwork
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
CASES = 12
QUICK = [(case, 4) for case in range(CASES)]
ROWS = [1, 7, 64, 33]  # of a batch, in turns


def made(spaces, seed, **replaced):
    return made_batch(spaces, ROWS[seed % len(ROWS)], seed, **replaced)


@pytest.mark.parametrize("case, updates", long_but(QUICK, [*QUICK, *((case, 200) for case in range(0, CASES, 4))]))
@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_compiled_updates_equal_the_text(kind, updates, case):
    """Each value of an option is in as many cases, which are otherwise random."""
    options, drawn = {**OPTIONS, **OWN[kind], "spaces": SPACES}, {}
    for seed, (name, values) in enumerate(options.items()):
        turn = np.random.default_rng(seed).permutation(CASES)[case]
        drawn[name] = values[turn * len(values) // CASES]
    spaces = drawn.pop("spaces")
    check_updates_alike(kind(**drawn), spaces, updates, made)


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


def repeating(network):
    """One layer stands in two places."""
    network.torso.dense.layers[1] = network.head.hidden


def moved(network):
    network.head.output.weight.data = network.head.output.weight.data.clone()


CHANGES = [louder, frozen, hooked, with_a_gradient_s_hook, sharing, repeating, moved]


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


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_a_trainer_with_a_replaced_method_is_not_compiled(kind):
    _, trainer = made_trainer(kind(hidden=(8, 8)), box_spaces())
    trainer.follow_schedules = lambda batch: None
    assert with_engine(trainer, "auto") == (trainer, f"the updates of {kind.__name__}")


def test_the_optimizer_s_own_betas_count():
    """They show in the moments after a step."""
    model, text = made_trainer(DQN(hidden=(8, 8)), box_spaces())
    other = DQN(hidden=(8, 8)).make_trainer(copy.deepcopy(model))
    other.load_state_dict(copy.deepcopy(text.state_dict()))
    for trainer in (text, other):
        trainer.optimizer.param_groups[0]["betas"] = (0.5, 0.6)
    for trainer in (text, with_engine(other, "compiled")[0]):
        trainer.update(made_batch(numbers={}))
    moments = [dict(enumerate(trainer.optimizer.state.values())) for trainer in (text, other)]
    torch.testing.assert_close(*moments, rtol=1e-3, atol=1e-6)


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
