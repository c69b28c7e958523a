"""Meta-solvers find mixtures in games whose equilibria are known, and in random games."""

import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from refused import refused

from marlcore.meta import nash, replicator, uniform
from marlcore.meta.meta_solvers import mixture_by, solver_of

ROCK_PAPER_SCISSORS = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])
TWICE_FOR_ROCK = np.array([[0.0, -1, 2], [1, 0, -1], [-2, 1, 0]])  # rock beats scissors for 2
PAYOFF = st.floats(-10, 10, width=32)


def exploited(payoffs: np.ndarray, row: np.ndarray, column: np.ndarray) -> float:
    """Returns the sum of both players' gains by best responses."""
    return float((payoffs @ column).max() - (row @ payoffs).min())


def test_solvers_find_a_known_equilibrium() -> None:
    """Nash finds it exactly, and replicator dynamics nearly; each player's table has its own policies in rows."""
    np.testing.assert_allclose(nash(TWICE_FOR_ROCK), [1 / 4, 1 / 2, 1 / 4], atol=1e-9)
    np.testing.assert_allclose(replicator(TWICE_FOR_ROCK), [1 / 4, 1 / 2, 1 / 4], atol=0.02)
    assert abs(exploited(TWICE_FOR_ROCK, replicator(TWICE_FOR_ROCK), replicator(-TWICE_FOR_ROCK.T))) < 0.06


@settings(deadline=None, max_examples=30)
@given(st.tuples(st.integers(1, 8), st.integers(1, 8)).flatmap(partial(arrays, np.float64, elements=PAYOFF)))
def test_nobody_gains_against_a_nash_equilibrium(payoffs: np.ndarray) -> None:
    row, column = nash(payoffs), nash(-payoffs.T)
    assert row.min() >= 0 and abs(row.sum() - 1) < 1e-12
    assert abs(exploited(payoffs, row, column)) < 1e-6


def test_the_uniform_mixture_is_exploited() -> None:
    """The control: `exploited` finds a wrong solver."""
    mixture = uniform(TWICE_FOR_ROCK)
    assert exploited(TWICE_FOR_ROCK, mixture, mixture) == pytest.approx(2 / 3)


def test_a_function_is_a_solver_and_its_mixture_is_checked() -> None:
    assert mixture_by(solver_of(lambda payoffs: [0.0, 1.0, 0.0]), ROCK_PAPER_SCISSORS).tolist() == [0, 1, 0]
    expected = "meta_solver: expected a function that returns 3 probabilities that sum to 1, got "
    for wrong in ([0.5, 0.5], [1.0, 1.0, -1.0], [0.3, 0.3, 0.3], [np.nan, 0.5, 0.5]):
        with refused(ValueError, expected + str(wrong)):
            mixture_by(lambda payoffs, wrong=wrong: wrong, ROCK_PAPER_SCISSORS)
    with refused(ValueError, "meta_solver: expected a function or one of ['nash', 'replicator', 'uniform'], got 'nsh'"):
        solver_of("nsh")


def test_nash_without_scipy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with refused(ModuleNotFoundError, "meta_solver='nash' needs scipy: pip install \"marlcore[games]\""):
        nash(ROCK_PAPER_SCISSORS)
