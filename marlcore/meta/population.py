"""Populations: runs whose settings differ, that copy each other's checkpoints and change settings, or are left behind.

A member's run is resumed for each segment. Checkpoints are files that are replaced whole and never change, so a copy is
a link: of any size, and whole however fast its source saves.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
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
    Progress,
    SharedProgress,
    check_same_run,
    checkpoint_path,
    each_metric,
    fixed_settings,
    is_address,
    open_run,
    read_config,
    steps_taken,
)
from ..run import Launch, share_of
from .lineage import LOST, Lineage, explored, parent_of, plot_lineage
from .several import begin_several, deliver, held, make_runs

OWN = ("run_dir", "total_steps", "seed", "mode", "policies")  # which a population sets, or its members share
SHARED = ("stop", "self_play", "cluster", "evaluation")  # sections
ALGORITHM = "algorithm."
NOISY = ("spec", "beginning", "run")  # files of `run` that warn of the same in every segment of every member

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Member:
    """A member of a population in the end.

    Attributes:
        number: from 0 on, in the order of the first draws.
        run_dir: its run, which `load_policy` takes.
        steps: that it has taken.
        score: the newest; -inf if it diverged, NaN if none is known.
        settings: those that it had last, by dotted name.
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
    """The members of a population, the best first. Raises: see `train_population`."""
    check_type("population", population, PopulationConfig)
    check_type("config", config, Config, or_none=True)
    algorithm, config = _changeable(algorithm), config or Config()
    _check_shared(config)
    if resume is not None:
        if is_address(resume):
            raise ValueError(f"resume: expected a directory of this machine, got {str(resume)!r}")
        check_same_run(config.run_dir, resume)
        config = replace(config, run_dir=str(open_run(resume, CONTINUED)))
    folder = begin_several(config, population.parallel, "population")
    config = config.with_absolute_paths()
    with _warned_once():
        policies = _check_settings(env_fn, algorithm, replace(config, run_dir=None), population, progress)
        if population.method == "pbt" and population.interval >= config.total_steps:
            log.warning("interval: no member looks at others before its %d steps are over", config.total_steps)
        with held(folder, "population"):
            begin = Lineage.begun if resume is None else Lineage.read
            lineage = begin(folder, population, config.total_steps, config.seed)
            members = _Members(env_fn, algorithm, config, lineage, policies)
            members.resume()
            _work(members, config.mode, population, children, progress)
    deliver(children.interrupts, folder)
    return members.ranked()


def _work(members: _Members, mode: str, population: PopulationConfig, children: Children, progress: bool) -> None:
    lineage, waiting = members.lineage, members.waiting
    lineage.write()
    if not waiting:
        plot_lineage(lineage)  # a program that was killed may not have noted what it did last
        if all(own.done for own in lineage.kin):
            expected = "total_steps: expected more, since no member has steps left to take"
            raise ValueError(f"{expected}, got {lineage.total_steps}")
        raise ValueError("resume: expected a member that has not diverged, got none that others could copy")
    with ExitStack() as stack:
        total = population.size * lineage.total_steps  # at most
        table = SharedProgress(stack.enter_context(Progress()), total) if progress else None
        ended = make_runs(waiting, mode, population.parallel, children, lineage.folder, table)
        for label, result in stack.enter_context(closing(ended)):
            member, failed = int(label.rpartition(" ")[2]), False
            try:
                if result().steps < lineage.kin[member].target:  # Ctrl-C cut it
                    continue
            except WorkerFailed as error:
                if error.reason != "diverged":
                    raise
                log.warning("%s diverged with %s", label, lineage.kin[member].settings)
                failed = True
            members.settle(member, failed)
    plot_lineage(lineage)


@dataclass
class _Members:
    """The runs of a population's members; `waiting` holds those that may begin their next segment."""

    env_fn: Any
    algorithm: Algorithm
    config: Config
    lineage: Lineage
    policies: list[str]
    waiting: dict[str, Launch] = field(default_factory=dict)
    _aside: set[int] = field(default_factory=set)  # diverged, when there was no better one to copy

    def run_dir(self, member: int) -> Path:
        digits = len(str(len(self.lineage.kin) - 1))
        return self.lineage.folder / f"member-{member:0{digits}}"

    def resume(self) -> None:
        """Continues where the files say; a segment whose end was not noted ends now."""
        lineage, config = self.lineage, self.lineage.config
        for member, own in enumerate(lineage.kin):
            if own.done and own.target < lineage.total_steps and config.method != "halving" and own.score != LOST:
                lineage.advance(member, own.begin)
        for member, own in enumerate(lineage.kin):
            if own.done:
                continue
            if own.score == LOST and not self._exploit(member, None):
                self._aside.add(member)
            elif self._steps(member) >= own.target:
                self.settle(member)
            else:
                self._wait(member)

    def settle(self, member: int, failed: bool = False) -> None:
        """Scores a segment that has ended, and decides who begins another one."""
        lineage, own = self.lineage, self.lineage.kin[member]
        score = LOST if failed else _score(self.run_dir(member), own.begin, self.config.evaluation.evaluates)
        if not math.isnan(score):
            own.score = score
        steps, method = max(self._steps(member), own.begin), lineage.config.method
        going: list[int] = []
        if method == "pbt":
            self._aside.add(member)  # a score of this one may be the first to copy for the others
            going = [other for other in sorted(self._aside) if self._exploit(other, steps if other == member else None)]
            self._aside -= {*going}
        else:
            lineage.ended(member, steps, score, None)
            own.done = True
            going = lineage.promote() if method == "halving" else []
        lineage.write()
        for other in going:
            if not lineage.kin[other].done:
                self._wait(other)

    def _exploit(self, member: int, ended: int | None) -> bool:
        """Has a member copy a better one if it is among the worst; `ended`: the steps of a segment that ends now.

        Returns False: it diverged, and there is nobody to copy yet.
        """
        lineage, own = self.lineage, self.lineage.kin[member]
        generator, steps = lineage.generator_of(member), own.begin if ended is None else ended
        parent, score = None, own.score
        if steps < lineage.total_steps:
            parent = parent_of(member, lineage.scores, lineage.config.share, generator)
        if ended is not None:
            lineage.ended(member, steps, score, parent)
        elif parent is not None:
            lineage.copied_later(member, parent)
        if parent is not None:
            if (self.run_dir(member) / "config.json").exists():  # else it begins anew
                own.copied = len(lineage.rows)
                take_links(self.run_dir(parent), self.run_dir(member), self.policies, own.copied)
            own.settings = explored(lineage.config, lineage.kin[parent].settings, generator)
            own.score = math.nan  # until what it copied has been scored with its settings
        elif score == LOST:
            return False
        lineage.advance(member, steps)
        return True

    def _wait(self, member: int) -> None:
        """Makes the input of a member's next segment."""
        lineage, own, run_dir = self.lineage, self.lineage.kin[member], self.run_dir(member)
        begun = (run_dir / "config.json").exists()
        config, algorithm = _with(self.config, self.algorithm, own.settings)
        segment = sum(row["member"] == member for row in lineage.rows)
        seed = int(np.random.SeedSequence([config.seed, member, segment]).generate_state(1)[0])
        config = replace(config, run_dir=str(run_dir), total_steps=own.target, seed=seed)
        links = links_to_take(run_dir, self.policies, own.copied) if begun else None
        if not begun:  # what a program that was killed began to make
            shutil.rmtree(run_dir, ignore_errors=True)
        resume = run_dir if begun else None
        self.waiting[f"member {member}"] = Launch.checked(
            self.env_fn, algorithm, config, resume=resume, init_from=links or None, plots=False
        )

    def _steps(self, member: int) -> int:
        run_dir = self.run_dir(member)
        return steps_taken(run_dir) if (run_dir / "config.json").exists() else 0

    def ranked(self) -> list[Member]:
        kin = self.lineage.kin
        members = [
            Member(number, self.run_dir(number), self._steps(number), own.score, own.settings)
            for number, own in enumerate(kin)
        ]
        return sorted(members, key=lambda own: -np.nan_to_num(own.score, nan=LOST, neginf=LOST))


def _link_of(run_dir: Path, policy: str, copy: int) -> Path:
    return checkpoint_path(run_dir, policy, f"parent-{copy}")


def take_links(source: Path, run_dir: Path, policies: list[str], copy: int) -> None:
    """Links a run's last checkpoints into another one's directory, for a copy by number; removes earlier links."""
    for old in (run_dir / "checkpoints").glob("*.parent-*.pt"):
        old.unlink()
    for policy in policies:
        _link(checkpoint_path(source, policy), _link_of(run_dir, policy, copy))


def _link(source: Path, target: Path) -> None:
    """Links a file that may be replaced meanwhile. Raises FileNotFoundError: there is none."""
    while True:
        try:
            return os.link(source, target)
        except FileNotFoundError:  # also where it was replaced between its lookup and its link
            if not source.exists():
                raise


def links_to_take(run_dir: Path, policies: list[str], copy: int | None) -> dict[str, Path]:
    """The checkpoints that were linked for a copy and that the run has not taken yet, by policy; None: no copy."""
    if copy is None:
        return {}
    links = {policy: _link_of(run_dir, policy, copy) for policy in policies}
    taken = {policy: Path(path).name for policy, path in read_config(run_dir).get("init_from", {}).items()}
    return {policy: path for policy, path in links.items() if path.exists() and taken.get(policy) != path.name}


def _changeable(algorithm: Algorithm | str) -> Algorithm:
    if isinstance(algorithm, type):
        raise TypeError(f"algorithm: expected an Algorithm, such as marlcore.PPO(), got the class {algorithm.__name__}")
    if isinstance(algorithm, Mapping):
        raise TypeError(f"algorithm: expected one for all policies of a population, got {brief(algorithm)}")
    return make(algorithm) if isinstance(algorithm, str) else algorithm


def _check_shared(config: Config) -> None:
    """Raises ValueError: a setting has no meaning for members that are compared, or that run in segments."""
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
    """The settings and the algorithm with others, by dotted name. Raises ValueError, TypeError."""
    own = {name.removeprefix(ALGORITHM): value for name, value in settings.items() if name.startswith(ALGORITHM)}
    config = changed(config, {n: v for n, v in settings.items() if not n.startswith(ALGORITHM)})
    return config, changed(algorithm, own) if own else algorithm


def _check_settings(
    env_fn: Any, algorithm: Algorithm, config: Config, population: PopulationConfig, progress: bool
) -> list[str]:
    """The names of the policies. Raises ValueError: a setting does not exist, or may not have its values."""
    own: dict[str, Any] = vars(algorithm) if dataclasses.is_dataclass(algorithm) else {}
    known = {*hints_of(Config), *(f"{ALGORITHM}{name}" for name in own)}
    fixed = dict.fromkeys(OWN, "the population sets it, or all members share it")
    if population.method != "random":
        fixed |= fixed_settings(config.replay.save, config.replay.prioritized)
    for name in population.settings:
        if name in fixed or name.partition(".")[0] in SHARED:
            why = fixed.get(name, "all members share it")
            raise ValueError(f"settings: expected others than {name!r}: {why}")
        if name not in known:
            raise ValueError(f"settings: expected names of settings, got {name!r}{did_you_mean(name, known)}")
    policies, copies = Launch.checked(env_fn, algorithm, config, progress).spec.policies, population.method != "random"
    whole = _fingerprint(policies, config) if copies else None
    for name, distribution in population.settings.items():
        for value in distribution.ends:
            try:
                json.dumps(value)
            except TypeError:
                expected = f"settings: expected numbers, texts and tuples of Python for {name!r}"
                raise ValueError(f"{expected}, got {brief(value)} of type {type(value).__name__}") from None
            own_config, own_algorithm = _with(config, algorithm, {name: value})
            own_policies = Launch.checked(env_fn, own_algorithm, own_config, progress).spec.policies
            if copies:
                _check_interval(own_policies, population.interval)
            if copies and _fingerprint(own_policies, own_config) != whole:
                raise ValueError(
                    f"settings: expected ones with which a run can be resumed, got {name!r}, whose value {value!r} "
                    "changes its network or its saved replays"
                )
    return [policy.name for policy in policies]


def _check_interval(policies: tuple[AssignedPolicy, ...], interval: int) -> None:
    for policy in policies:
        if isinstance(policy.source, QueueSource):
            least = policy.source.batch_size * (policy.source.length or 1) / share_of(policy, policies)
            if interval < least:
                raise ValueError(
                    f"interval: expected at least {math.ceil(least)} steps, since {policy.name} learns from whole "
                    f"batches and none outlasts a look, got {interval}"
                )


def _fingerprint(policies: tuple[AssignedPolicy, ...], config: Config) -> Any:
    """What must not differ between the segments of a member, or of a member and its copy."""
    models = [build_model(policy, config).whole.state_dict() for policy in policies]
    shapes = [{name: tuple(tensor.shape) for name, tensor in model.items()} for model in models]
    limiters = [config.limiter(p.name, len(p.agents) * config.lanes) for p in policies] if config.replay.save else []
    return shapes, limiters


def _score(run_dir: Path, begin: int, evaluates: bool) -> float:
    """The mean over agents of the last evaluation, or of the last tenth of the episodes, after a step; NaN: none."""
    name = "eval_return" if evaluates else "episode_return"
    values: dict[str, list[float]] = {}
    for metric in each_metric(run_dir / "metrics.csv"):
        if metric.name == name and metric.step > begin:
            values.setdefault(metric.agent, []).append(metric.value)
    counted = [own[-1:] if evaluates else own[-max(1, len(own) // 10) :] for own in values.values()]
    return float(np.mean([np.mean(own) for own in counted])) if counted else math.nan


@contextmanager
def _warned_once() -> Iterator[None]:
    """Each warning of a run shows once, rather than in every segment of every member."""
    seen: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        known = str(record.msg) in seen
        seen.add(str(record.msg))
        return not known

    loggers = [logging.getLogger(f"marlcore.run.{name}") for name in NOISY]
    for logger in loggers:
        logger.addFilter(is_new)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_new)
