"""`mc.Compiled`: a network of plain layers acts without torch, as torch does."""

import itertools
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import marlcore as mc
from marlcore.compiled import Chain, Layer, use_level

ROWS = 9


def module_of(activation: type[nn.Module], *sizes: int) -> nn.Module:
    layers = [nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
    inner = [part for layer in layers[:-1] for part in (layer, activation())]
    return nn.Sequential(nn.Sequential(*inner), layers[-1])


def expected_of(module: nn.Module, obs: Any) -> Any:
    with torch.inference_mode():
        return module(torch.from_numpy(obs)).numpy()


@pytest.fixture(params=["baseline", "avx2", "avx512"])
def level(request: pytest.FixtureRequest) -> Any:
    yield use_level(request.param)
    use_level("avx512")


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_outputs_are_those_of_the_module(level: str, activation: type[nn.Module]) -> None:
    """Each is a sum of at most 33 products of numbers below 4, twice: 33 roundings of 4 are below 1e-4."""
    module = module_of(activation, 5, 33, 17, 3)
    network, obs = mc.Compiled(module), np.random.default_rng(0).standard_normal((ROWS, 5), np.float32)
    assert (network.inputs, network.outputs) == (5, 3)
    np.testing.assert_allclose(network.act(obs), expected_of(module, obs), rtol=0, atol=1e-4)
    np.testing.assert_array_equal(network.act(obs[0].astype(np.float64)), network.act(obs)[0])
    arrays = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    by_name = mc.Compiled(arrays, "relu" if activation is nn.ReLU else "tanh")
    np.testing.assert_array_equal(by_name.act(obs), network.act(obs))


def test_a_part_counts_in_each_of_its_places() -> None:
    layer, activation = nn.Linear(4, 4), nn.ReLU()
    module, obs = nn.Sequential(layer, activation, layer, activation, layer), np.ones((ROWS, 4), np.float32)
    np.testing.assert_allclose(mc.Compiled(module).act(obs), expected_of(module, obs), rtol=0, atol=1e-5)


def test_arrays_may_lie_in_any_order_and_have_no_rows() -> None:
    weight = np.arange(6.0).reshape(2, 3)
    network = mc.Compiled({"w": weight.T, "b": np.zeros(3)})
    assert network.act(np.zeros((0, 2))).shape == (0, 3)
    np.testing.assert_array_equal(network.act(np.ones(2)), weight.sum(0))


def test_threads_may_share_it() -> None:
    """A large batch lets others run within its call."""
    network, rows = mc.Compiled(module_of(nn.Tanh, 4, 64, 64, 2)), np.random.default_rng(0)
    batches = [rows.standard_normal((256, 4), np.float32) for _ in range(2)]
    alone = [network.act(batch) for batch in batches]
    with ThreadPoolExecutor(2) as pool:
        for index, outputs in enumerate(pool.map(network.act, batches * 300)):
            np.testing.assert_array_equal(outputs, alone[index % 2])


def test_it_takes_the_weights_that_a_subscriber_pulls() -> None:
    module, other = module_of(nn.ReLU, 4, 8, 2), module_of(nn.ReLU, 4, 8, 2)
    network, obs = mc.Compiled(other), np.ones((ROWS, 4), np.float32)
    with mc.ParameterStore.create(module) as store:
        subscriber = store.subscriber(network)
        store.publisher(module).publish()
        before = network.act(obs)
        assert subscriber.pull()
        np.testing.assert_allclose(network.act(obs), expected_of(module, obs), rtol=0, atol=1e-5)
    network.load({name: tensor.numpy() for name, tensor in other.state_dict().items()})
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(network)).act(obs), before)


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(2, 3))
    module.register_forward_hook(lambda *_: None)
    return module


def doubled() -> nn.Module:
    module: Any = nn.Sequential(nn.Linear(2, 3))
    module.forward = lambda x: 2 * nn.Sequential.forward(module, x)
    return module  # type: ignore[no-any-return]


W, B = np.ones((3, 2)), np.ones(3)
REFUSED: dict[str, tuple[Any, str]] = {
    "a convolution": (nn.Sequential(nn.Conv2d(1, 1, 1)), "network 0: expected Linear layers with ReLU or Tanh"),
    "another activation": (nn.Sequential(nn.Linear(2, 3), nn.ELU()), "network 1: expected Linear layers"),
    "a hook": (hooked(), r"network \(itself\): expected layers without a hook or a forward of"),
    "a forward of one's own": (doubled(), r"network \(itself\): expected layers without a hook or a forward of"),
    "a module of one's own": (mc.DQN, "network: expected a torch.nn.Module or arrays by name"),
    "a bias too few": ({"w": W}, "network: expected a weight and a bias for each layer"),
    "a bias of another size": ({"w": W, "b": np.ones(2)}, r"network b: expected \[3\], got \[2\]"),
    "layers that do not follow": (
        {"w": W, "b": B, "v": W, "c": B},
        r"network v: expected \[outputs, 3\], got \[3, 2\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_networks_are_refused_in_one_line(name: str) -> None:
    network, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=message):
        mc.Compiled(network)


NO_NUMBERS = [
    "left",
    [[1, 2], [3]],
    {},
    None,
    np.array(["1", "2"]),
    np.ones(2, complex),
    torch.ones(2, requires_grad=True),
]
OTHER_WEIGHTS: list[tuple[Any, str]] = [
    (nn.Linear(2, 3), "weights: expected arrays by name"),
    ({"w": W}, "weights: expected the names"),
    ({"w": 2 * W, "b": np.array(["a"] * 3)}, "weights b: expected an array of numbers"),
    ({"w": 2 * W, "b": np.ones(2)}, r"weights b: expected \[3\], got \[2\]"),
]


def test_what_is_no_numbers_is_refused_and_changes_nothing() -> None:
    network = mc.Compiled({"w": W, "b": B})
    for obs in NO_NUMBERS:
        with pytest.raises(TypeError, match=r"^obs: expected an array of numbers, got "):
            network.act(obs)  # type: ignore[arg-type]
    for weights, message in OTHER_WEIGHTS:
        with pytest.raises((ValueError, TypeError), match=message):
            network.load(weights)
    network.load()
    assert network.act([1, 1]).tolist() == [3, 3, 3]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^activation: expected None for a module"):
        mc.Compiled(nn.Sequential(nn.Linear(2, 3)), "tanh")


def test_other_shapes_are_refused_and_change_nothing() -> None:
    network = mc.Compiled({"w": W, "b": B})
    before = network.act(np.ones(2))
    with pytest.raises(ValueError, match=r"obs: expected \[k, 2\] or \[2\], got \[1, 3\]"):
        network.act(np.ones((1, 3)))
    with pytest.raises(ValueError, match=r"weights b: expected \[3\], got \[2\]"):
        network.load({"w": 2 * W, "b": np.ones(2)})
    with pytest.raises(ValueError, match="activation: expected relu or tanh, got 'elu'"):
        mc.Compiled({"w": W, "b": B}, "elu")  # type: ignore[arg-type]
    network.load()
    np.testing.assert_array_equal(network.act(np.ones(2)), before)


def test_a_chain_refuses_arrays_of_other_sizes() -> None:
    with pytest.raises(ValueError, match=r"weights: expected arrays of \[6, 3\] numbers, got \[4, 3\]"):
        Chain([Layer(2, 3)]).bind([np.ones((2, 2), np.float32), np.ones(3, np.float32)])


def test_it_needs_no_torch() -> None:
    program = """
import sys, numpy as np, marlcore as mc
network = mc.Compiled({"w": np.ones((3, 2)), "b": np.zeros(3)})
assert network.act(np.ones(2)).tolist() == [2, 2, 2]
assert not {"torch", "gymnasium"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-c", program], check=True)
