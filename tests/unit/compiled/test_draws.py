"""Draws of actions against their definition in plain NumPy."""

import numpy as np
import pytest
from gymnasium import spaces as gym
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import rounding

from marlcore.compiled import Categories, draws, explore
from marlcore.memory import ffi

NEVER = -np.inf  # the output of a value of probability 0
LAST = np.nextafter(1.0, 0.0)


def drawn(output, place, sizes=None, mask=None):
    """Draws by these places in place of those that a generator gives."""
    space, places = gym.MultiDiscrete(sizes or [output.shape[1]]), iter(np.ravel(place).tolist())
    given = ffi.callback("double(void *)", lambda state: next(places))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "uniform_of", lambda generator: ffi.new("struct mc_uniform *", {"next": given}))
        action, log_prob, _ = Categories(space).draw(output, mask, None)
    assert not [*places]
    return action, log_prob


def plain(output, place):
    """The value in whose share of the probabilities each place lies, and the logarithm of its probability."""
    shares = np.exp(output.astype(float) - output.max(1, keepdims=True))
    probability = shares / shares.sum(1, keepdims=True)
    action = np.array(
        [np.searchsorted(np.cumsum(p), at, side="right") for p, at in zip(probability, place, strict=True)]
    )
    return action, np.log(probability[np.arange(len(place)), action])


@settings(max_examples=100)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3), scale=st.sampled_from([0.1, 1.0, 30.0]),
    masked=st.booleans(), seed=st.integers(0, 2**16),
)  # fmt: skip
def test_draws_are_those_of_the_definition(sizes, scale, masked, seed):
    """Each part has an allowed value; or none has, and the row draws from all alike."""
    rng, values = np.random.default_rng(seed), sum(sizes)
    output, place = (scale * rng.normal(size=(20, values + 2))).astype(np.float32), rng.random((len(sizes), 20))
    mask = rng.random((20, values)) < 0.5
    mask[:, np.cumsum(sizes) - 1] = True
    mask[::7] = False
    seen = output[:, :values]
    if masked:
        seen = np.where(mask, seen, np.where(mask.any(1, keepdims=True), NEVER, 0.0))
    parts = np.split(seen, np.cumsum(sizes[:-1]), 1)
    actions, log_probs = zip(*map(plain, parts, place), strict=True)
    action, log_prob = drawn(output, place, sizes, mask if masked else None)
    np.testing.assert_array_equal(action, np.stack(actions, 1))
    np.testing.assert_allclose(log_prob, sum(log_probs), **rounding(3 * len(sizes), 150.0 * len(sizes)))


@pytest.mark.parametrize("place", [0.0, 0.5, LAST])
@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_a_value_of_probability_zero_is_never_drawn(place, allowed):
    output = np.full((1, 4), NEVER, np.float32)
    output[0, allowed] = 0.3
    action, log_prob = drawn(output, [place])
    assert action == allowed and log_prob == 0.0


def test_places_at_the_edges_draw_the_first_and_the_last_value():
    output = np.zeros((2, 3), np.float32)
    assert drawn(output, [0.0, LAST])[0].ravel().tolist() == [0, 2]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0, np.linspace(0, 1, 200)])
def test_rows_explore_by_their_epsilon_among_the_allowed(masked, epsilon):
    rng = np.random.default_rng(1)
    allowed = rng.random((200, 5)) < 0.5 if masked else np.ones((200, 5), np.bool_)
    explores, place = np.random.default_rng(0).random((2, 200))
    explores = explores < epsilon
    passed = allowed.cumsum(1)
    random = (passed > (place * passed[:, -1]).astype(np.int64)[:, None]).argmax(1)
    action = np.full(200, -1)
    count = explore(action, 5, allowed if masked else None, epsilon, np.random.default_rng(0))
    assert count == explores.sum()
    np.testing.assert_array_equal(action, np.where(explores, random, -1))


def test_epsilons_and_masks_of_other_sizes_are_refused():
    action, generator = np.zeros(4, np.int64), np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"^epsilon: expected a number or 4 numbers, got 3$"):
        explore(action, 2, None, np.zeros(3), generator)
    with pytest.raises(ValueError, match=r"^mask: expected shape \(4, 2\), got \(4, 3\)$"):
        explore(action, 2, np.ones((4, 3), np.bool_), 0.5, generator)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("epsilon", [None, 0.4, np.float64(0.4), np.nan, np.linspace(0, 1, 200)])
def test_a_choice_is_the_best_action_unless_its_row_explores(masked, epsilon):
    """It takes any number of rows, one after another, and leaves the generator where `explore` leaves it."""
    rng, choices = np.random.default_rng(1), draws.Choices(5)
    one, other = np.random.default_rng(0), np.random.default_rng(0)
    for rows in (0, 200, 7, 200):
        outputs, mask = rng.normal(size=(rows, 8)).astype(np.float32), rng.random((rows, 5)) < 0.5
        mask[:, 2] = True
        of_rows = epsilon[:rows] if isinstance(epsilon, np.ndarray) else epsilon
        allowed = mask if masked else None
        expected = np.where(mask | (not masked), outputs[:, :5], NEVER).argmax(1)
        if epsilon is not None:
            explore(expected, 5, allowed, of_rows, one)
        begun = ffi.new("struct mc_begun *")
        chosen = choices.choose(begun, draws.put_rows(outputs, begun), allowed, of_rows, other)
        np.testing.assert_array_equal(chosen, expected)
        assert one.bit_generator.state == other.bit_generator.state
