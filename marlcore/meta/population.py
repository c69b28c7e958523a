"""Populations of runs with different settings: members copy others' checkpoints and change settings, or end early.

A member's run is resumed for each segment. A checkpoint file never changes, it is only replaced. So a hard link is a
full copy at no cost, even while the source saves again.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..algos import make
from ..checks import brief, check_type, did_you_mean
from ..config import AssignedPolicy, Config, PopulationConfig, StopConfig
from ..declared import changed, hints_of
from ..errors import WorkerFailed
from ..interfaces import Algorithm, QueueSource
from ..loops import build_model
from ..processes import Children
from ..record import (
    CONTINUED,
    SharedProgress,
    checkpoint_path,
    each_metric,
    fixed_settings,
    open_run,
    read_config,
    steps_taken,
)
from ..run import Result, policies_of
from .lineage import LOST, Lineage, explored, parent_of, plot_lineage
from .several import Waiting, check_parallel, folder_of, make_runs, warned_once, working_in

OWN = ("run_dir", "total_steps", "seed", "mode", "policies")  # which a population sets, or its members share
SHARED = ("stop", "self_play", "cluster", "evaluation")  # sections
ALGORITHM = "algorithm."

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Member:
    """A member of a population that has ended.

    Attributes:
        number: the member's number, from 0, in the order of the first draws.
        run_dir: its run's directory, for `load_policy`.
        steps: the steps that it has taken.
        score: its newest score; -inf if it diverged, NaN if it has none.
        settings: its last settings, by dotted name.
    """

    number: int
    run_dir: Path
    steps: int
    score: float
    settings: dict[str, Any]


def work_population(
    env_fn: Callable[[], Any] | str, algorithm: Algorithm | str, config: Config | None, population: PopulationConfig,
    progress: bool, resume: str | Path | None, children: Children,
) -> list[Member]:  # fmt: skip
    """Trains a population, and returns its members, the best first. Raises: see `train_population`."""
    check_type("population", population, PopulationConfig)
    check_type("config", config, Config, or_none=True)
    algorithm, config = _changeable(algorithm), config or Config()
    _check_shared(config)
    check_parallel(population.parallel, config)
    folder = folder_of("population", config.run_dir, resume)
    if resume is not None:
        folder = open_run(folder, CONTINUED)
    config = config.with_absolute_paths()
    _check_names(algorithm, config, population)
    with warned_once(lambda record: record.msg):  # equal warnings of segments differ in their steps
        policies = _check_values(env_fn, algorithm, replace(config, run_dir=None), population, progress)
        if population.method == "pbt" and population.interval >= config.total_steps:
            log.warning("interval: no member looks at others before its %d steps are over", config.total_steps)
        with working_in(folder, "population"):
            begin = Lineage.begun if resume is None else Lineage.read
            lineage = begin(folder, population, config.total_steps, config.seed)
            runs = _Runs(env_fn, algorithm, config, lineage, policies)
            runs.resume()
            _work(runs, config.mode, population.parallel, children, progress)
    return runs.ranked()


def _work(runs: _Runs, mode: str, parallel: int, children: Children, progress: bool) -> None:
    lineage = runs.lineage
    lineage.write()
    if not runs.waiting:
        plot_lineage(lineage)  # a killed program may not have plotted its last results
        if all(member.done for member in lineage.members):
            expected = "total_steps: expected more, since no member has steps left to take"
            raise ValueError(f"{expected}, got {lineage.total_steps}")
        raise ValueError("resume: expected a member that has not diverged, got none that others could copy")
    table = SharedProgress(len(lineage.members) * lineage.total_steps) if progress else None  # an upper bound
    with closing(make_runs(runs.waiting, mode, parallel, children, table, plots=False)) as ended:
        try:
            for label, result in ended:
                runs.end(int(label.rpartition(" ")[2]), result)
        finally:
            plot_lineage(lineage)


@dataclass
class _Runs:
    """Manages the runs of a population's members; `waiting` holds the runs whose next segment may begin."""

    env_fn: Any
    algorithm: Algorithm
    config: Config
    lineage: Lineage
    policies: list[str]
    waiting: Waiting = field(default_factory=dict)

    def run_dir(self, number: int) -> Path:
        digits = len(str(len(self.lineage.members) - 1))
        return self.lineage.folder / f"member-{number:0{digits}}"

    def resume(self) -> None:
        """Continues a population from its files; first settles the segments whose end they do not record."""
        lineage, config = self.lineage, self.lineage.config
        for number, member in enumerate(lineage.members):
            more = member.target < lineage.total_steps and config.method != "halving"
            if member.done and more and member.score != LOST:
                lineage.advance(number, member.begin)
        for number, member in enumerate(lineage.members):
            if member.done or (member.score == LOST and not self._exploit(number, None)):
                continue
            if self._steps(number) >= member.target:
                self._settle(number)
            else:
                self._wait(number)

    def end(self, number: int, result: Callable[[], Result]) -> None:
        """Settles the segment of a run that has ended. Raises WorkerFailed: the run failed, but did not diverge."""
        member = self.lineage.members[number]
        try:
            if result().steps >= member.target:  # else Ctrl-C cut the segment short
                self._settle(number)
        except WorkerFailed as error:
            if error.reason != "diverged":
                raise
            log.warning("member %d diverged with %s", number, member.settings)
            self._settle(number, failed=True)

    def _settle(self, number: int, failed: bool = False) -> None:
        """Scores a segment that has ended, and decides which members begin another one."""
        lineage, member = self.lineage, self.lineage.members[number]
        score = LOST if failed else _score(self.run_dir(number), member.begin, self.config.evaluation.evaluates)
        if not math.isnan(score):
            member.score = score
        steps, method = max(self._steps(number), member.begin), lineage.config.method
        if method == "pbt":
            deciding = {number, *(i for i, other in enumerate(lineage.members) if other.score == LOST)}  # they waited
            beginning = [i for i in sorted(deciding) if self._exploit(i, steps if i == number else None)]
        else:
            lineage.ended(number, steps, score)
            member.done = True
            beginning = lineage.promote() if method == "halving" else []
        lineage.write()
        for i in beginning:
            if not lineage.members[i].done:
                self._wait(i)

    def _exploit(self, number: int, ended: int | None) -> bool:
        """Lets a member copy a better one if it is among the worst; `ended`: the steps of a segment that ends now.

        Returns False if the member diverged and no other member can be copied yet.
        """
        lineage, member = self.lineage, self.lineage.members[number]
        generator, steps = lineage.generator_of(number), member.begin if ended is None else ended
        parent, score = None, member.score
        if steps < lineage.total_steps:
            parent = parent_of(number, lineage.scores, lineage.config.share, generator)
        if ended is not None:
            lineage.ended(number, steps, score)
        if parent is not None:
            lineage.copied(number, parent)
            if self._has_begun(number):
                member.copied = len(lineage.rows)
                take_links(self.run_dir(parent), self.run_dir(number), self.policies, member.copied)
            member.settings = explored(lineage.config, lineage.members[parent].settings, generator)
            member.score = math.nan  # unknown until the copied weights are scored with the new settings
        elif score == LOST:
            return False
        lineage.advance(number, steps)
        return True

    def _wait(self, number: int) -> None:
        """Adds a member's next segment to `waiting`."""
        lineage, member, run_dir = self.lineage, self.lineage.members[number], self.run_dir(number)
        config, algorithm = _with(self.config, self.algorithm, member.settings)
        segment = sum(row["member"] == number for row in lineage.rows)
        seed = int(np.random.SeedSequence([config.seed, number, segment]).generate_state(1)[0])
        config = replace(config, run_dir=str(run_dir), total_steps=member.target, seed=seed)
        arguments = {"env_fn": self.env_fn, "algorithm": algorithm, "config": config}
        if self._has_begun(number):
            arguments |= {"resume": run_dir, "init_from": links_to_take(run_dir, self.policies, member.copied) or None}
        else:  # left by a killed program
            shutil.rmtree(run_dir, ignore_errors=True)
        self.waiting[f"member {number}"] = arguments

    def _has_begun(self, number: int) -> bool:
        return (self.run_dir(number) / "config.json").exists()

    def _steps(self, number: int) -> int:
        return steps_taken(self.run_dir(number)) if self._has_begun(number) else 0

    def ranked(self) -> list[Member]:
        members = [
            Member(number, self.run_dir(number), self._steps(number), member.score, member.settings)
            for number, member in enumerate(self.lineage.members)
        ]
        return sorted(members, key=lambda member: -np.nan_to_num(member.score, nan=LOST, neginf=LOST))


def _link_of(run_dir: Path, policy: str, copy: int) -> Path:
    return checkpoint_path(run_dir, policy, f"parent-{copy}")


def take_links(source: Path, run_dir: Path, policies: list[str], copy: int) -> None:
    """Hard-links a run's last checkpoints into another run's directory as copy number `copy`; removes older links."""
    for old in (run_dir / "checkpoints").glob("*.parent-*.pt"):
        old.unlink()
    for policy in policies:
        _link(checkpoint_path(source, policy), _link_of(run_dir, policy, copy))


def _link(source: Path, target: Path) -> None:
    """Hard-links a file that its writer may replace at any time. Raises FileNotFoundError: it does not exist."""
    while True:
        try:
            return os.link(source, target)
        except FileNotFoundError:  # the file may have been replaced between lookup and link
            if not source.exists():
                raise


def links_to_take(run_dir: Path, policies: list[str], copy: int | None) -> dict[str, Path]:
    """Returns, by policy, the links of a copy that the run has not started from yet; {} if `copy` is None."""
    if copy is None:
        return {}
    links = {policy: _link_of(run_dir, policy, copy) for policy in policies}
    used = {policy: Path(path).name for policy, path in read_config(run_dir).get("init_from", {}).items()}
    return {policy: path for policy, path in links.items() if path.exists() and used.get(policy) != path.name}


def _changeable(algorithm: Algorithm | str) -> Algorithm:
    if isinstance(algorithm, type):
        raise TypeError(f"algorithm: expected an Algorithm, such as marlcore.PPO(), got the class {algorithm.__name__}")
    if isinstance(algorithm, Mapping):
        raise TypeError(f"algorithm: expected one for all policies of a population, got {brief(algorithm)}")
    return make(algorithm) if isinstance(algorithm, str) else algorithm


def _check_shared(config: Config) -> None:
    """Checks the shared settings. Raises ValueError: a setting conflicts with comparing members or with segments."""
    if config.stop != StopConfig():
        raise ValueError(f"stop: expected the defaults in a population, got {config.stop}")
    if config.self_play.pool:
        raise ValueError(
            "self_play.pool: expected 0 in a population, whose members would be scored against opponents of their own, "
            f"got {config.self_play.pool}"
        )
    if config.cluster.seats:
        raise ValueError(f"cluster.address: expected None in a population, got {config.cluster.address!r}")


def _with(config: Config, algorithm: Any, settings: Mapping[str, Any]) -> tuple[Config, Algorithm]:
    """Replaces settings and hyperparameters by dotted name. Raises ValueError, TypeError."""
    chosen = {name: value for name, value in settings.items() if name.startswith(ALGORITHM)}
    config = changed(config, {name: value for name, value in settings.items() if name not in chosen})
    hyperparameters = {name.removeprefix(ALGORITHM): value for name, value in chosen.items()}
    return config, changed(algorithm, hyperparameters) if chosen else algorithm


def _check_names(algorithm: Algorithm, config: Config, population: PopulationConfig) -> None:
    """Checks settings' names. Raises ValueError: one does not exist, or a population may not vary it."""
    hyperparameters: dict[str, Any] = vars(algorithm) if dataclasses.is_dataclass(algorithm) else {}
    known = {*hints_of(Config), *(f"{ALGORITHM}{name}" for name in hyperparameters)}
    fixed = dict.fromkeys(OWN, "the population sets it, or all members share it")
    if population.method != "random":
        fixed |= fixed_settings(config.replay.save, config.replay.prioritized)
    for name in population.settings:
        if name in fixed or name.partition(".")[0] in SHARED:
            why = fixed.get(name, "all members share it")
            raise ValueError(f"settings: expected others than {name!r}: {why}")
        if name not in known:
            raise ValueError(f"settings: expected names of settings, got {name!r}{did_you_mean(name, known)}")


def _check_values(
    env_fn: Any, algorithm: Algorithm, config: Config, population: PopulationConfig, progress: bool
) -> list[str]:
    """Checks all settings' values; returns the policies' names. Raises ValueError: a value is not allowed."""
    policies, copies = policies_of(env_fn, algorithm, config, progress), population.method != "random"
    whole = _fingerprint(policies, config) if copies else None
    for name, distribution in population.settings.items():
        for value in distribution.ends:
            try:
                json.dumps(value)
            except TypeError:
                expected = f"settings: expected numbers, texts and tuples of Python for {name!r}"
                raise ValueError(f"{expected}, got {brief(value)} of type {type(value).__name__}") from None
            its_config, its_algorithm = _with(config, algorithm, {name: value})
            its_policies = policies_of(env_fn, its_algorithm, its_config, progress)
            if copies:
                _check_interval(its_policies, population.interval)
            if copies and _fingerprint(its_policies, its_config) != whole:
                raise ValueError(
                    f"settings: expected ones with which a run can be resumed, got {name!r}, whose value {value!r} "
                    "changes its network or its saved replays"
                )
    return [policy.name for policy in policies]


def _check_interval(policies: tuple[AssignedPolicy, ...], interval: int) -> None:
    agents = sum(len(policy.agents) for policy in policies)
    for policy in policies:
        if isinstance(policy.source, QueueSource):
            share = len(policy.agents) / agents  # of the run's steps
            least = policy.source.batch_size * (policy.source.length or 1) / share
            if interval < least:
                raise ValueError(
                    f"interval: expected at least {math.ceil(least)} steps, since {policy.name} learns from whole "
                    f"batches and none outlasts a look, got {interval}"
                )


def _fingerprint(policies: tuple[AssignedPolicy, ...], config: Config) -> Any:
    """Returns the properties that must be equal in all segments of a member and in a member that it copies."""
    models = [build_model(policy, config).whole.state_dict() for policy in policies]
    shapes = [{name: tuple(tensor.shape) for name, tensor in model.items()} for model in models]
    limiters = [config.limiter(p.name, len(p.agents) * config.lanes) for p in policies] if config.replay.save else []
    return shapes, limiters


def _score(run_dir: Path, begin: int, evaluates: bool) -> float:
    """Averages the agents' last evaluation, or last tenth of episodes, since step `begin`; NaN if there is none."""
    name = "eval_return" if evaluates else "episode_return"
    values: dict[str, list[float]] = {}
    for metric in each_metric(run_dir / "metrics.csv"):
        if metric.name == name and metric.step > begin:
            values.setdefault(metric.agent, []).append(metric.value)
    late = [of[-1:] if evaluates else of[-max(1, len(of) // 10) :] for of in values.values()]
    return float(np.mean([np.mean(of) for of in late])) if late else math.nan
