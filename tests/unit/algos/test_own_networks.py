"""Networks of the user's own in every algorithm: what they get, how they act and learn, and which are refused."""

import copy
import math
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import own_networks
import pytest
import torch
from batches import QUEUED, SMALL, acted, batch_of, box_spaces, check_resumption, continuous_spaces, made_obs
from gymnasium import spaces as gym
from refused import Refused, refusals
from tiers import long_but
from torch import nn

import marlcore as mc
from marlcore.algos.bases.adam import ClippedAdam
from marlcore.algos.networks.custom import zeros_of
from marlcore.algos.networks.recurrent import CustomCell
from marlcore.algos.networks.stand_in import faster
from marlcore.observations import ALONE, each
from marlcore.spaces import JOINT, Spaces

pytestmark = pytest.mark.usefixtures("seeded_torch")

EACH = pytest.mark.parametrize("name", SMALL)
OF_TEAMS = {"vdn", "qmix", "matd3", "maddpg", "happo", "coma"}  # they have a network for each group of members


class Seeing(nn.Module):
    """A torso that keeps its last input."""

    def __init__(self, spaces):
        super().__init__()
        self.spaces = spaces
        self.layer = nn.Linear(spaces.stack * sum(math.prod(part.field.shape) for part in spaces.parts), 5)

    def forward(self, obs):
        self.seen = obs
        parts = obs.values() if isinstance(obs, dict) else [obs]
        return torch.tanh(self.layer(torch.cat([part.reshape(len(part), -1).float() for part in parts], 1)))


class Whole(nn.Module):
    """A whole model of these parts."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def of_values(outputs):
    return Whole(values=nn.Linear(3, outputs))


class PolicyAndValue(nn.Module):
    """A whole model of a policy and a value, on one layer."""

    def __init__(self, spaces):
        super().__init__()
        self.torso, self.heads = nn.Linear(3, 4), nn.Linear(4, 3)
        self.calls = 0

    def policy(self, obs):
        return self.both(obs)[0]

    def value(self, obs):
        return self.both(obs)[1]

    def both(self, obs):
        self.calls += 1
        return self.heads(torch.tanh(self.torso(obs))).split([2, 1], 1)


class Critics(nn.Linear):
    def forward(self, obs, action):
        return super().forward(torch.cat([obs, action], 1)).t()


def of_policy_and_critics(spaces, outputs):
    return Whole(policy=nn.Linear(3, 6 * outputs), critics=Critics(9, 2))


def small(name, **changes):
    hyper, spaces = SMALL[name]
    return replace(hyper, **changes), spaces


def check_learns(hyper, spaces, batches):
    """The network acts, all of its layers learn, and its trainer resumes."""
    model = hyper.make_model(spaces)
    before = copy.deepcopy(model.state_dict())
    obs = made_obs(spaces, 4, np.random.default_rng(0))
    assert len(acted(hyper, model, obs, explore={"epsilon": 0.0, "noise": 0.1}).action) == 4
    check_resumption(hyper, spaces, model, hyper.make_trainer(model), batches[:2], batches[2:])
    trained = [name for name, _ in model.named_parameters() if "network" in name]
    assert trained and all(not torch.equal(before[name], model.state_dict()[name]) for name in trained)


@EACH
def test_a_torso_acts_and_learns(name):
    """The stand-in calls it once, or once for each group of members."""
    hyper, spaces = small(name, network=Seeing, learning_rate=0.1)
    check_learns(hyper, spaces, [batch_of(hyper, spaces, seed) for seed in range(4)])
    model, obs, calls = hyper.make_model(spaces), made_obs(spaces, 6, np.random.default_rng(0)), []
    acting = getattr(model, "acting", model)
    networks = [module for module in acting.modules() if isinstance(module, Seeing)]
    arguments = (obs, None) if name in ("r2d2", "recurrentppo") else (obs,)
    expected = acting(*arguments)
    for network in networks:
        network.register_forward_hook(lambda network, *_: calls.append(network))
    torch.testing.assert_close(faster(acting)(*arguments), expected)
    assert calls == networks and (len(networks) == 1) == (name not in OF_TEAMS)


class Frozen(nn.Sequential):
    """A torso whose first layer is not trained."""

    def __init__(self, spaces):
        super().__init__(nn.Linear(3, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 5))
        self.register_buffer("scale", torch.full((3,), 2.0))


@pytest.mark.parametrize("name", sorted(SMALL.keys() - {"mappo", *OF_TEAMS}))
@pytest.mark.parametrize("scripted", [True, False])
@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_frozen_layers_and_buffers_stay(name, scripted):
    """TorchScript modules are tried too."""
    script = torch.jit.script if scripted else lambda network: network
    hyper, spaces = small(name, network=lambda spaces: script(Frozen(spaces)), learning_rate=0.1)
    model = hyper.make_model(spaces)
    before = copy.deepcopy(model.state_dict())
    trainer = hyper.make_trainer(model)
    for seed in range(2):
        trainer.update(batch_of(hyper, spaces, seed))
    kept = {key.split("network.")[-1] for key, value in model.state_dict().items() if torch.equal(value, before[key])}
    assert kept == {"0.weight", "0.bias", "scale"}


WHOLE = {
    "dqn": (mc.DQN(network=lambda spaces: of_values(2), learning_rate=0.1), box_spaces()),
    "ppo": (mc.PPO(**QUEUED, network=PolicyAndValue, learning_rate=0.1), box_spaces()),
    "td3": (mc.TD3(network=partial(of_policy_and_critics, outputs=1), learning_rate=0.1), continuous_spaces()),
    "sac": (mc.SAC(network=partial(of_policy_and_critics, outputs=2), learning_rate=0.1), continuous_spaces()),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_model_acts_and_learns(name):
    hyper, spaces = WHOLE[name]
    check_learns(hyper, spaces, [batch_of(replace(hyper, network=None), spaces, seed) for seed in range(4)])
    assert all("network" in name for name, _ in hyper.make_model(spaces).named_parameters())


def test_layers_that_policy_and_value_share_run_once():
    hyper, spaces = WHOLE["ppo"]
    model = hyper.make_model(spaces)
    network, obs = model.acting.torso.network, torch.randn(4, 3)
    network.calls = 0
    outputs, values = model(obs)
    assert network.calls == 1
    torch.testing.assert_close((outputs, values), (model.acting(obs), model.critic(obs)))


def test_actors_get_no_critics_of_a_whole_model():
    hyper, spaces = WHOLE["td3"]
    assert {name.split(".")[0] for name, _ in hyper.make_model(spaces).acting.named_parameters()} == {"torso"}


class Leaky(nn.Module):
    """A recurrent layer whose features are a decaying sum."""

    def __init__(self, inputs, units, name="trace", size=None):
        super().__init__()
        self.layer, self.state = nn.Linear(inputs, units), {name: units if size is None else size}
        nn.init.constant_(self.layer.bias, 0.5)

    def forward(self, x, state):
        (name,) = self.state
        trace = torch.tanh(self.layer(x)) + 0.5 * state[name]
        return trace, {name: trace}


@pytest.mark.parametrize("name", ["r2d2", "recurrentppo"])
def test_a_recurrent_layer_acts_and_learns(name):
    hyper, spaces = small(name, network=Seeing, cell=Leaky, learning_rate=0.1)
    assert hyper.cell == f"{__name__}:Leaky"
    changed = replace(hyper, initialization="orthogonal").make_model(spaces)
    assert [layer.layer.bias.mean().item() for layer in changed.modules() if isinstance(layer, Leaky)] == [0.5]
    assert {*hyper.transition(spaces).extras} >= {"trace", "previous_action", "previous_reward"}
    check_learns(hyper, spaces, [batch_of(hyper, spaces, seed) for seed in range(4)])


def test_windows_of_a_recurrent_layer_are_its_steps():
    core, x, state = CustomCell(mc.R2D2(cell=Leaky, units=4), 3), torch.randn(2, 5, 3), {"trace": torch.randn(2, 4)}
    features, after = core(x, state)
    for step in range(5):
        output, state = core(x[:, step], state)
        torch.testing.assert_close(features[:, step], output)
    torch.testing.assert_close(after, state)


DICT = gym.Dict(image=gym.Box(0, 255, (7, 7, 3), np.uint8), inside=gym.Dict(way=gym.Discrete(4, start=1)))
GOT = {
    "box": (Spaces(gym.Box(-1, 1, (3,), np.float32), gym.Discrete(2)), (6, 3)),
    "box with a mask": (Spaces(gym.Box(-1, 1, (3,), np.float32), gym.Discrete(2), masked=True), (6, 3)),
    "stack": (box_spaces((2, 2), dtype=np.uint8, stack=4), (6, 4, 2, 2)),
    "dict": (Spaces(DICT, gym.Discrete(2)), {"image": (6, 7, 7, 3), "inside__way": (6,)}),
    "dict with a mask": (Spaces(DICT, gym.Discrete(2), masked=True), {"image": (6, 7, 7, 3), "inside__way": (6,)}),
    "tuple": (Spaces(gym.Tuple([gym.MultiBinary(2)]), gym.Discrete(2)), {"part_0": (6, 2)}),
}


@pytest.mark.parametrize("case", GOT)
def test_a_network_gets_observations_without_the_mask(case):
    """Observations are as in rows, neither scaled nor converted; parts of a Dict have names."""
    spaces, shapes = GOT[case]
    model = mc.DQN(hidden=(8,), network=Seeing).make_model(spaces)
    obs = made_obs(spaces, 6, np.random.default_rng(0))
    model(obs)
    seen = model.torso.network.seen
    assert each(lambda part: tuple(part.shape), seen) == shapes
    kept = {name: obs[name] for name in seen} if isinstance(seen, dict) else obs[ALONE] if spaces.masked else obs
    each(torch.testing.assert_close, seen, kept)


def test_the_policy_of_mappo_does_not_see_the_joint_observation():
    hyper, spaces = small("mappo", network=Seeing)
    model = hyper.make_model(spaces)
    model(made_obs(spaces, 6, np.random.default_rng(0)))
    policy, critic = model.acting.torso.network, model.critic.torso.network
    assert policy.seen.shape == (6, 3) and policy.spaces.observation == spaces.observation[ALONE]
    assert {name: part.shape for name, part in critic.seen.items()} == {ALONE: (6, 3), JOINT: (6, 6)}


def test_a_network_is_tried_with_members_of_the_spaces():
    zeros = zeros_of(
        Spaces(gym.Dict(a=gym.Discrete(3, start=5), b=gym.MultiDiscrete([2, 2], start=[1, -1])), gym.Discrete(2))
    )
    assert zeros["a"].tolist() == [5] * 3 and zeros["b"].tolist() == [[1, -1]] * 3


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_layers_learn_their_inputs():
    model = mc.PPO(network=lambda spaces: nn.LazyLinear(4)).make_model(box_spaces())
    assert [model.acting.torso.network.in_features, model.critic.head.in_features] == [3, 4]


def test_a_network_is_named_as_it_can_be_imported():
    """A function stays a function if its name imports nothing, or something else."""
    assert mc.PPO(network=Seeing).network == f"{__name__}:Seeing" == mc.PPO(network=f"{__name__}:Seeing").network
    other = partial(Seeing)
    local = lambda spaces: Seeing(spaces)  # noqa: E731
    assert mc.PPO(network=other).network is other and mc.PPO(network=local).network is local
    assert pickle.loads(pickle.dumps(mc.PPO(network=Seeing))) == mc.PPO(network=Seeing)


def common(spaces):
    policy = nn.Linear(3, 6)
    return Whole(policy=policy, critics=lambda obs, action: torch.stack([policy(obs).sum(1)] * 2))


class Narrow(Leaky):
    def __init__(self, inputs, units):
        super().__init__(inputs, units)
        self.layer = nn.Linear(inputs, units - 1)

    def forward(self, x, state):
        return super().forward(x, {"trace": state["trace"][:, 1:]})


class By(nn.Module):
    """A layer that is a function of its input."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


def with_spare(**options):
    network = nn.Linear(3, 2)
    network.spare = nn.Parameter(torch.zeros(2, **options))
    return network


def swapped(spaces):
    network = PolicyAndValue(spaces)
    both = network.both
    network.policy, network.value = (lambda obs: both(obs)[0]), (lambda obs: both(obs)[1])
    network.both = lambda obs: both(obs)[::-1]
    return network


def with_wrong_critics(spaces):
    return Whole(policy=nn.Linear(3, 6), critics=By(lambda obs, action: action[:, :2]))


def of_cell(cell, **options):
    return lambda: mc.R2D2(cell=cell, **options).make_model(box_spaces())


def made(name, network, spaces=None):
    """A call that makes the model of an algorithm with this network."""
    hyper, usual = SMALL[name]
    return lambda: replace(hyper, network=network).make_model(spaces or usual)


FLAT = "expected float32 [3, n] for 3 observations, got"
STATES = "{trace: float32 [3, 6]}), got (float32 [3, 5], {trace: float32 [3, 5]})"
BITS = Spaces(gym.MultiBinary(3), gym.Discrete(2))
REFUSED: dict[str, Refused] = {
    "no module": (made("dqn", lambda spaces: "net"), "DQN network: expected a function that returns a"),
    "no argument": (made("dqn", nn.Module), "DQN network: its function raised TypeError: Module.__init__() takes 1"),
    "inputs": (
        made("ppo", lambda spaces: nn.Linear(5, 2)),
        "PPO network raised RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x3 and 5x2), called with float32",
    ),
    "one": (
        made("sac", lambda _: nn.Sequential(nn.Linear(3, 2), By(torch.squeeze))),
        "called with one observation: expected float32 [1, 2], got float32 [",
    ),
    "batch norm": (
        made("td3", lambda _: nn.BatchNorm1d(3)),
        "TD3 network raised ValueError: Expected more than 1 ",
    ),
    "no features": (made("iqn", lambda spaces: By(lambda x: x[:, :0])), f"IQN network: {FLAT} float32 [3, 0]"),
    "a module": (lambda: mc.DQN(network=nn.Flatten()), "DQN network: expected a function of mc.Spaces, or"),
    "no tensor": (made("iqn", lambda spaces: nn.LSTM(3, 2)), f"IQN network: {FLAT} (float32 [3, 2], "),
    "not flat": (made("ppo", lambda spaces: nn.Unflatten(1, (3, 1))), f"PPO network: {FLAT} float32 [3, 3, 1]"),
    "integers": (made("dqn", lambda spaces: nn.Identity(), BITS), f"DQN network: {FLAT} int8 [3, 3]"),
    "double": (
        made("sac", lambda spaces: with_spare(dtype=torch.float64)),
        "SAC network: expected parameters of torch.float32 on the cpu, got torch.float64 on cpu in spare",
    ),
    "device": (made("dqn", lambda _: with_spare(device="meta")), "on the cpu, got torch.float32 on meta in spare"),
    "outputs": (made("dqn", lambda spaces: of_values(7)), "expected a whole model with 2 outputs, got 7"),
    "half a model": (
        made("ppo", lambda _: Whole(policy=nn.Linear(3, 2))),
        "expected parts policy and value, got no part value",
    ),
    "critics": (
        made("td3", with_wrong_critics),
        "TD3 network: expected float32 [2, 3] values of two critics for 3 observations, got float32 [3, 2]",
    ),
    "nothing to train": (
        made("dqn", lambda spaces: of_values(2).requires_grad_(False)),
        "DQN network: expected a model with parameters to train, got none in Linear(",
    ),
    "both": (made("ppo", swapped), "both: expected (float32 [3, 2], float32 [3, 1]), got (float32 [3, 1], float32 ["),
    "stateless": (of_cell(nn.Linear), "R2D2 cell: expected an attribute state with sizes by name, got None"),
    "cell": (of_cell(Narrow, units=6), f"cell: expected (float32 [3, 6], {STATES}"),
    "size": (of_cell(partial(Leaky, size=0)), "R2D2 cell state['trace']: expected an integer of at least 1, got 0"),
    "name": (
        of_cell(partial(Leaky, name="previous_action")),
        "expected state names other than 'previous_action', which is taken",
    ),
    "a row's name": (
        lambda: mc.RecurrentPPO(cell=partial(Leaky, name="log_prob")).transition(box_spaces()),
        "RecurrentPPO cell: expected state names other than 'log_prob', which is taken",
    ),
    "common parameters": (made("td3", common), "expected modules policy and critics without common parameters, got "),
}
test_a_network_of_another_kind_is_refused = refusals(REFUSED)


MINIGRID = gym.Dict(direction=gym.Discrete(4), image=gym.Box(0, 10, (7, 7, 3), np.uint8), mission=gym.Text(10))
EXAMPLES = {
    "GridTorso": Spaces(MINIGRID, gym.Discrete(7)),
    "EntityTransformer": Spaces(gym.Box(-1, 1, (27, 5), np.float32), gym.Discrete(6)),
    "SharedTorso": box_spaces(),
}


def members(spaces, rows):
    """Returns random observations that the spaces contain."""
    spaces.observation.seed(0)
    samples = [spaces.values(spaces.observation.sample()) for _ in range(rows)]
    return each(lambda *parts: torch.from_numpy(np.stack(parts)), *samples)


@pytest.mark.parametrize("name", long_but(["GridTorso"], EXAMPLES))
def test_an_example_learns_what_it_is_told(name):
    """Its policy and value fit random targets."""
    spaces = EXAMPLES[name]
    hyper = mc.PPO(network=f"own_networks:{name}")
    model, obs = hyper.make_model(spaces), members(spaces, 16)
    optimizer = ClippedAdam([*model.parameters()], lr=1e-2)
    targets, losses = torch.randn(16), []
    for _ in range(100):
        outputs, values = model(obs)
        loss = (values - targets).square().mean() + (outputs[:, 0] - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.clip_and_step(10.0)
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4


def test_a_transformer_does_not_see_the_order_of_entities():
    network, obs = own_networks.EntityTransformer(EXAMPLES["EntityTransformer"]), torch.randn(3, 27, 5)
    torch.testing.assert_close(network(obs.flip(1)), network(obs), rtol=1e-4, atol=1e-5)
