"""Meta-solvers: functions from a zero-sum game's payoff table to a mixture for its row player."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..checks import brief
from ..lazy import missing
from .best_response import is_distribution

MetaSolver: TypeAlias = Callable[[NDArray[np.float64]], NDArray[np.float64]]

_ROUNDS, _RATE = 5_000, 0.05  # of replicator dynamics; the rate in units of 1 / the largest difference of payoffs


def nash(payoffs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Finds the row player's Nash mixture, whose worst payoff is highest, by linear programming.

    Raises: ModuleNotFoundError: SciPy is not installed.
    """
    try:
        from scipy.optimize import linprog
    except ModuleNotFoundError as error:
        raise missing("meta_solver='nash'", error) from None
    rows, columns = payoffs.shape
    solved = linprog(
        np.append(np.zeros(rows), -1.0),  # the worst payoff, which is the last variable, is maximized
        A_ub=np.column_stack((-payoffs.T, np.ones(columns))),
        b_ub=np.zeros(columns),
        A_eq=np.append(np.ones(rows), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0.0, None)] * rows + [(None, None)],
    )
    if solved.x is None:
        raise ValueError(f"payoffs: expected a game with an equilibrium, got {solved.message}")
    return _normalized(solved.x[:rows])


def replicator(payoffs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the average of the row player's mixtures over 5,000 rounds of replicator dynamics of both players.

    In zero-sum games the mixtures cycle, and their average approaches an equilibrium.
    """
    spread = float(np.ptp(payoffs)) or 1.0
    row, column = (np.full(count, 1.0 / count) for count in payoffs.shape)
    total = np.zeros(len(row))
    for _ in range(_ROUNDS):
        total += row
        gain, loss = payoffs @ column, row @ payoffs
        row = _normalized(row * np.exp(_RATE / spread * (gain - gain.max())))
        column = _normalized(column * np.exp(_RATE / spread * (loss.min() - loss)))
    return total / _ROUNDS


def uniform(payoffs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gives all policies the same share, as in fictitious play."""
    return np.full(len(payoffs), 1.0 / len(payoffs))


META_SOLVERS: dict[str, MetaSolver] = {"nash": nash, "replicator": replicator, "uniform": uniform}


def solver_of(meta_solver: str | MetaSolver) -> MetaSolver:
    """Returns a meta-solver, given as a function or by name. Raises ValueError if no meta-solver has the name."""
    if callable(meta_solver):
        return meta_solver
    if meta_solver not in META_SOLVERS:
        raise ValueError(f"meta_solver: expected a function or one of {list(META_SOLVERS)}, got {brief(meta_solver)}")
    return META_SOLVERS[meta_solver]


def mixture_by(solve: MetaSolver, payoffs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the solver's mixture. Raises ValueError if the mixture is no distribution over the policies."""
    mixture = np.asarray(solve(payoffs.copy()), np.float64)
    if mixture.shape != (len(payoffs),) or not is_distribution(mixture):
        expected = f"meta_solver: expected a function that returns {len(payoffs)} probabilities that sum to 1"
        raise ValueError(f"{expected}, got {brief(mixture.tolist())}")
    return _normalized(mixture)


def _normalized(mixture: NDArray[np.float64]) -> NDArray[np.float64]:
    """Removes a solver's rounding errors: clips shares at 0, and scales their sum to 1."""
    positive: NDArray[np.float64] = np.maximum(mixture, 0.0)
    normalized: NDArray[np.float64] = positive / positive.sum()
    return normalized
