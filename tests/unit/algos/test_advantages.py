"""GAE and V-trace against their papers' sums, over runs that end, are truncated, or are cut; and a critic's units."""

import numpy as np
from batches import plain_advantages
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import near, rounding

from marlcore.algos.advantages import Steps, ValueNormalizer, gae, vtrace

GAMMA = 0.9


ROWS = st.lists(st.sampled_from(["continues", "cut", "terminated"]), min_size=1, max_size=12)
DECAY = st.sampled_from([0.0, 0.5, 0.95, 1.0])


def steps_of(ends, seed):
    """Returns random rows: a row continues, is cut off from a next observation with a value, or is terminated."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(3, len(ends))).astype(np.float32)
    continues = np.array([end == "continues" for end in [*ends[:-1], "cut"]])
    reward, value, following = numbers
    following[continues] = np.roll(value, -1)[continues]
    discount = np.where(np.array(ends) == "terminated", 0.0, GAMMA).astype(np.float32)
    ratio = np.exp(rng.normal(size=len(ends))).astype(np.float32)
    return reward, discount, value, following, continues, ratio


@settings(max_examples=100)
@given(ROWS, st.integers(0, 2**16), DECAY, st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([0.7, 1.0]))
def test_vtrace_is_the_sum_of_the_paper(ends, seed, decay, rho_bar, c_bar):
    """GAE is V-trace with ratios of 1. No row depends on a later run."""
    *steps, ratio = steps_of(ends, seed)
    # Inputs and results are float32; an advantage sums over a run's steps, whose weights are at most 3.
    close = rounding(5 * len(ends), 3 * float(np.abs(steps[:4]).sum()))
    ones = np.ones_like(ratio)
    for found, weights, bounds in (
        (vtrace(Steps(*steps), ratio, decay, rho_bar, c_bar), ratio, (rho_bar, c_bar)),
        (gae(Steps(*steps), decay), ones, (1.0, 1.0)),
    ):
        plain = plain_advantages(*(numbers.astype(float) for numbers in (*steps, weights)), decay, *bounds)
        for result, expected in zip(found, plain, strict=True):
            np.testing.assert_allclose(result, expected, **close)
            assert result.dtype == np.float32


@settings(max_examples=30)
@given(ROWS, st.integers(0, 2**16), DECAY)
def test_gae_is_the_discounted_sum_of_errors(ends, seed, decay):
    *rows, _ = steps_of(ends, seed)
    steps = Steps(*rows)
    advantage, _ = gae(steps, decay)
    errors, later = (steps.reward + steps.discount * steps.following - steps.value).tolist(), 0.0
    for row in reversed(range(len(ends))):
        later = errors[row] + (GAMMA * decay * later if steps.continues[row] else 0.0)
        assert advantage[row].item() == near(later, 5 * len(ends), 100.0)


def test_the_statistics_are_debiased_averages_of_the_batches():
    rng = np.random.default_rng(0)
    batches = [rng.normal(3 * i, 1 + i, 50 + i) for i in range(20)]
    normalizer = ValueNormalizer()
    for batch in batches:
        normalizer.update(batch)
    weights = 0.99 ** np.arange(19, -1, -1)
    mean = np.average([batch.mean() for batch in batches], weights=weights)
    square = np.average([(batch**2).mean() for batch in batches], weights=weights)
    deviation = np.sqrt(square - mean**2)
    values = np.linspace(-5, 90, 7, dtype=np.float32)
    expected = (values - mean) / deviation
    close = rounding(4, 90 + abs(mean))
    np.testing.assert_allclose(normalizer.normalized(values), expected, **close)
    np.testing.assert_allclose(normalizer.denormalized(normalizer.normalized(values)), values, **close)


def test_the_first_batch_counts_whole_and_equal_targets_stay_finite():
    normalizer = ValueNormalizer()
    targets = np.array([40.0, 60.0])
    assert np.array_equal(normalizer.normalized(targets), targets)
    normalizer.update(targets)
    assert normalizer.normalized(targets).tolist() == near([-1.0, 1.0], 4)
    normalizer.load_state_dict(ValueNormalizer().state_dict())
    assert np.array_equal(normalizer.normalized(targets), targets)
    normalizer = ValueNormalizer()
    normalizer.update(np.full(5, 7.0))
    assert normalizer.normalized(np.array([7.0, 8.0])).tolist() == near([0.0, 100.0], 4, 7 / 1e-2)
