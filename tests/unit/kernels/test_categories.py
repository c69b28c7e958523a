"""Draws of categories against their definition in plain NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import rounding

from marlcore.kernels import policies

NEVER = -np.inf  # the output of a value of probability 0
LAST = np.nextafter(1.0, 0.0)


def drawn(output, place, first=0, end=None):
    action, log_prob = np.full(len(place), -1), np.full(len(place), 0.25, np.float32)
    policies.draw_category(output, first, output.shape[1] if end is None else end, np.asarray(place), action, log_prob)
    return action, log_prob - 0.25


ROUNDED = rounding(2)  # to float32, when the quarter is added and subtracted


def plain(output, place):
    """The value in whose share of the probabilities each place lies, and the logarithm of its probability."""
    shares = np.exp(output.astype(float) - output.max(1, keepdims=True))
    probability = shares / shares.sum(1, keepdims=True)
    action = np.array(
        [np.searchsorted(np.cumsum(p), at, side="right") for p, at in zip(probability, place, strict=True)]
    )
    return action, np.log(probability[np.arange(len(place)), action])


@settings(max_examples=100)
@given(values=st.integers(1, 6), scale=st.sampled_from([0.1, 1.0, 30.0]), seed=st.integers(0, 2**16))
def test_draws_are_those_of_the_definition(values, scale, seed):
    rng = np.random.default_rng(seed)
    output, place = (scale * rng.normal(size=(20, values))).astype(np.float32), rng.random(20)
    found, expected = drawn(output, place), plain(output, place)
    assert (found[0] == expected[0]).all()
    np.testing.assert_allclose(found[1], expected[1], **ROUNDED)


def test_a_part_of_the_outputs_counts_from_its_first():
    rng = np.random.default_rng(0)
    output, place = rng.normal(size=(50, 7)).astype(np.float32), rng.random(50)
    found, expected = drawn(output, place, 2, 5), plain(output[:, 2:5], place)
    assert (found[0] == expected[0]).all()
    np.testing.assert_allclose(found[1], expected[1], **ROUNDED)


@pytest.mark.parametrize("place", [0.0, 0.5, LAST])
@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_a_value_of_probability_zero_is_never_drawn(place, allowed):
    output = np.full((1, 4), NEVER, np.float32)
    output[0, allowed] = 0.3
    action, log_prob = drawn(output, [place])
    assert action == allowed and log_prob == 0.0


def test_places_at_the_edges_draw_the_first_and_the_last_value():
    output = np.zeros((2, 3), np.float32)
    assert drawn(output, [0.0, LAST])[0].tolist() == [0, 2]
