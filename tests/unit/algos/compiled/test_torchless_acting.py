"""Policies that act without torch against the algorithms' own acting: actions, extras, values and draws."""

import copy
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import BOX, SHARED, box_spaces, continuous_spaces, made_obs, team_spaces
from gymnasium import spaces as gym
from rounding import rounding
from torch import nn

import marlcore as mc
from marlcore.algos.compiled import NotPlain, acting_policy, compiled_policy, with_engine
from marlcore.config import AssignedPolicy
from marlcore.loops import PolicyModel
from marlcore.loops.model import Normalizer, RewardNormalizer
from marlcore.observations import each
from marlcore.spaces import Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

PARTS = gym.Dict({
    "a": gym.Box(-9, 9, (2, 2), np.float64), "b": gym.Discrete(3, start=1), "c": gym.MultiBinary(3),
    "d": gym.MultiDiscrete([2, 3], start=[1, 0]), "e": gym.Box(-9, 9, (2,), np.float32),
})  # fmt: skip
MULTI = gym.MultiDiscrete([2, 3])
BINARY = gym.MultiBinary((2, 2))
TEAM_BOX = replace(team_spaces(), action=gym.Box(-2, 3, (3, 2), np.float32))
CASES = {
    "dqn": (mc.DQN(), box_spaces()),
    "dqn, multi": (mc.DQN(hidden=(20,), dueling=False), Spaces(PARTS, MULTI, masked=True)),
    "dqn, binary": (mc.DQN(actor_priorities=True, activation="tanh"), Spaces(gym.Discrete(5, start=2), BINARY)),
    "cql": (mc.CQL(actor_priorities=True, dueling=False), Spaces(PARTS, gym.Discrete(3), masked=True, stack=3)),
    "iqn": (mc.IQN(actor_priorities=True), box_spaces(actions=3)),
    "iqn, stacks": (mc.IQN(hidden=(12,), n_policy=3, dueling=False), replace(box_spaces(), masked=True, stack=2)),
    "vdn": (mc.VDN(dueling=True), team_spaces()),
    "qmix": (mc.QMIX(shared=False), team_spaces(masked=True, stack=2)),
    "vdn, alike": (mc.VDN(), team_spaces((4, 4, 4), stack=2)),
    "ppo": (mc.PPO(), box_spaces((2, 3), 4, np.float64)),
    "ppo, multi": (mc.PPO(activation="relu"), Spaces(PARTS, MULTI, masked=True, stack=2)),
    "ppo, binary": (mc.PPO(), Spaces(BOX, BINARY)),
    "ppo, box": (mc.PPO(), continuous_spaces()),
    "ppo, unbounded": (mc.PPO(), Spaces(BOX, gym.Box(-np.inf, np.inf, (2,), np.float64), stack=2)),
    "mappo": (mc.MAPPO(), replace(SHARED, masked=True)),
    "bc": (mc.BC(), Spaces(BOX, MULTI)),
    "sac": (mc.SAC(), continuous_spaces()),
    "td3": (mc.TD3(), Spaces(PARTS, gym.Box(-3, 1, (2,), np.float64), stack=2)),
    "td3bc": (mc.TD3BC(activation="tanh"), Spaces(BOX, gym.Box(0, 1, (), np.float16))),
    "matd3": (mc.MATD3(), TEAM_BOX),
    "maddpg": (mc.MADDPG(shared=False), replace(TEAM_BOX, stack=2)),
}
# Behind an output lie three sums of up to 128 terms and their activations. They scale an action's component by up to 6,
# and a value by its size; what moves a float16 is one unit of its own.
CLOSE = rounding(600, 20.0)
HALF = {"rtol": 2e-3, "atol": 2e-3}


def made(name, normalizes=True):
    """The algorithm, its spaces, a model that has learned something, and the policy with its weights."""
    hyper, spaces = CASES[name]
    norms = (Normalizer(spaces), RewardNormalizer()) if normalizes else ()
    model = PolicyModel(hyper.make_model(spaces), *norms)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(3.0).add_(0.1 * torch.randn_like(weights))
        if normalizes:
            model.norm.update(each(lambda part: 3.0 * part.float() + 1.0, observations(spaces, 50, 9)))
            model.rewards.update({"discounted_return": torch.linspace(-5, 9, 30)})
    return hyper, spaces, model, acting_policy(hyper, model.acting, spaces)


def observations(spaces, rows, seed):
    return made_obs(spaces, rows, np.random.default_rng(seed))


def weights_of(model):
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def both(made, obs, explore, seed):
    """What both choose, each with the next draw of its generator."""
    hyper, spaces, model, policy = made
    draws = np.random.default_rng(seed), np.random.default_rng(seed)
    seen = obs if model.norm is None else model.norm(obs)
    mask, arrays = spaces.mask_in(obs), each(torch.Tensor.numpy, obs)
    expected = hyper.act(model.model, seen, explore=explore, state=None, mask=mask, generator=draws[0])
    found = policy.act(arrays, explore=explore, mask=spaces.mask_in(arrays), generator=draws[1])
    assert draws[0].bit_generator.state == draws[1].bit_generator.state
    return expected, found


def check_equal(expected, found):
    assert found.action.dtype == expected.action.dtype and found.action.shape == expected.action.shape
    exact = expected.action.dtype.kind != "f"
    close = HALF if expected.action.dtype == np.float16 else CLOSE
    (np.testing.assert_array_equal if exact else lambda *two: np.testing.assert_allclose(*two, **close))(
        found.action, expected.action
    )
    for of_found, of_expected in ((found.extras, expected.extras), (found.values, expected.values)):
        assert of_found.keys() == of_expected.keys() and found.state is expected.state is None
        for name, values in of_expected.items():
            assert of_found[name].dtype == values.dtype
            np.testing.assert_allclose(of_found[name], values, **CLOSE)


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_policy_without_torch_acts_as_its_algorithm(name, normalizes):
    case = made(name, normalizes)
    case[3].load(weights_of(case[2]))
    for seed, (rows, epsilon) in enumerate([(7, None), (40, 0.0), (1, 0.5), (40, 0.3), (9, np.linspace(0, 1, 9))]):
        explore = None if epsilon is None else {"epsilon": epsilon, "noise": 0.3}
        check_equal(*both(case, observations(case[1], rows, seed), explore, seed))


@pytest.mark.parametrize("name", ["dqn", "cql", "iqn", "vdn", "ppo", "ppo, binary", "ppo, box", "sac", "td3"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_pass_as_with_torch(name, value):
    case = made(name, normalizes=False)
    case[3].load(weights_of(case[2]))
    obs = observations(case[1], 30, 0)
    for part in obs.values() if isinstance(obs, dict) else [obs]:
        if part.is_floating_point():
            part[::3] = value
    expected, found = both(case, obs, {"epsilon": 0.0, "noise": 0.3}, 0)
    finite = np.arange(30) % 3 > 0
    np.testing.assert_allclose(found.action[finite], expected.action[finite], **CLOSE)
    if np.isnan(value):
        check_equal(expected, found)
    assert found.action.dtype.kind == "f" or case[1].first_refused(found.action) is None


@pytest.mark.parametrize("name", ["iqn", "qmix", "ppo, box", "td3"])
def test_copies_act_by_the_weights_that_were_loaded(name):
    """A pickle made before has none; a deep copy keeps its own when the policy loads others."""
    case = made(name)
    hyper, spaces, model, policy = case
    fresh = pickle.loads(pickle.dumps(policy))
    policy.load(weights_of(model))
    copied, other = copy.deepcopy(policy), made(name)[2]
    fresh.load(weights_of(model))
    policy.load(weights_of(other))
    for policy_of_model, its_model in ((fresh, model), (copied, model), (policy, other)):
        check_equal(*both((hyper, spaces, its_model, policy_of_model), observations(spaces, 8, 3), None, 3))


@pytest.mark.parametrize("name", ["dqn", "cql", "iqn"])
def test_first_priorities_are_those_of_the_algorithm(name):
    hyper, _, model, policy = made(name)
    policy.load(weights_of(model))
    rng = np.random.default_rng(0)
    before, after = ({part: rng.normal(size=9) for part in ("taken", "best")} for _ in range(2))
    reward = rng.normal(scale=30, size=9).astype(np.float32)
    after["best"][2] = np.nan
    expected = hyper.first_priority(before, model.rewards(torch.from_numpy(reward)).numpy(), 0.9, after)
    found = policy.first_priority(before, reward, 0.9, after)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected if hyper.actor_priorities else np.full(9, np.nan), **rounding(10, 10.0))


ALONE = """
import pickle, sys
for policy, weights, obs, explore, mask in pickle.load(sys.stdin.buffer):
    policy.load(weights)
    policy.act(obs, explore=explore, mask=mask, generator=__import__("numpy").random.default_rng(0))
assert not {"torch", "numba"} & {*sys.modules}
"""


def test_acting_imports_neither_torch_nor_numba():
    """One process tries all cases."""
    work = []
    for name in CASES:
        _, spaces, model, policy = made(name)
        obs = each(torch.Tensor.numpy, observations(spaces, 4, 0))
        work.append((policy, weights_of(model), obs, {"epsilon": 0.5, "noise": 0.1}, spaces.mask_in(obs)))
    subprocess.run([sys.executable, "-c", ALONE], input=pickle.dumps(work), check=True)


class OwnChoice(mc.DQN):
    def chosen(self, model, obs, request):
        return super().chosen(model, obs, request)


IMAGE = Spaces(gym.Box(0, 255, (40, 40), np.uint8), gym.Discrete(2))
REFUSED = [
    (mc.DQN(), IMAGE, "Conv2d"), (mc.DQN(layer_norm=True), box_spaces(), "LayerNorm"),
    (mc.PPO(activation="gelu"), box_spaces(), "GELU"), (mc.R2D2(), box_spaces(), "LSTM"),
    (mc.VDN(cell="gru"), team_spaces(), "GRU"), (mc.RecurrentPPO(), box_spaces(), "LSTM"),
    (mc.DQN(network=lambda spaces: torch.nn.Linear(3, 4)), box_spaces(), "CustomTorso"),
    (mc.IQN(network=lambda spaces: torch.nn.Linear(3, 4), hidden=(8,)), box_spaces(), "CustomTorso"),
    (OwnChoice(), box_spaces(), "OwnChoice.chosen"), (mc.COMA(), team_spaces(), "TeamPolicy"),
    (mc.HAPPO(), team_spaces(), "TeamPolicies"), (mc.MADDPG(), team_spaces(), "TeamPolicy"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("hyper", "spaces", "part"), REFUSED, ids=[f"{type(hyper).__name__} {part}" for hyper, _, part in REFUSED]
)
def test_what_no_chain_can_stand_for_is_named(hyper, spaces, part):
    with pytest.raises(NotPlain, match=f"^{part}$"):
        acting_policy(hyper, PolicyModel(hyper.make_model(spaces)), spaces)


@pytest.mark.parametrize("rows", [64, 500], ids=["copied", "read where they lie"])
def test_observations_of_another_dtype_or_layout_are_converted(rows):
    """A caller's own vector environment may return any; what does not fit the space is refused."""
    hyper, spaces = mc.DQN(hidden=(8, 8)), box_spaces()
    model = PolicyModel(hyper.make_model(spaces))
    policy = acting_policy(hyper, model, spaces)
    policy.load(weights_of(model))
    obs = np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)
    request = {"explore": None, "mask": None, "generator": np.random.default_rng(0)}
    expected = policy.act(obs, **request).action
    assert 0 < expected.sum() < rows
    for other in (obs.astype(np.float64), np.asfortranarray(obs), obs[:, :, None], np.repeat(obs, 2, 0)[::2]):
        np.testing.assert_array_equal(policy.act(other, **request).action, expected)
    np.testing.assert_array_equal(policy.act(obs[:5], **request).action, expected[:5])
    obs[:] = obs[::-1].copy()
    np.testing.assert_array_equal(policy.act(obs, **request).action, expected[::-1])
    with pytest.raises(ValueError, match="reshape"):
        policy.act(obs[:, :2], **request)


@pytest.mark.parametrize("name", ["put_rows", "NamedChain.grow"])
def test_an_interrupted_call_leaves_a_policy_whole(name, monkeypatch):
    """The next call, of as many rows, does all that the interrupted one left."""
    hyper, spaces = mc.DQN(hidden=(8, 8)), box_spaces()
    model = PolicyModel(hyper.make_model(spaces))
    policies = [acting_policy(hyper, model, spaces) for _ in range(2)]
    request = {"explore": None, "mask": None, "generator": np.random.default_rng(0)}
    obs = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    for policy in policies:
        policy.load(weights_of(model))
        policy.act(obs[:2], **request)
    with monkeypatch.context() as patch:
        patch.setattr(f"marlcore.compiled.acting_networks.{name}", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            policies[0].act(obs, **request)
    actions = [policy.act(obs, **request).action for policy in policies]
    np.testing.assert_array_equal(*actions)


def test_a_hooked_network_keeps_its_hook():
    hyper, spaces, model, _ = made("dqn")
    model.model.head.register_forward_hook(lambda *_: None)
    with pytest.raises(NotPlain, match="hook"):
        acting_policy(hyper, model, spaces)


@pytest.mark.parametrize("kind", [mc.DQN, mc.PPO, mc.SAC, mc.TD3])
@pytest.mark.parametrize("wide", [False, True], ids=["a layer as the torso", "a layer of another size"])
def test_a_user_s_layer_in_place_of_ours_is_torch_s(kind, wide):
    """A layer of another size would read beyond the observations; torch says so at its first call."""
    spaces = box_spaces() if kind in (mc.DQN, mc.PPO) else continuous_spaces()

    class Own(kind):
        def make_model(self, spaces):
            model = super().make_model(spaces)
            network = getattr(model, "acting", model)
            if wide:
                network.torso.dense.layers[0] = nn.Linear(40, network.torso.dense.layers[0].out_features)
            else:
                network.torso = nn.Linear(3, network.torso.size)
            return model

    hyper = Own()
    trainer = hyper.make_trainer(hyper.make_model(spaces))
    assert compiled_policy(hyper, spaces, "auto") is None and with_engine(trainer, "auto")[0] is trainer


def test_a_node_passes_on_an_algorithm_that_it_never_unpickles():
    spaces = box_spaces()
    policy = AssignedPolicy("a", ("a",), spaces, mc.DQN(), compiled=compiled_policy(mc.DQN(), spaces, "auto"))
    got = policy.for_a_worker()
    passed = got.for_a_worker()
    assert not any("algorithm" in vars(each) for each in (got, passed))
    assert passed.algorithm == policy.algorithm and "algorithm" not in vars(passed.for_a_worker())
