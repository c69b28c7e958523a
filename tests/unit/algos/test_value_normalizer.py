"""The units of a critic, against plain NumPy."""

import numpy as np
import torch
from rounding import near, rounding

from marlcore.algos.value_normalizer import ValueNormalizer

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


def test_the_first_batch_counts_whole():
    normalizer = ValueNormalizer(CPU)
    targets = torch.tensor([40.0, 60.0])
    assert torch.equal(normalizer.normalized(targets), targets)
    normalizer.update(targets)
    assert normalizer.normalized(targets).tolist() == near([-1.0, 1.0], 4)


def test_equal_targets_stay_finite():
    normalizer = ValueNormalizer(CPU)
    normalizer.update(torch.full((5,), 7.0))
    assert normalizer.normalized(torch.tensor([7.0, 8.0])).tolist() == near([0.0, 100.0], 4, 7 / 1e-2)
