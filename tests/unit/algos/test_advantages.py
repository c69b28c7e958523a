"""GAE and V-trace against their papers' sums, over runs that end, are truncated, or are cut; and a critic's units."""

import numpy as np
import torch
from batches import plain_advantages
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import near, rounding

from marlcore.algos.advantages import Steps, ValueNormalizer, gae, vtrace

GAMMA = 0.9


@st.composite
def batches(draw):
    """Runs of transitions, each of one lane and episode; a run is terminated, or ends in an observation with a value.

    Truncated episodes, and runs at whose end the next lane begins, are the same to these functions.
    """
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    return [
        {
            "reward": rng.normal(size=length),
            "value": rng.normal(size=length),
            "last": rng.normal(),
            "ratio": np.exp(rng.normal(size=length)),
            "terminated": draw(st.booleans()),
        }
        for length in lengths
    ]


def rows_of(runs):
    """The runs one after another, as the functions take them, and the ratios."""
    columns = {name: [] for name in ("reward", "discount", "value", "following", "continues", "ratio")}
    for run in runs:
        length = len(run["reward"])
        last = np.arange(length) == length - 1
        columns["reward"].append(run["reward"])
        columns["discount"].append(np.where(last & run["terminated"], 0.0, GAMMA))
        columns["value"].append(run["value"])
        columns["following"].append(np.append(run["value"][1:], run["last"]))
        columns["continues"].append(~last)
        columns["ratio"].append(run["ratio"])
    dtypes = {"continues": torch.bool}
    *steps, ratio = (
        torch.from_numpy(np.concatenate(parts)).to(dtypes.get(name, torch.float32)) for name, parts in columns.items()
    )
    return Steps(*steps), ratio


def close_of(runs):
    """Inputs and results are float32; an advantage sums over a run's steps, whose weights are at most 3."""
    most = max(np.abs(run["reward"]).sum() + 2 * np.abs(run["value"]).sum() + abs(run["last"]) for run in runs)
    return rounding(5 * 6, 3 * float(most))


@settings(max_examples=60)
@given(batches(), st.sampled_from([0.0, 0.5, 0.95, 1.0]), st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([0.7, 1.0]))
def test_vtrace_is_the_sum_of_the_paper(runs, decay, rho_bar, c_bar):
    steps, ratio = rows_of(runs)
    expected = plain_advantages(*(values.double().numpy() for values in (*steps, ratio)), decay, rho_bar, c_bar)
    for result, plain in zip(vtrace(steps, ratio, decay, rho_bar, c_bar), expected, strict=True):
        np.testing.assert_allclose(result, plain, **close_of(runs))
        assert result.dtype == torch.float32


@settings(max_examples=60)
@given(batches(), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_gae_is_the_discounted_sum_of_errors(runs, decay):
    steps, ratio = rows_of(runs)
    advantage, target = gae(steps, decay)
    expected = []
    for run in runs:
        after = np.append(run["value"][1:], 0.0 if run["terminated"] else run["last"])
        errors = run["reward"] + GAMMA * after - run["value"]
        expected += [
            sum((GAMMA * decay) ** i * error for i, error in enumerate(errors[s:])) for s in range(len(errors))
        ]
    np.testing.assert_allclose(advantage, expected, **close_of(runs))
    torch.testing.assert_close(target, steps.value + advantage, **close_of(runs))
    assert torch.equal(vtrace(steps, torch.ones_like(ratio), decay, 1.0, 1.0)[0], advantage)


def test_nothing_of_a_later_run_reaches_an_earlier_one():
    """The control: with `continues` at the seam, it does."""
    rng = np.random.default_rng(0)
    run = {"reward": np.ones(3), "value": np.zeros(3), "last": 0.5, "ratio": np.ones(3), "terminated": False}
    other = {**run, "reward": rng.normal(size=3)}
    alone, both = rows_of([run]), rows_of([run, other])
    first, _ = vtrace(*alone, 0.9, 1.0, 1.0)
    assert torch.equal(vtrace(*both, 0.9, 1.0, 1.0)[0][:3], first)
    both[0].continues[2] = True
    assert (vtrace(*both, 0.9, 1.0, 1.0)[0][:3] != first).all()


CPU = torch.device("cpu")


def test_the_statistics_are_debiased_averages_of_the_batches():
    rng = np.random.default_rng(0)
    batches = [rng.normal(3 * i, 1 + i, 50 + i) for i in range(20)]
    normalizer = ValueNormalizer(CPU)
    for batch in batches:
        normalizer.update(torch.from_numpy(batch))
    weights = 0.99 ** np.arange(19, -1, -1)
    mean = np.average([batch.mean() for batch in batches], weights=weights)
    square = np.average([(batch**2).mean() for batch in batches], weights=weights)
    deviation = np.sqrt(square - mean**2)
    values = torch.linspace(-5, 90, 7)
    expected = (values.numpy() - mean) / deviation
    close = rounding(4, 90 + abs(mean))
    np.testing.assert_allclose(normalizer.normalized(values), expected, **close)
    torch.testing.assert_close(normalizer.denormalized(normalizer.normalized(values)), values, **close)


def test_the_first_batch_counts_whole_and_equal_targets_stay_finite():
    normalizer = ValueNormalizer(CPU)
    targets = torch.tensor([40.0, 60.0])
    assert torch.equal(normalizer.normalized(targets), targets)
    normalizer.update(targets)
    assert normalizer.normalized(targets).tolist() == near([-1.0, 1.0], 4)
    normalizer = ValueNormalizer(CPU)
    normalizer.update(torch.full((5,), 7.0))
    assert normalizer.normalized(torch.tensor([7.0, 8.0])).tolist() == near([0.0, 100.0], 4, 7 / 1e-2)
