"""Policy-space response oracles (Lanctot et al. 2017, arXiv:1711.00832): training runs as the oracles.

Each iteration is a run of self-play whose opponents are the earlier policies, as anchors with the mixture's shares. Its
checkpoint joins them, and games against all of them fill the table of payoffs.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...checks import absolute, check_whole, is_number
from ...notices import say, shown_with
from ..config import Config, EvaluationConfig, SelfPlayConfig
from ..doors import train
from ..evaluation import LoadedPolicy, evaluate, load_policy
from ..record import checkpoint_path, is_address, load_checkpoint, save_checkpoint
from ..request import Algorithms, Request
from ..run_input import RunInput
from ..several import folder_of, held
from .meta_solvers import MetaSolver, mixture_by, solver_of
from .result import PSROResult, add_policy, plot_result, read_result, write_result

_LEAST_SHARE = 1e-6  # of a policy that is played against; solvers leave rounding errors
_NEVER = 2**62  # updates
_MOST_COPIES = 64  # of the environment, in games between policies
_NORMAL_975 = 1.96  # its 0.975 quantile
_ZERO = 1e-6  # a return's rounding error


def psro(
    env_fn: Callable[[], Any] | str,
    algorithm: Algorithms,
    config: Config,
    *,
    iterations: int,
    meta_solver: str | MetaSolver = "nash",
    games: int = 1000,
    min_gain: float | None = 0.0,
    progress: bool = True,
    resume: str | Path | None = None,
) -> PSROResult:
    """Policy-space response oracles: a mixture of policies that is hard to exploit, in a zero-sum game of two agents.

    Each iteration trains a policy against the mixture of the earlier ones, plays it against each of them, and solves
    the table of payoffs for a new mixture. The first opponent is untrained. A policy plays both sides, in turn, and
    acts greedily once it is trained.

    Args:
        env_fn: makes an environment of two agents with equal spaces, whose returns sum to 0; as for `train`.
        algorithm: of each policy; as for `train`.
        config: the settings of each iteration's run, whose seed is `config.seed` plus its number. `run_dir` is the
            directory of all of them, by default runs/<date and time>-psro. `self_play` and `evaluation` must be
            the defaults.
        iterations: policies to train, at most; with `resume` those before included.
        meta_solver: "nash", by linear programming, `pip install "marlcore[games]"`; "replicator", the average of
            replicator dynamics; "uniform"; or a function from payoffs, float64 [policies, policies], to a mixture,
            [policies].
        games: between a new policy and each earlier one, half of them on each side.
        min_gain: ends when a new policy's mean return against the mixture is lower: it found no better response. None:
            after all iterations.
        progress: show each run's progress, and each iteration's result, on standard error.
        resume: the directory of a `psro` that ended or was killed, which continues after its last whole iteration.

    Raises: as `train`; ValueError also if a game's returns do not sum to 0. ModuleNotFoundError: Nash needs SciPy.
    """
    check_whole("iterations", iterations)
    check_whole("games", games, 2)
    if min_gain is not None and not is_number(min_gain):
        raise ValueError(f"min_gain: expected a number or None, got {min_gain!r}")
    solve = solver_of(meta_solver)
    mixture_by(solve, np.zeros((1, 1)))
    if not isinstance(config, Config):
        raise TypeError(f"config: expected a Config, got {config!r}")
    for name, default in (("self_play", SelfPlayConfig()), ("evaluation", EvaluationConfig())):
        if getattr(config, name) != default:
            raise ValueError(f"config.{name}: expected the default, since psro chooses all games, got other settings")
    folder = _folder(config.run_dir, resume)
    name = meta_solver if isinstance(meta_solver, str) else getattr(meta_solver, "__name__", "function")
    oracles = Oracles(folder, env_fn, algorithm, config, games, progress)
    with shown_with(progress), held(folder, "psro"):
        result = oracles.begun(resume is not None)
        result.mixture = mixture_by(solve, result.payoffs)  # perhaps by another solver than before
        write_result(result, name)
        while len(result.gains) < iterations and not _is_over(result, min_gain):
            add_policy(result, *oracles.respond(result.mixture))
            result.mixture = mixture_by(solve, result.payoffs)
            write_result(result, name)
            plot_result(result, name)
            gain, half = result.gains[-1]
            say(f"psro: policy {len(result.gains)} gains {gain:.3g} (± {half:.2g}) against the mixture before it")
        result.policies = [*map(oracles.policy, range(len(result.mixture)))]
    return result


def _is_over(result: PSROResult, min_gain: float | None) -> bool:
    return min_gain is not None and bool(result.gains) and result.gains[-1][0] < min_gain


@dataclass
class Oracles:
    """The runs of a `psro`, and the games between their policies. Policy 0 is the untrained one of the first run."""

    folder: Path
    env_fn: Callable[[], Any] | str
    algorithm: Algorithms
    config: Config
    games: int
    progress: bool

    def begun(self, resumed: bool) -> PSROResult:
        """What is known at the beginning. Raises ValueError, TypeError: the input is refused, or none can continue."""
        if not resumed and any(self.folder.iterdir()):
            raise ValueError(f"run_dir: expected a new or empty directory, got {str(self.folder)!r}, which holds files")
        run_input = RunInput.checked(Request(self.env_fn, self.algorithm, self._configured(1, {})))
        (policy,) = run_input.policies
        self._name, self._agents = policy.name, policy.agents
        if len(self._agents) != 2:
            raise ValueError(f"env_fn: expected a game of two agents, got {list(self._agents)}")
        if not resumed:
            return PSROResult(self.folder)
        try:
            return read_result(self.folder)
        except OSError as error:
            raise ValueError(f"resume: expected the directory of a psro, got {str(self.folder)!r} ({error})") from None

    def respond(self, mixture: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Trains a response to the mixture; its mean payoffs against each earlier policy, and their half widths."""
        number = len(mixture)
        anchors = {str(self._checkpoint(i)): float(share) for i, share in enumerate(mixture) if share > _LEAST_SHARE}
        run_dir = self._run_dir(number)
        shutil.rmtree(run_dir, ignore_errors=True)  # of a psro that was killed
        # The only member of the first run's pool is the untrained policy.
        config = self._configured(number, {} if number == 1 else anchors)
        train(self.env_fn, self.algorithm, config, progress=self.progress)
        state = load_checkpoint(checkpoint_path(run_dir, self._name))
        save_checkpoint(self._checkpoint(number), {name: state[name] for name in state.keys() - {"trainer"}})
        new = self.policy(number)
        played = [self._payoff(number, i, new, self.policy(i)) for i in range(number)]
        return np.array([mean for mean, _ in played]), np.array([half for _, half in played])

    def policy(self, number: int) -> LoadedPolicy:
        return load_policy(self._run_dir(max(number, 1)), self._name, self._which(number))

    def _payoff(self, number: int, other: int, new: LoadedPolicy, old: LoadedPolicy) -> tuple[float, float]:
        """The mean return of the new policy against the old one over both sides, and half its interval's width."""
        means, variances = [], []
        for side, agent in enumerate(self._agents):
            seed = int(np.random.SeedSequence([self.config.seed, number, other, side]).generate_state(1)[0])
            opponent = self._agents[1 - side]
            games, players = (self.games + side) // 2, {agent: new, opponent: old}
            copies = min(games, _MOST_COPIES)
            outcome = evaluate(
                self._run_dir(number), games, envs=copies, seed=seed, policies=players, env_fn=self.env_fn
            )
            sums = sum(outcome.returns.values())
            if not np.allclose(sums, 0.0, atol=_ZERO):
                raise ValueError(f"env_fn: expected a game whose returns sum to 0, got {np.ravel(sums)[0]:g}")
            means.append(outcome.mean[agent])
            variances.append(outcome.std[agent] ** 2 / games)  # NaN if all are copies of one game
        return sum(means) / 2, _NORMAL_975 * math.sqrt(sum(variances)) / 2

    def _configured(self, number: int, anchors: dict[str, float]) -> Config:
        """The settings of an iteration's run: its opponents are the anchors, or without any the untrained policy."""
        total = sum(anchors.values())
        shares = {name: share / total for name, share in anchors.items()}
        self_play = SelfPlayConfig(pool=1, admit_updates=_NEVER, latest=0.0, anchors=shares)
        seed, run_dir = self.config.seed + number, str(self._run_dir(number))
        return replace(self.config, run_dir=run_dir, seed=seed, self_play=self_play)

    def _run_dir(self, number: int) -> Path:
        return self.folder / f"iteration-{number}"

    def _checkpoint(self, number: int) -> Path:
        return checkpoint_path(self._run_dir(max(number, 1)), self._name, self._which(number))

    def _which(self, number: int) -> str:
        return f"policy-{number}" if number else "opponent-1"


def _folder(run_dir: str | None, resume: str | Path | None) -> Path:
    """The directory of all runs. Raises ValueError: it is on another machine, or `resume` is another one."""
    place = run_dir if resume is None else resume
    if is_address(place):
        raise ValueError(f"run_dir: expected a directory of this machine, got {str(place)!r}")
    folder = folder_of(place, "psro")
    if resume is not None and run_dir is not None and absolute(run_dir) != folder:
        raise ValueError(f"run_dir: expected None or that of the psro that continues, {str(resume)!r}, got {run_dir!r}")
    if resume is not None and not folder.is_dir():
        raise ValueError(f"resume: expected the directory of a psro, got {str(resume)!r}, which does not exist")
    return folder
