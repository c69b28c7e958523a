"""Every trainer: one update's results, gradients, target networks, memory, and resumption."""

import copy
from dataclasses import replace

import pytest
import torch
from batches import SMALL, batch_of, check_resumption, flattened, made_trainer
from rounding import rounding
from torch.utils._pytree import tree_flatten, tree_unflatten

pytestmark = pytest.mark.usefixtures("seeded_torch")

VALUES, CONTINUOUS = ["dqn", "iqn", "r2d2", "cql", "vdn", "qmix"], ["td3", "sac", "td3bc", "matd3", "maddpg"]
QUEUES = ["ppo", "mappo", "recurrentppo", "happo"]
OF_TD3 = ("td3", "td3bc", "matd3")
OWN_METRICS = {
    "cql": {"penalty"},
    "bc": {"entropy"},
    "maddpg": {"policy_loss"},
    "coma": {"policy_loss", "entropy"},
    "sac": {"entropy", "policy_loss", "temperature"},
    **{name: {"policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"} for name in QUEUES},
}


def made(name, **options):
    """Returns an algorithm, its spaces, a model and a trainer; a target network differs from the model."""
    hyper, spaces = replace(SMALL[name][0], **options), SMALL[name][1]
    return hyper, spaces, *made_trainer(hyper, spaces)


def followed(name, model):
    """The part of the model that the target follows."""
    return model.critics if name == "sac" else model


def tensors_of(module):
    return [tensor.detach().clone() for tensor in module.parameters()]


@pytest.mark.parametrize("name", SMALL)
def test_an_update_returns_detached_scalars_and_priorities(name):
    hyper, spaces, _, trainer = made(name)
    batch = batch_of(hyper, spaces)
    update = trainer.update(copy.copy(batch))
    expected = {"explained_variance"} if name in QUEUES else {"q_mean"} if name != "bc" else set()
    assert set(update.metrics) == {"loss", "grad_norm", *expected, *OWN_METRICS.get(name, ())}
    assert all(value.shape == () and not value.requires_grad for value in update.metrics.values())
    if (steps := {"happo": 24, "coma": 3, **dict.fromkeys(QUEUES[:3], 6)}.get(name)) is not None:
        assert update.priority is None and update.updates == steps
        return
    assert update.priority.shape == (len(batch.weight),) and update.priority.dtype == torch.float32
    assert not update.priority.requires_grad and update.updates == 1


@pytest.mark.parametrize("name", SMALL)
def test_one_row_gives_finite_metrics_and_weights(name):
    """A batch may have one row, and so may a minibatch: the last one of 9 rows in minibatches of 8."""
    hyper, spaces, model, trainer = made(name)
    for rows in (1, 9, 1):
        update = trainer.update(batch_of(hyper, spaces, rows=rows))
        numbers = [*update.metrics.values(), *([] if update.priority is None else [update.priority])]
        assert all(torch.isfinite(each).all() for each in (*numbers, *model.state_dict().values()))


OFF_POLICY = pytest.mark.parametrize("name", [name for name in SMALL if name not in QUEUES])
TARGETED = pytest.mark.parametrize("name", [*VALUES, *CONTINUOUS])


@OFF_POLICY
def test_the_learning_rate_follows_its_schedule(name):
    """A scheduled rate gives the same step as a constant one. Only schedules are published."""
    hyper, spaces = SMALL[name]
    scheduled = replace(hyper, learning_rate="linear(0.01, 0, 100)")
    assert scheduled.schedules()["learning_rate"] == "linear(0.01, 0, 100)"
    assert "learning_rate" not in hyper.schedules()
    after = []
    for chosen, numbers in ((replace(hyper, learning_rate=3e-3), {}), (scheduled, {"learning_rate": 3e-3})):
        torch.manual_seed(0)
        model = chosen.make_model(spaces)
        trainer = chosen.make_trainer(model)
        batch = batch_of(chosen, spaces)
        batch.numbers = numbers
        trainer.update(copy.copy(batch))
        after.append(tensors_of(model))
        batch.numbers = {"learning_rate": 0.0}
        trainer.update(copy.copy(batch))
        still = [torch.equal(*pair) for pair in zip(after[-1], tensors_of(model), strict=True)]
        assert all(still) == (chosen is scheduled)
    assert all(torch.equal(*pair) for pair in zip(*after, strict=True))


@pytest.mark.parametrize("name", SMALL)
def test_a_state_with_a_tensor_of_another_shape_is_refused(name):
    """Changes each tensor in turn, as a hostile checkpoint may: fused kernels would leave the tensors' memory."""
    *_, trainer = made(name)
    sound = trainer.state_dict()
    leaves, form = tree_flatten(sound)
    for number, leaf in enumerate(leaves):
        if torch.is_tensor(leaf):
            changed = [*leaves[:number], torch.zeros(leaf.numel() + 1, dtype=leaf.dtype), *leaves[number + 1 :]]
            with pytest.raises((ValueError, RuntimeError), match=r"shape|size"):
                trainer.load_state_dict(tree_unflatten(changed, form))
    trainer.load_state_dict(sound)


@OFF_POLICY
def test_a_restored_trainer_keeps_its_own_learning_rate(name):
    """The rate that the saved optimizer had does not count, with and without a schedule."""
    hyper, spaces = SMALL[name]
    rates = 0.5, "linear(0.01, 0, 100)"
    saved = made(name, learning_rate=rates[0])[-1], made(name, learning_rate=rates[1])[-1]
    for number, (other, rate) in enumerate(zip(rates, (0.5, 3e-3), strict=True)):
        *_, resumed = made(name, learning_rate=other)
        resumed.load_state_dict(copy.deepcopy(saved[1 - number].state_dict()))
        batch = batch_of(hyper, spaces)
        batch.numbers = {"learning_rate": 3e-3}
        resumed.update(batch)
        assert {group["lr"] for optimizer in resumed.optimizers for group in optimizer.param_groups} == {rate}


COPIED = {"target_update_freq": 4}
MEMORY = {"cell": "lstm", "units": 6, "length": 8, "burn_in": 3, "period": 4, "n_step": 3}
RESUMED = [*((name, {}) for name in SMALL), *((name, COPIED) for name in VALUES), ("vdn", MEMORY), ("qmix", MEMORY)]


@pytest.mark.parametrize(("name", "options"), RESUMED)
def test_training_resumed_from_a_state_dict_continues_bit_for_bit(name, options):
    """Resumes after an odd number of updates: the state must tell when TD3's policy or a target's copy is due."""
    hyper, spaces, model, trainer = made(name, **options)
    batches = [batch_of(hyper, spaces, seed) for seed in range(5)]
    check_resumption(hyper, spaces, model, trainer, batches[:3], batches[3:])


@TARGETED
def test_a_soft_update_moves_the_target_by_tau_of_the_way(name):
    """With a policy_delay of 3, TD3's targets and policy move only at every third update, its critics at each."""
    hyper, spaces, model, trainer = made(name, tau=0.25, **({"policy_delay": 3} if name in OF_TD3 else {}))
    for number in range(1, 7):
        before, weights = tensors_of(trainer.target), copy.deepcopy(model.state_dict())
        trainer.update(batch_of(hyper, spaces, number))
        due = name not in OF_TD3 or number % 3 == 0
        moved = {part.split(".")[0] for part, now in model.state_dict().items() if (now != weights[part]).any()}
        assert name not in CONTINUOUS or moved == {"critics"} | ({"acting"} if due else set())
        for slow, fast, now in zip(before, tensors_of(followed(name, model)), tensors_of(trainer.target), strict=True):
            torch.testing.assert_close(now, slow.lerp(fast, 0.25 * due), **rounding(4, 4.0))


@pytest.mark.parametrize("name", VALUES)
def test_a_hard_update_copies_the_network_at_intervals(name):
    hyper, spaces, model, trainer = made(name, target_update_freq=3)
    before = tensors_of(trainer.target)
    for number in range(2):
        trainer.update(batch_of(hyper, spaces, number))
        assert all(map(torch.equal, before, tensors_of(trainer.target)))
    trainer.update(batch_of(hyper, spaces, 2))
    assert all(map(torch.equal, tensors_of(model), tensors_of(trainer.target)))


@pytest.mark.parametrize("most", [1e-3, 1e9])
@pytest.mark.parametrize("name", [*VALUES, *CONTINUOUS, "bc"])
def test_a_step_uses_the_gradient_clipped_to_max_grad_norm(name, most):
    """The loss of a policy, which passes through the critics, leaves no gradient there."""
    hyper, spaces, model, trainer = made(name, max_grad_norm=most)
    learners = model.critics if name in CONTINUOUS else model
    for seed in range(2):
        norm = trainer.update(batch_of(hyper, spaces, seed)).metrics["grad_norm"].item()
        applied = torch.cat([parameter.grad.flatten() for parameter in learners.parameters()]).norm().item()
        assert norm > 1e-3
        assert applied == pytest.approx(min(norm, most), rel=1e-3)


@TARGETED
def test_the_target_shares_no_memory_with_a_published_model(name):
    """The published tensors are and stay views of one flat tensor; a target has memory of its own."""
    hyper, spaces = SMALL[name]
    model = hyper.make_model(spaces)
    acting = getattr(model, "acting", model)
    tensors = [*acting.parameters(), *acting.buffers()]
    flat = flattened([tensor for tensor in tensors if tensor.dtype == torch.float32]).untyped_storage()
    trainer = hyper.make_trainer(model)
    copies = [*trainer.target.parameters(), *trainer.target.buffers()]
    storages = [tensor.untyped_storage() for tensor in copies]
    assert len({storage.data_ptr() for storage in (*storages, flat)}) == len(copies) + 1
    assert all(storage.nbytes() == copy.numel() * copy.element_size() for storage, copy in zip(storages, copies))  # noqa: B905
    followed_part = followed(name, model)
    assert all(map(torch.equal, [*followed_part.parameters(), *followed_part.buffers()], copies))
    for seed in range(2):
        trainer.update(batch_of(hyper, spaces, seed))
    held = [tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.dtype == torch.float32]
    assert set(held) == {flat.data_ptr()}
