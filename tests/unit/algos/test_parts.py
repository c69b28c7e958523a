"""Parts of algorithms of one's own: plain dicts and NumPy as oracles, publication, resumption."""

import copy
from collections import Counter
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refused import Refused, refusals

import marlcore as mc
from marlcore.algos.exploration_bonuses import CountBonus, RNDBonus, StateTable
from marlcore.algos.parts_trainer import Part, PartsTrainer

pytestmark = pytest.mark.usefixtures("seeded_torch")

leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, "a", "1", b"a", "(1)", "a','b"])
states = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=2), max_leaves=6
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(states, min_size=1, max_size=5), max_size=6), st.integers(1, 6))
def test_a_table_is_a_dict_up_to_its_maximum(batches, most):
    """A second table that only follows the published tensors finds the same rows."""
    table, follower, rows = StateTable(most), StateTable(most), {}
    for batch in batches:
        for state in batch:
            if len(rows) < most:
                rows.setdefault(state, len(rows) + 1)
        expected = [rows.get(state, 0) for state in batch]
        assert table.add(batch).tolist() == table.rows(batch).tolist() == expected and len(table) == len(rows)
        with torch.no_grad():
            for mine, theirs in zip(follower.state_dict().values(), table.state_dict().values(), strict=True):
                mine.copy_(theirs)
        assert follower.rows(batch).tolist() == expected


def test_rows_of_arrays_are_tuples_of_their_numbers():
    table = StateTable(9, (2,), 0.5)
    obs = np.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], np.uint8)
    table.add([(5, 6, 7, 8), 3])
    assert table.rows(obs).tolist() == table.rows(torch.from_numpy(obs).float()).tolist() == [0, 1]
    assert table.rows(np.array([3, 4])).tolist() == [2, 0]
    assert table(obs).tolist() == [[0.5, 0.5]] * 2 and table(obs).requires_grad


def test_digests_are_those_of_every_process():
    """Python hashes texts with another seed in each process."""
    table = StateTable(2)
    table.add([("a", frozenset({"x", "y", 1.0}), None), (True, 0.5)])
    assert table.digests.tolist() == [0, -8644174952600127102, -2176354330385665430]


def test_a_published_table_is_found_and_trained_in_place():
    """A loaded table with other states replaces the table's states."""
    table, local = StateTable(4), StateTable(4)
    with mc.ParameterStore.create(table) as store, store.publisher(table) as publisher:
        subscriber, optimizer = store.subscriber(local), torch.optim.SGD(table.parameters(), lr=1.0)
        for number, state in enumerate(("a", "b", "a")):
            table.add([state])
            optimizer.zero_grad()
            table([state]).sum().backward()
            optimizer.step()
            publisher.publish()
            assert subscriber.pull() and len(local) == min(number + 1, 2)
            assert torch.equal(local(["a", "b", "c"]), table(["a", "b", "c"]))
        assert local(["a", "b", "c"]).tolist() == [-2.0, -1.0, 0.0]
    other = StateTable(4)
    other.add(["c", "a"])
    local.load_state_dict(copy.deepcopy(other.state_dict()))
    assert local.rows(["a", "b", "c"]).tolist() == [2, 0, 1]


def test_bonuses_follow_counts():
    """Counts are those of a Counter; states beyond the maximum are counted together."""
    bonus, seen = CountBonus(3, scale=2.0, offset=0.25), Counter()
    for state in [(1, 1), (1, 2), (1, 1), (2, 1), (1, 1)]:
        bonus.count([state, state])
        seen[state] += 2
    for state in [*seen, (9, 9)]:
        assert bonus.counts([state]).item() == seen[state]
        assert bonus([state]).item() == pytest.approx(2.0 / (seen[state] + 0.25) ** 0.5)
    bonus.count(["new", "newer"])
    assert bonus.counts(["new", "newest"]).tolist() == [2.0, 2.0]


def test_rnd_rewards_what_it_has_not_seen():
    """It trains on points of two quadrants. Control: untrained, it rewards the other two quadrants no more."""
    points = torch.randn(1024, 2)
    alike = points.prod(1) > 0
    seen, unseen, ratios = points[alike], points[~alike], []
    for updates in (1, 300):
        torch.manual_seed(0)
        bonus = RNDBonus((2,))
        optimizer = torch.optim.Adam(bonus.predictor.parameters(), lr=3e-3)
        for _ in range(updates):
            optimizer.zero_grad()
            loss = bonus.loss(seen)
            loss.backward()
            optimizer.step()
        ratios.append((bonus(unseen).mean() / bonus(seen).mean()).item())
        assert not bonus(seen).requires_grad and not any(p.requires_grad for p in bonus.target.parameters())
    assert ratios[0] < 1.5 < 3 < ratios[1], ratios


def test_rnd_normalizes_as_plain_numpy_does():
    """A copy that loads its state gives the same bonuses."""
    make = partial(torch.nn.Linear, 2, 4)
    bonus, twin = RNDBonus((2,), make), RNDBonus((2,), make)
    batches = [np.random.default_rng(n).normal(n, 2, (50, 2)) for n in range(3)]
    batches[-1][0] = 100  # which is clipped
    errors = []
    for number, batch in enumerate(batches):
        rows = np.concatenate(batches[: number + 1])
        scaled = np.clip((batch - rows.mean(0)) / (rows.std(0) + 1e-9), -5, 5)
        weights = [[t.detach().double().numpy() for t in net.parameters()] for net in (bonus.predictor, bonus.target)]
        outputs = [scaled @ weight.T + bias for weight, bias in weights]
        errors.append(((outputs[0] - outputs[1]) ** 2).mean(1))
        assert bonus.loss(torch.from_numpy(batch).float()).item() == pytest.approx(errors[-1].mean(), rel=1e-4)
    expected = errors[-1] / np.concatenate(errors).std()
    assert bonus(torch.from_numpy(batches[-1]).float()).numpy() == pytest.approx(expected, rel=1e-3)
    twin.load_state_dict(bonus.state_dict())
    obs = torch.randn(5, 2)
    assert torch.equal(twin(obs), bonus(obs))


def test_no_rows_change_nothing():
    """Such as those that a mask selects of a batch."""
    bonus = RNDBonus((2,), partial(torch.nn.Linear, 2, 4))
    for obs in (torch.zeros(0, 2), torch.randn(9, 2), torch.zeros(0, 2)):
        bonus.loss(obs)
    assert bonus(torch.randn(5, 2)).isfinite().all()
    table = StateTable(2)
    table.add(np.zeros((0, 3)))
    assert table.rows(torch.zeros(0, 3)).tolist() == [] and len(table) == 0


def parts_trainer():
    """Returns two linear networks and a trainer; the second network begins in stage 1 and learns from the first."""
    first, second, target = (torch.nn.Linear(1, 1) for _ in range(3))
    adam, sgd = torch.optim.Adam(first.parameters()), torch.optim.SGD(second.parameters(), lr=0.5, momentum=0.9)

    def of_first(batch):
        return ((first(batch.x) - batch.x) ** 2).mean()

    def of_second(batch):
        return ((second(batch.x) - first(batch.x).detach()) ** 2).mean()

    parts = {"first": Part(of_first, adam, 0.01), "second": Part(of_second, sgd, stage=1)}
    return (first, second), PartsTrainer(parts, target=target)


def test_parts_begin_by_stage_with_their_own_gradient_norms():
    """The first part steps as torch does after clipping; the second part's loss sees the first part updated."""
    (first, second), trainer = parts_trainer()
    batch = SimpleNamespace(x=torch.randn(8, 1), numbers={"stage": 0.0})
    twin, before = copy.deepcopy(first), copy.deepcopy(second.state_dict())
    update = trainer.update(batch)
    assert set(update.metrics) == {"loss", "loss_first", "grad_norm_first"}
    assert update.metrics["loss"] == update.metrics["loss_first"] and not update.metrics["loss"].requires_grad
    optimizer = torch.optim.Adam(twin.parameters())
    ((twin(batch.x) - batch.x) ** 2).mean().backward()
    assert torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.01) == update.metrics["grad_norm_first"]
    optimizer.step()
    assert all(map(torch.equal, twin.state_dict().values(), first.state_dict().values()))
    assert all(map(torch.equal, before.values(), second.state_dict().values()))
    batch.numbers["stage"] = 2.0
    late = copy.deepcopy(second)
    metrics = trainer.update(batch).metrics
    assert metrics["loss"] == metrics["loss_first"] + metrics["loss_second"]
    assert metrics["loss_second"] == ((late(batch.x) - first(batch.x)) ** 2).mean()
    assert not torch.equal(late.weight, second.weight)


def test_parts_resume_with_their_optimizers_and_what_else_is_kept():
    (networks, trainer), (others, resumed) = parts_trainer(), parts_trainer()
    batches = [SimpleNamespace(x=torch.randn(8, 1), numbers={"stage": 1.0}) for _ in range(6)]
    for batch in batches[:3]:
        trainer.update(batch)
    resumed.load_state_dict(copy.deepcopy(trainer.state_dict()))
    for network, other in zip(networks, others, strict=True):
        other.load_state_dict(network.state_dict())
    for batch in batches[3:]:
        assert trainer.update(batch).metrics == resumed.update(batch).metrics
    assert set(trainer.state_dict()) == {"first", "second", "target"}
    assert torch.equal(trainer.state_dict()["target"]["weight"], resumed.state_dict()["target"]["weight"])


def late(**options):
    return Part(torch.sum, torch.optim.SGD([torch.ones(1)], lr=0.1), **{"stage": 1, **options})


REFUSED: dict[str, Refused] = {
    "bonus's shape": (lambda: RNDBonus(()), "RNDBonus shape: expected at least one dimension, got ()"),
    "no states": (lambda: StateTable(0), "StateTable most: expected an integer of at least 1, got 0"),
    "a list": (lambda: StateTable(2).add([[1]]), TypeError, "unhashable type: 'list'"),
    "an object": (lambda: StateTable(2).add([object]), TypeError, "state: expected numbers, texts, bytes, None, and"),
    "a text": (lambda: StateTable(2).rows("ab"), TypeError, "states: expected an array or a sequence of states, got"),
    "a dict": (lambda: StateTable(2).rows({"a": 1}), TypeError, "states: expected an array or a sequence of states"),
    "only late parts": (lambda: PartsTrainer({"a": late()}), "expected a part with stage 0, got the stages {'a': 1}"),
    "a name twice": (
        lambda: PartsTrainer({"a": late(stage=0)}, a=torch.nn.Linear(1, 1)),
        "kept: expected other names than those of the parts, got ['a']",
    ),
    "no parts": (lambda: PartsTrainer({}), "parts: expected a part with stage 0, got the stages {}"),
    "a norm": (lambda: late(max_norm=0), "max_norm: expected a number above 0, got 0"),
    "a stage": (lambda: late(stage=-1), "stage: expected an integer of at least 0, got -1"),
    "scale": (lambda: CountBonus(2, -1.0), "CountBonus scale: expected a finite number of at least 0"),
    "offset": (lambda: CountBonus(2, offset=0), "CountBonus offset: expected a finite number above 0"),
}
test_refuses = refusals(REFUSED)
