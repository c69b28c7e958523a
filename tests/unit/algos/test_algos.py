"""The algorithms' losses against plain NumPy, their targets, exploration, resumption, and that they learn."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from marlcore.algos import ALGORITHMS, DQN, IQN, make
from marlcore.algos.iqn import quantile_huber_loss
from marlcore.spec import Field

VECTOR = Field((3,))
BOTH = pytest.mark.parametrize("algorithm", [DQN, IQN])


@pytest.fixture(autouse=True)
def one_thread_and_one_seed():
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made_batch(rows=6, actions=2, field=VECTOR, seed=0, **replaced):
    rng = np.random.default_rng(seed)
    fields = {
        "obs": torch.from_numpy(rng.normal(size=(rows, *field.shape))).to(getattr(torch, field.dtype)),
        "next_obs": torch.from_numpy(rng.normal(size=(rows, *field.shape))).to(getattr(torch, field.dtype)),
        "action": torch.from_numpy(rng.integers(actions, size=rows)),
        "reward": torch.from_numpy(rng.normal(scale=10, size=rows).astype(np.float32)),
        "discount": torch.from_numpy(rng.choice([0.0, 0.9, 0.99], size=rows).astype(np.float32)),
        "weight": torch.from_numpy(rng.uniform(0.1, 1, size=rows).astype(np.float32)),
    }
    return SimpleNamespace(**{**fields, **replaced})


def made_trainer(hyper, actions=2, field=VECTOR, stack=1):
    """A network, and a trainer whose target differs from it."""
    network = hyper.make_network(field, actions, stack)
    trainer = hyper.make_trainer(network)
    with torch.no_grad():
        for one in trainer.target.parameters():
            one.add_(torch.randn_like(one))
    return network, trainer


def weights(network):
    return [one.detach().clone() for one in network.parameters()]


def huber(error, delta=1.0):
    small = np.abs(error) <= delta
    return np.where(small, 0.5 * error**2, delta * (np.abs(error) - 0.5 * delta))


def plain_quantile_loss(predicted, target, taus, kappa):
    loss = np.zeros(len(predicted))
    for row in range(len(predicted)):
        for i, tau in enumerate(taus[row]):
            for sample in target[row]:
                error = sample - predicted[row, i]
                loss[row] += abs(tau - (error < 0)) * huber(error, kappa) / kappa / len(target[row])
    return loss


@pytest.mark.parametrize("double", [True, False])
def test_dqn_loss_is_the_weighted_huber_loss(double):
    """DQN loss is the weighted Huber loss of the bootstrapped error."""
    hyper = DQN(double=double, hidden=(8, 8))
    network, trainer = made_trainer(hyper, actions=4)
    batch = made_batch(rows=32, actions=4)
    with torch.no_grad():
        now, chooser = network(batch.obs).numpy(), network(batch.next_obs).numpy()
        value = trainer.target(batch.next_obs).numpy()
    rows = np.arange(32)
    best = (chooser if double else value).argmax(1)
    assert (chooser.argmax(1) != value.argmax(1)).any()  # else both targets would be the same
    target = 0.1 * batch.reward.numpy() + batch.discount.numpy() * value[rows, best]
    taken = now[rows, batch.action.numpy()]
    expected = np.mean(batch.weight.numpy() * huber(target - taken))

    scalars = trainer.update(batch)

    assert scalars["loss"].item() == pytest.approx(expected, rel=1e-5)
    assert scalars["q_mean"].item() == pytest.approx(taken.mean() / 0.1, rel=1e-5)
    assert set(scalars) == {"loss", "q_mean", "grad_norm"}
    assert not any(scalar.requires_grad for scalar in scalars.values())


@pytest.mark.parametrize("kappa", [0.5, 1.0])
def test_quantile_huber_loss_is_what_the_paper_writes(kappa):
    rng = np.random.default_rng(1)
    predicted, target, taus = rng.normal(size=(5, 3)), rng.normal(size=(5, 4)), rng.uniform(size=(5, 3))
    loss = quantile_huber_loss(*map(torch.from_numpy, (predicted, target, taus)), kappa)
    np.testing.assert_allclose(loss.numpy(), plain_quantile_loss(predicted, target, taus, kappa), rtol=1e-6)


@pytest.mark.parametrize("double", [True, False])
def test_iqn_loss_is_the_weighted_quantile_huber_loss(double):
    """IQN loss is the weighted quantile Huber loss of the bootstrapped error."""
    hyper = IQN(double=double, hidden=(8, 8), n_tau=3, n_tau_prime=5)
    network, trainer = made_trainer(hyper, actions=4)
    batch = made_batch(rows=32, actions=4)
    generator = torch.Generator()
    generator.set_state(trainer.generator.get_state())
    taus, taus_prime = (torch.rand(32, n, generator=generator) for n in (3, 5))
    with torch.no_grad():
        now = network.quantiles(batch.obs, taus).numpy()
        future = trainer.target.quantiles(batch.next_obs, taus_prime).numpy()
        online, slow = network(batch.next_obs).numpy(), trainer.target(batch.next_obs).numpy()
    rows = np.arange(32)
    best = (online if double else slow).argmax(1)
    assert (online.argmax(1) != slow.argmax(1)).any()
    target = 0.1 * batch.reward.numpy()[:, None] + batch.discount.numpy()[:, None] * future[rows, :, best]
    taken = now[rows, :, batch.action.numpy()]
    expected = np.mean(batch.weight.numpy() * plain_quantile_loss(taken, target, taus.numpy(), hyper.kappa))

    scalars = trainer.update(batch)

    assert scalars["loss"].item() == pytest.approx(expected, rel=1e-5)
    assert scalars["q_mean"].item() == pytest.approx(taken.mean() / 0.1, rel=1e-5)


def test_iqn_values_are_the_mean_of_quantiles_at_midpoints():
    network = IQN(n_policy=4).make_network(VECTOR, 2, 1)
    obs = torch.randn(5, 3)
    taus = torch.tensor([0.125, 0.375, 0.625, 0.875]).expand(5, 4)
    torch.testing.assert_close(network(obs), network.quantiles(obs, taus).mean(1))


def test_iqn_embeds_fractions_by_cosines():
    """IQN embeds a fraction as ReLU of a linear map of cosines."""
    network = IQN(n_cos=5, hidden=(4, 4), dueling=False).make_network(VECTOR, 2, 1)
    obs, tau = torch.randn(1, 3), 0.3
    cosines = torch.tensor([np.cos(np.pi * i * tau) for i in range(5)], dtype=torch.float32)
    expected = network.head(network.torso(obs) * torch.relu(network.embedding(cosines)))
    torch.testing.assert_close(network.quantiles(obs, torch.tensor([[tau]]))[:, 0], expected)


def test_dueling_values_add_centred_advantages():
    """Dueling values are the state value plus centred advantages."""
    network = DQN(hidden=(8, 8)).make_network(VECTOR, 3, 1)
    obs = torch.randn(4, 3)
    raw = network.head.output(torch.relu(network.head.hidden(network.torso(obs))))
    advantage, value = raw[:, :3], raw[:, 3:]
    torch.testing.assert_close(network(obs), value + advantage - advantage.mean(1, keepdim=True))
    torch.testing.assert_close(network(obs).mean(1, keepdim=True), value)


@BOTH
def test_a_discount_of_zero_ignores_the_next_observation(algorithm):
    losses = []
    for seed in (1, 2):
        torch.manual_seed(0)
        _, trainer = made_trainer(algorithm())
        other = made_batch(seed=seed).next_obs
        losses.append(trainer.update(made_batch(next_obs=other, discount=torch.zeros(6)))["loss"].item())
    assert losses[0] == losses[1]


@BOTH
def test_a_row_of_weight_zero_teaches_nothing(algorithm):
    network, trainer = made_trainer(algorithm())
    before = weights(network)
    assert trainer.update(made_batch(weight=torch.zeros(6)))["grad_norm"].item() == 0
    assert all(map(torch.equal, before, weights(network)))


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
    before_clipping = trainer.update(made_batch())["grad_norm"].item()
    applied = torch.cat([one.grad.flatten() for one in network.parameters()]).norm().item()
    assert before_clipping > 1e-3
    assert applied == pytest.approx(1e-3, rel=1e-3)


@BOTH
def test_epsilon_zero_is_greedy_and_one_is_uniform(algorithm):
    hyper = algorithm()
    network = hyper.make_network(VECTOR, 4, 1)
    obs = torch.randn(4000, 3)
    rng = np.random.default_rng(0)
    greedy = hyper.act(network, obs, 0.0, rng)
    assert greedy.dtype == np.int64
    np.testing.assert_array_equal(greedy, network(obs).argmax(1).numpy())
    counts = np.bincount(hyper.act(network, obs, 1.0, rng), minlength=4)
    assert ((counts > 880) & (counts < 1120)).all()  # four standard deviations of 27


@BOTH
def test_the_network_is_not_run_when_every_row_explores(algorithm):
    hyper = algorithm()
    network = hyper.make_network(VECTOR, 4, 1)
    runs = []
    network.register_forward_hook(lambda *_: runs.append(1))
    hyper.act(network, torch.randn(3, 3), 1.0, np.random.default_rng(0))
    assert not runs


@BOTH
def test_the_same_generator_state_gives_the_same_actions(algorithm):
    hyper = algorithm()
    network = hyper.make_network(VECTOR, 4, 1)
    obs = torch.randn(50, 3)
    first, second = (hyper.act(network, obs, 0.5, np.random.default_rng(7)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@BOTH
def test_the_target_shares_no_memory_with_the_network(algorithm):
    """The target shares no memory even if the network is views of one flat tensor."""
    hyper = algorithm()
    network = hyper.make_network(VECTOR, 2, 1)
    tensors = [*network.parameters(), *network.buffers()]
    flat = torch.cat([one.detach().flatten() for one in tensors])
    offset = 0
    for one in tensors:
        one.data = flat[offset : offset + one.numel()].view_as(one)
        offset += one.numel()
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
    network, trainer = made_trainer(hyper)
    for seed in range(3):
        trainer.update(made_batch(seed=seed))
    saved = copy.deepcopy((network.state_dict(), trainer.state_dict()))

    other = hyper.make_network(VECTOR, 2, 1)
    resumed = hyper.make_trainer(other)
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])

    for seed in range(3, 9):
        first, second = (one.update(made_batch(seed=seed)) for one in (trainer, resumed))
        assert first == second
    assert all(map(torch.equal, weights(network), weights(other)))
    assert all(map(torch.equal, weights(trainer.target), weights(resumed.target)))


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
    network = hyper.make_network(Field((4,)), 2, 1)
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
@pytest.mark.parametrize(
    ("field", "stack"),
    [
        (Field((5, 7, 7), "uint8"), 1),
        (Field((5,), "float64"), 4),
        (Field((), "int64"), 1),
        (Field((32, 40), "uint8"), 4),
        (Field((3, 36, 36), "uint8"), 2),
        (Field((36, 40, 3), "float32"), 2),
    ],
)
def test_every_kind_of_observation_is_learned_from(algorithm, field, stack):
    hyper = algorithm()
    network, trainer = made_trainer(hyper, actions=3, field=field, stack=stack)
    stacked = Field((stack, *field.shape) if stack > 1 else field.shape, field.dtype)
    batch = made_batch(rows=4, actions=3, field=stacked)
    assert network(batch.obs).shape == (4, 3)
    assert hyper.act(network, batch.obs, 0.1, np.random.default_rng(0)).shape == (4,)
    assert torch.isfinite(trainer.update(batch)["loss"])


def test_channels_may_come_first_or_last():
    torch.manual_seed(0)
    first = DQN().make_network(Field((3, 36, 40), "uint8"), 2, 2)
    torch.manual_seed(0)
    last = DQN().make_network(Field((36, 40, 3), "uint8"), 2, 2)
    obs = torch.randint(0, 256, (4, 2, 3, 36, 40), dtype=torch.uint8)
    torch.testing.assert_close(first(obs), last(obs.movedim(2, -1)))


def test_only_uint8_images_are_divided_by_255():
    image = DQN().make_network(Field((36, 36), "uint8"), 2, 1)
    assert image.torso.scale == 1 / 255
    assert DQN().make_network(Field((36, 36)), 2, 1).torso.scale == 1
    assert DQN().make_network(Field((5, 7, 7), "uint8"), 2, 1).torso.scale == 1
    seen = []
    image.torso.layers.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    image(torch.full((1, 36, 36), 255, dtype=torch.uint8))
    torch.testing.assert_close(seen[0], torch.ones(1, 1, 36, 36))


@BOTH
def test_hyperparameters_survive_pickling(algorithm):
    hyper = algorithm(learning_rate=1e-3, hidden=(7,), double=False)
    assert pickle.loads(pickle.dumps(hyper)) == hyper


@BOTH
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", -1e-3),
        ("learning_rate", float("nan")),
        ("learning_rate", "fast"),
        ("tau", 0.0),
        ("tau", 1.5),
        ("target_update_freq", -1),
        ("target_update_freq", 2.5),
        ("max_grad_norm", 0.0),
        ("reward_scale", float("inf")),
        ("hidden", ()),
        ("hidden", 64),
        ("hidden", (64, 0)),
    ],
)
def test_a_bad_hyperparameter_is_named_in_one_line(algorithm, field, value):
    with pytest.raises(ValueError, match=rf"^{algorithm.__name__} {field}: expected .*, got [^\n]+$"):
        algorithm(**{field: value})


@pytest.mark.parametrize("field", ["n_cos", "n_tau", "n_tau_prime", "n_policy", "kappa"])
def test_a_bad_hyperparameter_of_iqn_is_named_in_one_line(field):
    with pytest.raises(ValueError, match=rf"^IQN {field}: expected .*, got 0$"):
        IQN(**{field: 0})


@BOTH
def test_a_network_needs_an_action_and_a_frame(algorithm):
    with pytest.raises(ValueError, match="actions: expected an integer of at least 1, got 0"):
        algorithm().make_network(VECTOR, 0, 1)
    with pytest.raises(ValueError, match="stack: expected an integer of at least 1, got 0"):
        algorithm().make_network(VECTOR, 2, 0)


def test_make_gives_defaults_by_name():
    assert {name: make(name) for name in ALGORITHMS} == {"dqn": DQN(), "iqn": IQN()}


def test_make_names_the_known_algorithms_when_asked_for_another():
    with pytest.raises(ValueError, match=r"^algorithm: expected one of dqn, iqn or module:Class, got 'ppo'$"):
        make("ppo")
