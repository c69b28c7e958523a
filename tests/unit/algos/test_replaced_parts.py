"""Replaced, hooked and changed parts of a model are those that act and learn, for every algorithm."""

import copy
import pickle
from dataclasses import dataclass, replace
from functools import cache

import batches
import numpy as np
import pytest
import torch
from batches import QUEUED, SMALL, batch_of, box_spaces, made_obs
from gymnasium import spaces as gym
from rounding import rounding
from tiers import long_but
from torch import nn

import marlcore as mc
from marlcore.algos.networks.actions import BoxActions
from marlcore.algos.networks.stand_in import faster
from marlcore.algos.networks.torso import Dense
from marlcore.spaces import Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

MIXED = Spaces(gym.Dict({"image": gym.Box(0, 255, (32, 32), np.uint8), "count": gym.Discrete(3)}), gym.Discrete(2))


@dataclass(frozen=True)
class Replaced(mc.PPO):
    """A user's own algorithm, whose model has other torsos."""

    def make_model(self, spaces):
        model = super().make_model(spaces)
        model.acting.torso, model.critic.torso = (nn.Sequential(nn.Linear(3, 8), nn.Tanh()) for _ in range(2))
        return model


FAST = {"learning_rate": 0.1}
CASES = {name: (replace(hyper, **FAST), spaces) for name, (hyper, spaces) in SMALL.items()} | {
    "dqn of images": (mc.DQN(hidden=(8,), **FAST), MIXED),
    "derived ppo": (Replaced(**QUEUED, **FAST), box_spaces()),
    "recurrentppo, gru": (replace(SMALL["recurrentppo"][0], cell="gru", **FAST), box_spaces()),
    "r2d2, gru": (replace(SMALL["r2d2"][0], cell="gru", **FAST), box_spaces()),
}
# HAPPO's learner calls each member's network by itself, without what holds them for actors.
QUICK = ("dqn", "sac", "qmix", "dqn of images", "recurrentppo, gru")
WHOLE = pytest.mark.parametrize("case", long_but(QUICK, [case for case in CASES if case != "happo"]))
CASES |= {
    f"{name}, other layers": (replace(hyper, layer_norm=True, activation="gelu", **FAST), spaces)
    for name, (hyper, spaces) in SMALL.items()
}
EACH = pytest.mark.parametrize("case", CASES)
ENCODED_BY_ACTORS = "acting.torso.actions"  # on-policy rows hold its output, through which no gradient passes
OF_LEARNERS = ("acting.distribution", "distribution")  # actors call its methods `sample` and `mode`
NOT_CALLED = (nn.ModuleList, BoxActions)  # their members are called, or their methods `encode` and `decode`


class Counted(nn.Module):
    """A user's part: it multiplies the output of the replaced part by a learned gain."""

    def __init__(self, replaced):
        super().__init__()
        self.replaced = replaced
        self.gain = nn.Parameter(torch.ones(()))
        self.calls = 0

    def forward(self, *args, **kwargs):
        self.calls += 1
        found = self.replaced(*args, **kwargs)
        return (found[0] * self.gain, *found[1:]) if isinstance(found, tuple) else found * self.gain

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("replaced"), name)


def parts_of(model):
    """The names of the parts that are called."""
    unused = {id(part.activation) for part in model.modules() if isinstance(part, Dense) and not len(part.layers)}
    parts = [(name, part) for name, part in model.named_modules() if name and id(part) not in unused]
    return [name for name, part in parts if not isinstance(part, NOT_CALLED)]


def acted(case, model):
    hyper, spaces = CASES[case]
    obs = made_obs(spaces, 4, np.random.default_rng(0))
    return batches.acted(hyper, model, obs, explore={"epsilon": 0.0, "noise": 0.1})


@cache
def batch_for(case):
    return batch_of(*CASES[case])


def learnt(case, trainer):
    for _ in range(2 if case in ("td3", "td3bc", "matd3") else 1):  # its policy learns at each second update
        trainer.update(copy.copy(batch_for(case)))


@WHOLE
@pytest.mark.parametrize("late", long_but([True], [False, True]), ids=["before the trainer is made", "after"])
def test_a_replaced_part_is_called_and_learns(case, late):
    """Replaces each part of every level, one at a time, in a model that acted before, or acted and learned."""
    hyper, spaces = CASES[case]
    original = hyper.make_model(spaces)
    acted(case, original)
    in_acting = {id(part) for part in getattr(original, "acting", original).modules()}
    for name in parts_of(original):
        acts = id(original.get_submodule(name)) in in_acting and name not in OF_LEARNERS
        model = copy.deepcopy(original)
        acted(case, model)
        part = Counted(model.get_submodule(name))
        if late:
            trainer = hyper.make_trainer(model)
            learnt(case, trainer)
            if any(held is part.replaced for held in vars(trainer).values()):
                continue  # a policy or critics, which the trainer has by itself
        model.set_submodule(name, part)
        acted(case, model)
        assert (part.calls > 0) == acts, name
        part.calls = 0
        if not late:
            trainer = hyper.make_trainer(model)
        learnt(case, trainer)
        assert part.calls > 0, name
        assert late or part.gain.item() != 1.0 or name == ENCODED_BY_ACTORS, name


@WHOLE
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")  # for layers of the observation
def test_hooks_of_every_part_are_called(case):
    """The model was called and updated before it got hooks."""
    hyper, spaces = CASES[case]
    model = hyper.make_model(spaces)
    trainer = hyper.make_trainer(model)
    learnt(case, trainer)
    acted(case, model)
    called = {kind: set() for kind in ("before", "after", "backward")}
    for name in parts_of(model):
        part = model.get_submodule(name)
        part.register_forward_pre_hook(lambda *_, name=name: called["before"].add(name))
        part.register_forward_hook(lambda *_, name=name: called["after"].add(name))
        if any(True for _ in part.parameters()):
            part.register_full_backward_hook(lambda *_, name=name: called["backward"].add(name))
    trained = {name for name in parts_of(model) if any(True for _ in model.get_submodule(name).parameters())}
    acted(case, model)
    assert called["before"] == called["after"] and called["before"]
    learnt(case, trainer)
    assert called == {"before": set(parts_of(model)), "after": set(parts_of(model)), "backward": trained}


def twice_the_output(layer):
    layer.register_forward_hook(lambda _layer, _inputs, output: 2 * output)


def doubled_forward(layer):
    forward = layer.forward
    layer.forward = lambda x: 2 * forward(x)


def doubled_weights(layer):
    for name in ("weight", "bias"):
        nn.utils.parametrize.register_parametrization(layer, name, Doubled())


class Doubled(nn.Module):
    forward = staticmethod(lambda x: 2 * x)


class DoubleLinear(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def plain_tensors(layer):
    for name, tensor in list(layer.named_parameters()):
        delattr(layer, name)
        setattr(layer, name, 2 * tensor.detach())


def test_a_hook_for_all_modules_is_called():
    model, obs = mc.PPO(hidden=(8, 8)).make_model(box_spaces()), torch.randn(4, 3)
    faster(model.acting)(obs)
    seen = []
    with nn.modules.module.register_module_forward_hook(lambda part, *_: seen.append(type(part))):
        faster(model.acting)(obs)
    assert seen.count(nn.Linear) == 3
    faster(model.acting)(obs)
    assert seen.count(nn.Linear) == 3


def test_a_changed_class_is_used(monkeypatch):
    model, obs = mc.PPO(hidden=(8, 8)).make_model(box_spaces()), torch.randn(4, 3)
    before = faster(model.acting)(obs)
    plain = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda layer, x: plain(layer, x) + 1)
    assert (faster(model.acting)(obs) != before).all()
    assert (faster(copy.deepcopy(model).acting)(obs) == model.acting(obs)).all()


def hooked():
    """Inside this context, every module is called, since all are hooked."""
    return nn.modules.module.register_module_forward_hook(lambda *_: None)


def trained(change):
    """Returns a model's values after an update, a change and another update."""
    torch.manual_seed(0)
    hyper, spaces = CASES["dqn"]
    model = hyper.make_model(spaces)
    trainer = hyper.make_trainer(model)
    learnt("dqn", trainer)
    change(model)
    learnt("dqn", trainer)
    return model(torch.ones(4, 3)).detach()


def in_other_containers(model):
    model.torso.dense.layers = nn.Sequential(*model.torso.dense.layers)
    model.torso.encoders = nn.Sequential(*model.torso.encoders)


def hooked_in_another_container(model):
    in_other_containers(model)
    model(torch.ones(4, 3))
    twice_the_output(model.torso.dense.layers[0])
    twice_the_output(model.torso.encoders[0])


def replaced_in_another_container(model):
    in_other_containers(model)
    model(torch.ones(4, 3))
    model.torso.dense.layers[0] = DoubleLinear(3, 8)


def another_attribute(model):
    model.head.dueling = False
    model.head.output = nn.Linear(8, 2)


OF_MODELS = [in_other_containers, hooked_in_another_container, replaced_in_another_container, another_attribute]
OF_LAYERS = [twice_the_output, doubled_forward, doubled_weights, plain_tensors]
CHANGES = {
    **{change.__name__: change for change in OF_MODELS},
    **{change.__name__: lambda model, change=change: change(model.head.hidden) for change in OF_LAYERS},
    "another_class": lambda model: setattr(model.head.hidden, "__class__", DoubleLinear),
    "another_activation": lambda model: setattr(model.torso.dense, "activation", nn.Tanh()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_counts_at_once_in_acting_and_learning(change):
    """The change counts in the model itself, which acted before, and in a copy."""
    model, obs = mc.DQN(hidden=(8, 8)).make_model(box_spaces()), torch.randn(4, 3)
    assert faster(model) is not model
    before = faster(model)(obs)
    CHANGES[change](model)
    for changed in (model, copy.deepcopy(model)):
        torch.testing.assert_close(faster(changed)(obs), model(obs), **rounding(60, 10.0))
    assert change == "in_other_containers" or not torch.allclose(model(obs), before)
    with hooked():
        expected = trained(CHANGES[change])
    np.testing.assert_allclose(trained(CHANGES[change]), expected, **rounding(2000, 10.0))


@pytest.mark.parametrize("copied", [copy.copy, nn.Module._replicate_for_data_parallel])
def test_a_shallow_copy_computes_with_its_own_parts(copied):
    model, obs = mc.DQN(hidden=(8, 8)).make_model(box_spaces()), torch.ones(4, 3)
    before = faster(model)(obs)
    other = copied(model)
    other._modules = {**model._modules, "head": nn.Identity()}
    assert faster(other)(obs).shape == (4, 8) and torch.equal(faster(model)(obs), before)


@EACH
def test_faster_forms_are_the_modules(case):
    """Calls through all modules choose the same actions and give the same metrics, also in copies and from pickles."""
    hyper, spaces = CASES[case]
    original = hyper.make_model(spaces)
    acted(case, original)

    def played(copied):
        model = copied(original)
        torch.manual_seed(0)
        update = hyper.make_trainer(model).update(copy.copy(batch_for(case)))
        return acted(case, copied(original)).action, [float(update.metrics[name]) for name in ("loss", "grad_norm")]

    action, metrics = played(copy.deepcopy)
    with hooked():
        expected = played(lambda model: pickle.loads(pickle.dumps(model)))
    # Sums over 24 rows, 12 steps and about 60 numbers, there and back
    np.testing.assert_allclose(action, expected[0], **rounding(60, 100.0))
    np.testing.assert_allclose(metrics, expected[1], **rounding(2000, 10.0))


class Module(nn.Module):
    """A user's own module, which derives from no network of the package."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        for name in {"actions", "distribution"} & {*dir(network)}:
            setattr(self, name, getattr(network, name))

    def forward(self, *inputs):
        return self.network(*inputs)


@pytest.mark.parametrize("name", ["dqn", "ppo", "bc"])
def test_a_module_of_a_users_own_acts_greedily(name):
    hyper, spaces = SMALL[name]
    network = hyper.make_model(spaces)
    network = getattr(network, "acting", network)
    obs = made_obs(spaces, 6, np.random.default_rng(0))
    assert torch.equal(hyper.greedy(Module(network), obs, None, None)[0], hyper.greedy(network, obs, None, None)[0])
