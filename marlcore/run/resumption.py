"""Prepares a run that begins at its first step, or one that continues where an earlier part of it ended."""

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
from ..processes import SKIPS, STEPS, UPDATES, Control
from ..record import (
    NO_COUNTS,
    Hold,
    RunDirectory,
    StopConditions,
    changed_hyperparameters,
    check_resumed,
    check_steps_left,
    describe,
    durable_note,
    each_metric,
    environment_of,
    load_checkpoint,
    read_config,
    read_progress,
    save_checkpoint,
    steps_taken,
    taken_over,
)
from .launch import Launch
from .machines import OneMachine
from .spec import no_environment

log = logging.getLogger(__name__)


class NewRun:
    """Prepares a run that begins with its first step; `described` is the content of its config.json."""

    directory: RunDirectory

    def __init__(self, launch: Launch) -> None:
        self._launch, self._spec, self._config = launch, launch.spec, launch.spec.config
        self._sources = {policy: state["from"] for policy, state in launch.initial.items()}
        self._first: dict[Path, dict[str, Any]] = {}  # checkpoints of policies that start with another run's weights
        self._states: dict[str, dict[str, Any]] = {}  # by policy, its checkpoint; empty in a new run
        described = describe(self._spec.env_fn, self._spec.policies, self._config)
        self.described = described | {"init_from": self._sources}
        self._begins_untrained = self._spec.begins_untrained

    def open(self, stack: ExitStack, conditions: StopConditions) -> RunDirectory:
        """Opens the run's directory until the stack closes.

        Raises ValueError if the directory cannot be used or, for a resumed run, if a checkpoint is damaged, no step is
        left, or a stop condition is met already.
        """
        directory = RunDirectory.create(self._config.run_dir, self.described, self._launch.runs)
        self.directory = stack.enter_context(directory)
        return self.directory

    def model_of(self, policy: AssignedPolicy) -> tuple[PolicyModel, int, bool]:
        """Returns a policy's model, the version of its weights in the checkpoint (or 0), and whether to publish them.

        They are published if actors begin before learners and all weights are finite. (Otherwise the learner reports
        that weights are infinite or NaN.)

        Raises ValueError if the checkpoint belongs to another network.
        """
        model, checkpoint = build_model(policy, self._config), self.directory.checkpoint_path(policy.name)
        state, publishes = self._states.pop(policy.name, {}), False
        if (initial := self._launch.initial.get(policy.name)) is not None:
            left_out = model.initialise(initial, self._launch.init_strict, policy.name)
            if left_out:
                log.warning("init_from: %s starts without %s", printable(policy.name), ", ".join(left_out))
            self._first[checkpoint] = self._counts(state, initial) | model.saved()
        elif state:  # from an earlier part of the run
            _restore(model, policy, self._config, state, checkpoint)
        if self._begins_untrained:
            publishes = all(bool(weights.isfinite().all()) for weights in model.parameters())
        if publishes and initial is None:  # so that a run whose learner never saved can be resumed
            self._first[checkpoint] = NO_COUNTS | model.saved()
        return model, state.get("version", 0), publishes

    def _counts(self, state: Mapping[str, Any], initial: Mapping[str, Any]) -> dict[str, Any]:
        return NO_COUNTS

    def commit(self, control: Control, machines: OneMachine) -> float:
        """Writes the run's first files, after all checks; returns the seconds that its earlier parts took."""
        for checkpoint, state in self._first.items():
            save_checkpoint(checkpoint, state)
        return 0.0


class ResumedRun(NewRun):
    """Prepares a run that continues from its last checkpoints. If it cannot, raises ValueError and changes no file."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch)
        assert launch.resume is not None
        check_resumed(launch.resume, self.described, self._spec.policies)
        self._resumed, self._begins_untrained = launch.resume, False  # its learners publish their last weights

    def open(self, stack: ExitStack, conditions: StopConditions) -> RunDirectory:
        self.directory = directory = stack.enter_context(RunDirectory.resume(self._resumed))
        old, new = environment_of(read_config(self._resumed)), environment_of(self.described)
        # "<" occurs in reprs, which differ in each process
        if old != new and "<" not in f"{old}{new}" and not new.endswith(f":{no_environment.__name__}"):
            log.warning("resume: the environment is %s", printable(f"{new} instead of {old}, with the same spaces"))
        if not (offline := self._config.offline):
            check_steps_left(directory.path, self._config.total_steps, steps_taken(directory.path))
        for name in self._spec.names:
            checkpoint = directory.checkpoint_path(name)
            Hold(checkpoint, "", 0).end()  # from now on, a learner still alive on another machine cannot save
            if not os.path.lexists(checkpoint) and name not in self._launch.initial:
                log.warning("resume: %s has no checkpoint yet, so its learner starts from scratch", printable(name))
        policies = [policy for policy in self._spec.policies if policy.name not in self._spec.recorded]
        replays = [policy.name for policy in policies if isinstance(policy.source, ReplaySource)]
        paths = {name: directory.replay_path(name) for name in replays}
        saved = {name for name, path in paths.items() if os.path.lexists(path) or durable_note(path).exists()}
        if empty := [name for name in replays if name not in saved]:
            why = "before the run ended" if self._config.replay.save else "(replay.save)"
            log.warning("resume: %s: the replay begins empty, as it was not saved %s", printable(", ".join(empty)), why)
        self._states = {name: load_checkpoint(directory.checkpoint_path(name)) for name in self._spec.names}
        self._progress = read_progress(directory.path)
        self._steps = self._steps_by_worker()
        steps = sum(self._steps.values())
        if offline:
            check_steps_left(directory.path, self._config.total_steps, steps)
        self._size = directory.csv.size_at(steps, keep_saved=not offline)
        if self._config.stop != StopConfig():
            conditions.check_unmet(each_metric(directory.path / "metrics.csv", self._size))
        return directory

    def _steps_by_worker(self) -> dict[str, int]:
        """Returns the steps so far of each worker that counts steps.

        The actors count them in the saved progress. If the set of actors has changed, they share the steps equally. A
        learner's checkpoint may be newer than the progress that a killed parent saved: the larger step count is used.
        Without actors, a step is an update, and updates after a checkpoint are lost.
        """
        config, states = self._config, self._states
        if config.offline:
            updates = {name: int(state.get("updates", 0)) for name, state in states.items()}
            return {worker: sum(updates[name] for name in names) for worker, names in self._spec.learners.items()}
        names, saved = [*actor_names(config), *node_names(config)], self._progress.get("steps", {})
        counts = {name: int(count) for name, count in saved.items() if name.startswith(("actor-", "node-"))}
        steps = {name: counts[name] if counts.keys() == {*names} else 0 for name in names}
        reached = max(int(state.get("step", 0)) for state in states.values())
        missing = max(reached, sum(counts.values())) - sum(steps.values())
        return {name: steps[name] + missing // len(names) + (i < missing % len(names)) for i, name in enumerate(names)}

    def _counts(self, state: Mapping[str, Any], initial: Mapping[str, Any]) -> dict[str, Any]:
        return taken_over(state, initial)

    def commit(self, control: Control, machines: OneMachine) -> float:
        machines.sweep()
        self.described["init_from"] = read_config(self.directory.path).get("init_from", {}) | self._sources
        super().commit(control, machines)
        self.directory.replace_config(self.described)  # after the weights that `init_from` names were saved
        if not self._config.replay.save:  # saved replays would be older than the next checkpoints
            for name in self._spec.names:
                self.directory.replay_path(name).unlink(missing_ok=True)
        for name, steps in self._steps.items():
            control.workers[name].store(STEPS, steps)
        self.directory.resume_at(self._size, self._progress | {"steps": self._steps})
        if EVALUATOR in control.workers:
            control.workers[EVALUATOR].store(SKIPS, self._progress.get("skips", 0))
            control.workers[EVALUATOR].store(UPDATES, self._progress.get("evaluated", 0))
        return float(self._progress.get("time_s", 0.0))


def _restore(
    model: PolicyModel, policy: AssignedPolicy, config: Config, state: Mapping[str, Any], checkpoint: Path
) -> None:
    """Loads a checkpoint into a model. Raises ValueError if it does not fit.

    The error names each changed hyperparameter that alone makes the checkpoint unfit, or else all changed ones.
    """
    policy_name, algorithm = printable(policy.name), type(policy.algorithm).__name__
    try:
        model.restore_checked(state, checkpoint, f"resume: expected a checkpoint of {policy_name}'s {algorithm}")
    except ValueError as error:
        changes = changed_hyperparameters(checkpoint.parents[1], policy)
        if not changes:
            raise
        old = {label: before for label, (before, _) in changes.items()}
        alone = {label: {other: old[other] for other in old if other != label} for label in old}
        unfit = [label for label in old if not _fits(state, policy, config, alone[label])] or old
        got = " and ".join(f"{label} {changes[label][1]!r} instead of {old[label]!r}" for label in unfit)
        raise ValueError(f"resume: expected hyperparameters that fit {policy_name}'s network, got {got}") from error


def _fits(state: Mapping[str, Any], policy: AssignedPolicy, config: Config, others: Mapping[str, Any]) -> bool:
    """Whether a checkpoint fits the policy's network with the hyperparameters `others` in place of its own."""
    try:
        algorithm: Any = changed(cast(Any, policy.algorithm), others)
        build_model(replace(policy, algorithm=algorithm), config).restore(state)
    except (ValueError, TypeError, KeyError, RuntimeError):
        return False
    return True
