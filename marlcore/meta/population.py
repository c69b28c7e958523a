"""Populations of runs with different settings: members copy others' checkpoints and change settings, or end early.

A member trains in segments; each segment resumes the member's run and takes further steps. A checkpoint file is never
changed, only replaced by a new file, so a hard link to it is a full copy at no cost, even while the source saves again.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import check_type
from ..config import Config, PopulationConfig
from ..errors import WorkerFailed
from ..interfaces import Algorithm
from ..processes import Children
from ..record import CONTINUED, SharedProgress, checkpoint_path, each_metric, open_run, read_config, steps_taken
from ..run import Result
from .lineage import LOST, Lineage, explored, parent_of, plot_lineage
from .settings import changeable, check_names, check_values, fit_together, with_settings
from .several import Waiting, check_parallel, folder_of, make_runs, warned_once, working_in

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Member:
    """A member of a population, after the training.

    Attributes:
        number: the member's number, from 0.
        run_dir: the directory of the member's run, for `load_policy`.
        steps: the number of steps that the member has taken.
        score: the newest score; -inf if the member diverged, NaN if it has no score.
        settings: the last settings, by dotted name.
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
    algorithm, config = changeable(algorithm), config or Config()
    check_names(algorithm, config, population)
    check_parallel(population.parallel, config)
    folder = folder_of("population", config.run_dir, resume)
    if resume is not None:
        folder = open_run(folder, CONTINUED)
    config = config.with_absolute_paths()
    with warned_once(lambda record: record.msg):  # warnings of segments may differ in their steps alone
        policies = check_values(env_fn, algorithm, replace(config, run_dir=None), population, progress)
        if population.method == "pbt" and population.interval >= config.total_steps:
            log.warning("interval: no member compares scores before its %d steps are over", config.total_steps)
        with working_in(folder, "population"):
            fit = partial(fit_together, env_fn, algorithm, replace(config, run_dir=None), population)
            known = folder, population, config.total_steps, config.seed
            lineage = Lineage.begun(*known, fit) if resume is None else Lineage.read(*known)
            runs = _Runs(env_fn, algorithm, config, lineage, policies, fit)
            runs.resume()
            _work(runs, config.mode, population.parallel, children, progress)
    return runs.ranked()


def _work(runs: _Runs, mode: str, parallel: int, children: Children, progress: bool) -> None:
    lineage = runs.lineage
    lineage.write()
    if not runs.waiting:
        plot_lineage(lineage)  # a killed program may not have plotted its last results
        if all(member.done for member in lineage.members):
            expected = "total_steps: expected a larger number, since no member has steps left to take"
            raise ValueError(f"{expected}, got {lineage.total_steps}")
        raise ValueError("resume: expected a member that has not diverged, for others to copy, got none")
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
    fit: Callable[[Mapping[str, Any]], bool]
    waiting: Waiting = field(default_factory=dict)

    def run_dir(self, number: int) -> Path:
        digits = len(str(len(self.lineage.members) - 1))
        return self.lineage.folder / f"member-{number:0{digits}}"

    def resume(self) -> None:
        """Continues a population from its files; settles segments that ended before the files could record it."""
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
        """Settles the segment of an ended run. Raises WorkerFailed if the run failed, unless it diverged."""
        member = self.lineage.members[number]
        try:
            if result().steps >= member.target:  # otherwise, Ctrl-C ended the segment early
                self._settle(number)
        except WorkerFailed as error:
            if error.reason != "diverged":
                raise
            log.warning("member %d diverged with %s", number, member.settings)
            self._settle(number, failed=True)

    def _settle(self, number: int, failed: bool = False) -> None:
        """Scores a segment that has ended, and decides which members begin another segment."""
        lineage, member = self.lineage, self.lineage.members[number]
        score = LOST if failed else _score(self.run_dir(number), member.begin, self.config.evaluation.evaluates)
        if not math.isnan(score):
            member.score = score
        steps, method = max(self._steps(number), member.begin), lineage.config.method
        if method == "pbt":  # members that diverged wait for a better member to copy
            deciding = {number, *(i for i, other in enumerate(lineage.members) if other.score == LOST)}
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
        """Makes a member copy a better one if it is among the worst; then sets its next step count.

        `ended` is the member's number of steps if its segment has just ended, otherwise None. Returns False if the
        member diverged and no better member exists yet.
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
            settings = explored(lineage.config, lineage.members[parent].settings, generator)
            member.settings = settings if self.fit(settings) else {**lineage.members[parent].settings}
            member.score = math.nan  # unknown until the copied weights are scored with the new settings
        elif score == LOST:
            return False
        lineage.advance(number, steps)
        return True

    def _wait(self, number: int) -> None:
        """Adds a member's next segment to `waiting`."""
        lineage, member, run_dir = self.lineage, self.lineage.members[number], self.run_dir(number)
        config, algorithm = with_settings(self.config, self.algorithm, member.settings)
        segment = sum(row["member"] == number for row in lineage.rows)
        seed = int(np.random.SeedSequence([config.seed, number, segment]).generate_state(1)[0])
        config = replace(config, run_dir=str(run_dir), total_steps=member.target, seed=seed)
        arguments = {"env_fn": self.env_fn, "algorithm": algorithm, "config": config}
        if self._has_begun(number):
            arguments |= {"resume": run_dir, "init_from": links_to_take(run_dir, self.policies, member.copied) or None}
        else:  # a killed program may have left files
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
    """Hard-links a file that its writer may replace at any time. Raises FileNotFoundError if there is no such file."""
    while True:
        try:
            return os.link(source, target)
        except FileNotFoundError:  # the writer may have replaced the file during the call
            if not source.exists():
                raise


def links_to_take(run_dir: Path, policies: list[str], copy: int | None) -> dict[str, Path]:
    """Returns, by policy, the links of copy number `copy` that the run has not loaded yet; {} if `copy` is None."""
    if copy is None:
        return {}
    links = {policy: _link_of(run_dir, policy, copy) for policy in policies}
    used = {policy: Path(path).name for policy, path in read_config(run_dir).get("init_from", {}).items()}
    return {policy: path for policy, path in links.items() if path.exists() and used.get(policy) != path.name}


def _score(run_dir: Path, begin: int, evaluates: bool) -> float:
    """Returns the mean over agents of the return since step `begin`; NaN if there is none.

    An agent's return is that of its last evaluation or, without evaluations, the mean of its last tenth of episodes.
    """
    name = "eval_return" if evaluates else "episode_return"
    values: dict[str, list[float]] = {}
    for metric in each_metric(run_dir / "metrics.csv"):
        if metric.name == name and metric.step > begin:
            values.setdefault(metric.agent, []).append(metric.value)
    last = [returns[-1:] if evaluates else returns[-max(1, len(returns) // 10) :] for returns in values.values()]
    return float(np.mean([*map(np.mean, last)])) if last else math.nan
