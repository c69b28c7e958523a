"""The algorithms' networks, target networks, resumption and errors, and that they learn."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rounding import rounding
from updates import box_spaces, check_resumption, flattened, made_batch, made_trainer

from marlcore.algos import ALGORITHMS, DQN, IQN, TD3, make

pytestmark = pytest.mark.usefixtures("seeded_torch")

# Sums over 64 cosines, two layers of at most 64 and 8 fractions, all under 10
CLOSE = rounding(3 * 64 + 8 + 10, 10.0)
BOTH = pytest.mark.parametrize("algorithm", [DQN, IQN])


def weights(network):
    return [one.detach().clone() for one in network.parameters()]


def test_iqn_values_are_the_mean_of_quantiles_at_midpoints():
    network = IQN(n_policy=4).make_model(box_spaces())
    obs = torch.randn(5, 3)
    taus = torch.tensor([0.125, 0.375, 0.625, 0.875]).expand(5, 4)
    torch.testing.assert_close(network(obs), network(obs, taus).mean(1), **CLOSE)


def test_iqn_embeds_fractions_by_cosines():
    """IQN embeds a fraction as ReLU of a linear map of cosines."""
    network = IQN(n_cos=5, hidden=(4, 4), dueling=False).make_model(box_spaces())
    obs, tau = torch.randn(1, 3), 0.3
    cosines = torch.tensor([np.cos(np.pi * i * tau) for i in range(5)], dtype=torch.float32)
    expected = network.head(network.torso(obs) * torch.relu(network.embedding.layers[0](cosines)))
    torch.testing.assert_close(network(obs, torch.tensor([[tau]]))[:, 0], expected, **CLOSE)


@BOTH
def test_a_soft_update_moves_the_target_by_tau_of_the_way(algorithm):
    network, trainer = made_trainer(algorithm(tau=0.25))
    before = weights(trainer.target)
    trainer.update(made_batch())
    expected = [slow.lerp(fast, 0.25) for slow, fast in zip(before, weights(network), strict=True)]
    assert all(map(torch.equal, expected, weights(trainer.target)))


@BOTH
def test_a_hard_update_copies_the_network_at_intervals(algorithm):
    network, trainer = made_trainer(algorithm(target_update_freq=3))
    before = weights(trainer.target)
    for _ in range(2):
        trainer.update(made_batch())
        assert all(map(torch.equal, before, weights(trainer.target)))
    trainer.update(made_batch())
    assert all(map(torch.equal, weights(network), weights(trainer.target)))


@BOTH
def test_long_gradients_are_scaled_down_to_max_grad_norm(algorithm):
    network, trainer = made_trainer(algorithm(max_grad_norm=1e-3))
    before_clipping = trainer.update(made_batch()).metrics["grad_norm"].item()
    applied = torch.cat([one.grad.flatten() for one in network.parameters()]).norm().item()
    assert before_clipping > 1e-3
    assert applied == pytest.approx(1e-3, rel=1e-3)


@BOTH
def test_the_target_shares_no_memory_with_the_network(algorithm):
    """The target shares no memory even if the network is views of one flat tensor."""
    hyper = algorithm()
    network = hyper.make_model(box_spaces())
    tensors = [*network.parameters(), *network.buffers()]
    flat = flattened(tensors)
    trainer = hyper.make_trainer(network)
    copies = [*trainer.target.parameters(), *trainer.target.buffers()]
    storages = [one.untyped_storage() for one in [*copies, flat]]
    assert len({storage.data_ptr() for storage in storages}) == len(storages)
    assert all(map(torch.equal, tensors, copies))
    assert all(one.untyped_storage().nbytes() == one.numel() * one.element_size() for one in copies)
    trainer.update(made_batch())
    assert all(one.untyped_storage().data_ptr() == storages[-1].data_ptr() for one in tensors)


@BOTH
@pytest.mark.parametrize("target_update_freq", [0, 4])
def test_training_resumed_from_a_state_dict_goes_on_bit_for_bit(algorithm, target_update_freq):
    hyper = algorithm(target_update_freq=target_update_freq)
    batches = [made_batch(seed=seed) for seed in range(9)]
    check_resumption(hyper, box_spaces(), *made_trainer(hyper), batches[:3], batches[3:])


def chain_batch(rng, rows=64, length=4):
    """Random moves on a line: right leads to +10 past its end, left to +2 at once and back to the start."""
    state, action = rng.integers(length, size=rows), rng.integers(2, size=rows)
    arrived = (action == 1) & (state == length - 1)
    following = np.where(action == 1, np.minimum(state + 1, length - 1), 0)
    one_hot = torch.eye(length)
    return SimpleNamespace(
        obs=one_hot[state],
        next_obs=one_hot[following],
        action=torch.from_numpy(action),
        reward=torch.from_numpy((10.0 * arrived + 2.0 * (action == 0)).astype(np.float32)),
        discount=torch.from_numpy(np.where(arrived, 0.0, 0.6).astype(np.float32)),
        weight=torch.ones(rows),
    )


@pytest.mark.long
@BOTH
@pytest.mark.parametrize("variant", [{}, {"double": False, "dueling": False, "target_update_freq": 20}])
def test_the_optimal_policy_of_a_chain_is_learned(algorithm, variant):
    """The optimal policy of a chain is learned from random moves."""
    hyper = algorithm(learning_rate=3e-3, tau=0.1, **variant)
    network = hyper.make_model(box_spaces((4,)))
    trainer = hyper.make_trainer(network)
    rng = np.random.default_rng(0)
    for _ in range(400):
        trainer.update(chain_batch(rng))
    values = network(torch.eye(4)).detach().numpy() / hyper.reward_scale
    expected = optimal_chain_values()
    assert expected.argmax(1).tolist() == [0, 0, 1, 1]  # a far reward is not worth the walk, a near one is
    np.testing.assert_array_equal(values.argmax(1), expected.argmax(1))
    np.testing.assert_allclose(values, expected, atol=0.5)


def optimal_chain_values(length=4):
    values = np.zeros((length, 2))
    for _ in range(100):
        best = values.max(1)
        values[:, 0] = 2 + 0.6 * best[0]
        values[:-1, 1] = 0.6 * best[1:]
        values[-1, 1] = 10
    return values


@BOTH
def test_many_actions_are_learned_from(algorithm):
    spaces = box_spaces(actions=300)
    _, trainer = made_trainer(algorithm(), spaces)
    assert torch.isfinite(trainer.update(made_batch(spaces)).metrics["loss"])


def test_make_gives_defaults_by_name():
    assert {name: make(name) for name in ("dqn", "iqn", "td3")} == {"dqn": DQN(), "iqn": IQN(), "td3": TD3()}


def test_make_names_the_known_algorithms_when_asked_for_another():
    known = ", ".join(sorted(ALGORITHMS))
    line = rf"^algorithm: expected one of {known} or module:Class, got 'dqm'; did you mean dqn\?$"
    with pytest.raises(ValueError, match=line):
        make("dqm")
