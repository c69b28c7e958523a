"""Where a run begins: at its first step, or where an earlier part of it ended."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ..checks import printable
from ..config import EVALUATOR, AssignedPolicy, Config, StopConfig, actor_names, node_names
from ..declared import changed
from ..interfaces import ReplaySource
from ..loops import PolicyModel, build_model
from ..processes import SKIPS, STEPS, Control
from ..record import (
    NO_COUNTS,
    Hold,
    RunDirectory,
    StopConditions,
    changed_hyperparameters,
    check_resumed,
    describe,
    each_metric,
    environment_of,
    load_checkpoint,
    read_config,
    read_progress,
    save_checkpoint,
    taken_over,
)
from .launch import Launch
from .machines import OneMachine

log = logging.getLogger(__name__)


class NewRun:
    """A run that begins with its first step; `described` is what its config.json says."""

    directory: RunDirectory

    def __init__(self, launch: Launch) -> None:
        self._launch, self._spec, self._config = launch, launch.spec, launch.spec.config
        self._sources = {policy: state["from"] for policy, state in launch.initial.items()}
        described = describe(self._spec.env_fn, self._spec.policies, self._config)
        self.described = described | {"init_from": self._sources}

    def open(self, stack: ExitStack) -> RunDirectory:
        """Opens the run's directory, which `stack` closes. Raises ValueError."""
        directory = RunDirectory.create(self._config.run_dir, self.described, self._launch.runs)
        self.directory = stack.enter_context(directory)
        return self.directory

    def check(self, conditions: StopConditions) -> None:
        """Raises ValueError: the run has already met a condition to stop."""

    def model_of(self, policy: AssignedPolicy) -> tuple[PolicyModel, int]:
        """A policy's model, and the version of the last weights before this part of the run.

        Raises ValueError: a checkpoint is damaged, or of another network.
        """
        model, initial = build_model(policy, self._config), self._launch.initial.get(policy.name)
        if initial is not None:
            self._initialise(model, policy, initial)
            save_checkpoint(self.directory.checkpoint_path(policy.name), {**NO_COUNTS, **model.saved()})
        return model, 0

    def _initialise(self, model: PolicyModel, policy: AssignedPolicy, initial: Mapping[str, Any]) -> None:
        left_out = model.initialise(initial, self._launch.init_strict, policy.name)
        if left_out:
            log.warning("init_from: %s starts without %s", printable(policy.name), ", ".join(left_out))

    def commit(self, control: Control, machines: OneMachine) -> float:
        """When no check can fail any more: takes over what was saved. Returns the seconds that the run had taken."""
        return 0.0


class ResumedRun(NewRun):
    """A run that continues from its last checkpoints. Raises ValueError: it cannot, and stays unchanged."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch)
        assert launch.resume is not None
        check_resumed(launch.resume, self.described, self._spec.policies)
        self._resumed = launch.resume
        self._taken: dict[Path, dict[str, Any]] = {}  # checkpoints with another run's weights

    def open(self, stack: ExitStack) -> RunDirectory:
        self.directory = directory = stack.enter_context(RunDirectory.resume(self._resumed))
        before, now = environment_of(read_config(self._resumed)), environment_of(self.described)
        if before != now and "<" not in f"{before}{now}":  # else it is a local function's name or an object's
            log.warning("resume: the environment is %s", printable(f"{now} instead of {before}, with the same spaces"))
        for name in self._spec.names:
            checkpoint = directory.checkpoint_path(name)
            Hold(checkpoint, "", 0).end()  # a learner that still lives elsewhere saves no more
            if not os.path.lexists(checkpoint) and name not in self._launch.initial:
                log.warning("resume: %s has no checkpoint yet, its learner starts from scratch", printable(name))
        policies = [policy for policy in self._spec.policies if policy.name not in self._spec.recorded]
        replays = [policy.name for policy in policies if isinstance(policy.source, ReplaySource)]
        if empty := [name for name in replays if not os.path.lexists(directory.replay_path(name))]:
            why = "before the run ended" if self._config.replay.save else "(replay.save)"
            log.warning("resume: replays were not saved %s: empty at first for %s", why, printable(", ".join(empty)))
        return directory

    def check(self, conditions: StopConditions) -> None:
        if self._config.stop != StopConfig():
            conditions.check_unmet(each_metric(self.directory.path / "metrics.csv"))

    def model_of(self, policy: AssignedPolicy) -> tuple[PolicyModel, int]:
        checkpoint = self.directory.checkpoint_path(policy.name)
        model, initial = build_model(policy, self._config), self._launch.initial.get(policy.name)
        state = load_checkpoint(checkpoint)
        if initial is not None:
            self._initialise(model, policy, initial)
            self._taken[checkpoint] = taken_over(state, initial) | model.saved()
        elif state:
            expected = f"resume: expected a checkpoint of {printable(policy.name)}'s {type(policy.algorithm).__name__}"
            try:
                model.restore_checked(state, checkpoint, expected)
            except ValueError as error:
                if unfit := self._unfit_hyperparameters(policy, state):
                    expected = f"resume: expected hyperparameters that fit {printable(policy.name)}'s network"
                    raise ValueError(f"{expected}, got {unfit}") from error
                raise
        return model, state.get("version", 0)

    def _unfit_hyperparameters(self, policy: AssignedPolicy, state: Mapping[str, Any]) -> str:
        """Those that changed and do not fit a checkpoint's network: each that alone does not or, without any, all."""
        changes = changed_hyperparameters(self.directory.path, policy)
        old = {name: before for name, (before, _) in changes.items()}
        others = {name: {other: old[other] for other in old if other != name} for name in old}
        unfit = [name for name in old if not _fits(state, policy, self._config, others[name])] or old
        return " and ".join(f"{name} {changes[name][1]!r} instead of {old[name]!r}" for name in unfit)

    def commit(self, control: Control, machines: OneMachine) -> float:
        machines.sweep()
        self.described["init_from"] = read_config(self.directory.path).get("init_from", {}) | self._sources
        for checkpoint, state in self._taken.items():
            save_checkpoint(checkpoint, state)
        self.directory.replace_config(self.described)  # after what its `init_from` names was taken
        if not self._config.replay.save:  # they would be older than the next checkpoints
            for name in self._spec.names:
                self.directory.replay_path(name).unlink(missing_ok=True)
        return self._restore_progress(control)

    def _restore_progress(self, control: Control) -> float:
        """Sets the workers' counters to the run's saved progress; returns the seconds that the run had taken.

        Another number of workers that step, which are the actors or, without any, the learners, shares the steps
        equally. If the parent was killed, a learner's checkpoint may be newer: its steps count, so that schedules do
        not go back.
        """
        directory, config, spec = self.directory, self._config, self._spec
        names = [*spec.learners] if config.offline else [*actor_names(config), *node_names(config)]
        saved, kind = read_progress(directory.path), ("learner-",) if config.offline else ("actor-", "node-")
        before = {name: int(count) for name, count in saved.get("steps", {}).items() if name.startswith(kind)}
        steps = {name: before[name] if before.keys() == {*names} else 0 for name in names}
        checkpoints = map(directory.checkpoint_path, spec.names)
        reached = max(int(load_checkpoint(checkpoint).get("step", 0)) for checkpoint in checkpoints)
        missing = max(reached, sum(before.values())) - sum(steps.values())
        for i, name in enumerate(names):
            control.workers[name].store(STEPS, steps[name] + missing // len(steps) + (i < missing % len(steps)))
        directory.csv.resume_at(control.steps)
        if EVALUATOR in control.workers:
            control.workers[EVALUATOR].store(SKIPS, saved.get("skips", 0))
        return float(saved.get("time_s", 0.0))


def _fits(state: Mapping[str, Any], policy: AssignedPolicy, config: Config, others: Mapping[str, Any]) -> bool:
    """Whether a checkpoint fits the policy's network if these hyperparameters are others."""
    try:
        algorithm: Any = changed(cast(Any, policy.algorithm), others)
        build_model(replace(policy, algorithm=algorithm), config).restore(state)
    except (ValueError, TypeError, KeyError, RuntimeError):
        return False
    return True
