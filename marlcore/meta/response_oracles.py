"""Policy-space response oracles (Lanctot et al. 2017, arXiv:1711.00832), with training runs as the oracles.

With one population, each iteration is a self-play run whose opponents are drawn from the earlier policies by the
mixture. With two populations, each iteration has one run for each agent, against the other agent's mixture. The runs'
checkpoints join the populations, and games between policies fill the payoff table.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import brief, check_type, check_whole, is_number
from ..config import Config, EvaluationConfig, SelfPlayConfig
from ..envs import factory
from ..evaluation import LoadedPolicy, evaluate, load_policy, save_policies
from ..loops import PolicyModel, build_model
from ..notices import say, shown_with
from ..processes import Children, Interrupts
from ..record import UNPICKLED, checkpoint_path, holds_files, load_checkpoint, open_run, save_checkpoint
from ..run import Algorithms, Shared, assigned, children_of, policies_of, train
from ..self_play import POLICY
from .against import Against, Saved
from .meta_solvers import MetaSolver, mixture_by, solver_of
from .result import Population, PSROResult, add_policies, plot_result, read_into, write_result
from .several import folder_of, working_in

_LEAST_SHARE = 1e-6  # least share of an opponent in a run; solvers leave rounding errors
_NEVER = 2**62  # updates
_MOST_COPIES = 64  # of the environment, in games between policies
_NORMAL_975 = 1.96  # the normal distribution's 0.975 quantile
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
    """Finds mixtures of policies that are hard to exploit in a two-agent zero-sum game (policy-space response oracles).

    Each iteration trains a policy against the mixture of the earlier ones, plays it against each of them, and solves
    the table of payoffs for a new mixture. The first opponent is untrained. A policy acts greedily once it is trained.

    Agents with equal spaces share one population, whose policies play both sides in turn. There are two populations if
    the spaces differ, if `config.policies` gives each agent its own policy, or if `algorithm` is a dict by policy; each
    iteration then trains a policy for each agent.

    Args:
        env_fn: makes an environment of two agents, whose returns sum to 0; as for `train`.
        algorithm: the algorithm of each policy, as for `train`.
        config: the settings of each run; an iteration has one run for each population. Seeds follow from
            `config.seed`. `run_dir` is the directory of all runs, by default runs/<date and time>-psro.
            `self_play` and `evaluation` must be the defaults.
        iterations: the highest number of policies to train in each population; those before `resume` count, too.
        meta_solver: "nash", by linear programming, `pip install "marlcore[games]"`; "replicator", the average of
            replicator dynamics; "uniform"; or a function from a population's payoffs, float64 [own policies,
            opponent's policies], to the population's mixture, float64 [own policies].
        games: at least 4 games between a new policy and each opponent; with one population, half on each side.
        min_gain: psro ends early when every new policy gains less than this over the previous mixture, that is, when
            none is a better response. None: psro never ends early.
        progress: whether to show each run's progress, and each iteration's result, on standard error.
        resume: the directory of a `psro` that ended or was killed, to continue after its last complete iteration.

    Raises: as `train`; a KeyboardInterrupt ends all runs. ValueError also if a game's returns do not sum to 0.
        ModuleNotFoundError: "nash" needs SciPy, which is not installed.
    """
    check_whole("iterations", iterations)
    check_whole("games", games, 4)  # two on each side, for their spread
    if min_gain is not None and not is_number(min_gain):
        raise ValueError(f"min_gain: expected a number or None, got {brief(min_gain)}")
    check_type("config", config, Config)
    for name, default in (("self_play", SelfPlayConfig()), ("evaluation", EvaluationConfig())):
        if (section := getattr(config, name)) != default:
            raise ValueError(f"config.{name}: expected the default, since psro chooses all games, got {brief(section)}")
    solve = solver_of(meta_solver)
    mixture_by(solve, np.zeros((1, 1)))
    folder = folder_of("psro", config.run_dir, resume)
    if resume is not None:
        folder = open_run(folder, UNPICKLED)
    name = meta_solver if isinstance(meta_solver, str) else getattr(meta_solver, "__name__", "function")
    with children_of(config) as children, shown_with(progress), working_in(folder, "psro"):
        oracles = Oracles(folder, env_fn, algorithm, config, games, progress, children)
        result = oracles.checked(resume is not None)
        _mix(result, solve)  # a resumed psro may have another solver
        write_result(result, name)  # first, so that a psro can be resumed wherever it is killed
        _iterate(oracles, result, solve, name, iterations, min_gain)
        for place, population in enumerate(result.populations):
            population.policies = [oracles.policy(place, number) for number in range(len(population.mixture))]
    return result


def _iterate(
    oracles: Oracles, result: PSROResult, solve: MetaSolver, name: str, iterations: int, min_gain: float | None
) -> None:
    """Runs the remaining iterations; each adds policies to the result and writes it. `name` is the solver's name."""
    oracles.begin(result)
    while len(result.payoffs) <= iterations:
        gains = [population.gains[-1][0] for population in result.populations if population.gains]
        if min_gain is not None and gains and max(gains) < min_gain:
            say(f"psro: ends after {len(result.payoffs) - 1} of {iterations} iterations: no policy gained {min_gain:g}")
            return
        add_policies(result, *oracles.respond(result))
        _mix(result, solve)
        write_result(result, name)
        plot_result(result, name)
        for policy, population in zip(oracles.policies, result.populations, strict=True):
            number, (gain, half) = len(population.gains), population.gains[-1]
            spread = "all games alike" if math.isnan(half) else f"± {half:.2g}"
            say(f"psro: policy {number} of {policy.name} gains {gain:.3g} ({spread}) over the last mixture")


def _mix(result: PSROResult, solve: MetaSolver) -> None:
    for population, payoffs in zip(result.populations, (result.payoffs, -result.payoffs.T), strict=False):
        population.mixture = mixture_by(solve, payoffs)


@dataclass
class Oracles:
    """Makes the runs of a `psro`, and plays the games between their policies. Policy number 0 is untrained.

    In the methods, `place` is a population's index: 0 for the first agent's population, 1 or -1 for the second agent's.
    If both agents share one population, its index is 0 or -1.
    """

    folder: Path
    env_fn: Callable[[], Any] | str
    algorithm: Algorithms
    config: Config
    games: int
    progress: bool
    children: Children  # whose server forks the workers of all runs

    def checked(self, resumed: bool) -> PSROResult:
        """Checks the arguments; returns the result so far. Raises ValueError or TypeError if an argument is wrong."""
        if not resumed and holds_files(self.folder):
            raise ValueError(f"run_dir: expected a new or empty directory, got {str(self.folder)!r}, which holds files")
        spec = assigned(factory(self.env_fn), self.algorithm, self.config)
        self._make_env, policies, self._config = spec.env_fn, spec.policies, spec.config
        self._agents = tuple(agent for policy in policies for agent in policy.agents)
        if len(self._agents) != 2:
            raise ValueError(f"env_fn: expected a game of two agents, got {list(self._agents)}")
        by_policy = self.config.policies is not None or isinstance(self.algorithm, Mapping)
        if not by_policy and policies[0].spaces == policies[1].spaces:
            policies = (replace(policies[0], name=POLICY, agents=self._agents),)
        self.policies, self._shared = policies, len(policies) == 1
        if not self._shared:  # each population has its own runs
            self._config.check_policies([policy.name for policy in policies])
            for algorithm in (policy.algorithm for policy in policies):
                if any(getattr(algorithm, name, False) for name in ("wants_team", "wants_joint")):
                    expected = "algorithm: expected no team and no joint critic with two populations"
                    raise ValueError(f"{expected}, got {type(algorithm).__name__}")
        for place in range(len(policies)):
            policies_of(*self._run(place, 1, np.zeros(0)))
        result = PSROResult(run_dir=self.folder, opponent=None if self._shared else Population(place=1))
        if resumed:
            read_into(result)
        for policy, (path, model) in zip(policies, self._untrained(), strict=True) if len(result.payoffs) > 1 else ():
            model.restore_checked(load_checkpoint(path), path, f"resume: expected weights of {policy.name}'s network")
        return result

    def begin(self, result: PSROResult) -> None:
        """Saves the untrained policies and plays games between them, unless the result has an iteration already.

        Raises: ValueError: the game's returns do not sum to 0.
        """
        if len(result.payoffs) > 1:
            return
        for path, model in self._untrained():
            path.parent.mkdir(mode=0o755, exist_ok=True)
            save_checkpoint(path, {**model.saved(), "updates": 0, "step": 0})
        save_policies(self.folder, self._make_env, self.policies, self._config)
        payoff = self._payoff(0, 0)  # even with one population: raises if the game is not zero-sum
        if not self._shared:
            result.payoffs[:], result.half_widths[:] = payoff

    def _untrained(self) -> Iterator[tuple[Path, PolicyModel]]:
        for place, policy in enumerate(self.policies):
            _, _, config = self._run(place, 1, np.zeros(0))
            yield checkpoint_path(*self._saved(place, 0)), build_model(policy, config)

    def respond(self, result: PSROResult) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Trains responses to the mixtures; returns the tables of payoffs and half widths, responses included."""
        number = len(result.payoffs)
        shutil.rmtree(self._run_dir(number), ignore_errors=True)  # a killed psro may have left files
        for place, policy in enumerate(self.policies):
            self.children.interrupts = interrupts = Interrupts()  # signals also end the wait for a server
            arguments = self._run(place, number, result.populations[place - 1].mixture)
            shared = Shared(Children(interrupts=interrupts, server=self.children.server))
            run = train(*arguments, progress=self.progress, _shared=shared)
            state = load_checkpoint(checkpoint_path(run.run_dir, policy.name))
            to_act = {name: state[name] for name in state.keys() - {"trainer"}}
            save_checkpoint(checkpoint_path(*self._saved(place, number)), to_act)
        tables = np.zeros((2, number + 1, number + 1))
        tables[:, :-1, :-1] = result.payoffs, result.half_widths
        for other in range(number):
            mean, half = tables[:, -1, other] = self._payoff(number, other)
            tables[:, other, -1] = (0.0 - mean, half) if self._shared else self._payoff(other, number)
        if not self._shared:
            tables[:, -1, -1] = self._payoff(number, number)
        return tables[0], tables[1]

    def policy(self, place: int, number: int) -> LoadedPolicy:
        return load_policy(*self._saved(place, number))

    def _payoff(self, row: int, column: int) -> tuple[float, float]:
        """Returns policy `row`'s mean return against policy `column`, and half its 95 % confidence interval's width.

        With one population, the policies play on both sides.
        """
        means, variances = [], []
        policies, sides = (self.policy(0, row), self.policy(-1, column)), 2 if self._shared else 1
        for side in range(sides):
            agent, opponent = self._agents[side], self._agents[1 - side]
            seed = int(np.random.SeedSequence([self.config.seed, row, column, side]).generate_state(1)[0])
            games, players = (self.games + side) // sides, dict(zip((agent, opponent), policies, strict=True))
            copies = min(games, _MOST_COPIES)
            outcome = evaluate(self.folder, games, envs=copies, seed=seed, policies=players, env_fn=self.env_fn)
            sums = sum(outcome.returns.values())
            if not np.allclose(sums, 0.0, atol=_ZERO):
                raise ValueError(f"env_fn: expected a game whose returns sum to 0, got {np.ravel(sums)[0]:g}")
            means.append(outcome.mean[agent])
            variances.append(outcome.std[agent] ** 2 / games)  # NaN if all games were copies of one game
        return sum(means) / sides, _NORMAL_975 * math.sqrt(sum(variances)) / sides

    def _run(self, place: int, number: int, mixture: NDArray[np.float64]) -> tuple[Any, Algorithms, Config]:
        """Returns the arguments of `train` for response number `number` of population `place` against the mixture."""
        policy, run_dir = self.policies[place], self._run_dir(number)
        seed = int(np.random.SeedSequence([self.config.seed, number, place]).generate_state(1)[0])
        played = {self._saved(place - 1, i): share for i, share in enumerate(mixture.tolist()) if share > _LEAST_SHARE}
        total = sum(played.values())
        shares = {saved: share / total for saved, share in played.items()}
        if self._shared:
            anchors = {str(checkpoint_path(*saved)): share for saved, share in shares.items()}
            self_play = SelfPlayConfig(pool=1, admit_updates=_NEVER, latest=0.0, anchors=anchors)
            config = replace(self.config, run_dir=str(run_dir), seed=seed, self_play=self_play)
            return self.env_fn, self.algorithm, config
        its_dir = str(run_dir / checkpoint_path(run_dir, policy.name).stem)
        agent, learners = policy.agents[0], {policy.name: self._config.learner_of(policy.name)}
        names = {agent: policy.name}
        config = replace(self._config, run_dir=its_dir, seed=seed, policies=names, teams=None, learners=learners)
        return partial(Against, self._make_env, config.actor.envs, agent, shares), policy.algorithm, config

    def _run_dir(self, number: int) -> Path:
        return self.folder / f"iteration-{number}"

    def _saved(self, place: int, number: int) -> Saved:
        return self.folder, self.policies[place].name, f"policy-{number}"
