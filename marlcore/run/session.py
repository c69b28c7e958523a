"""A run from its creation to its end: shared memory, workers, the monitor; everything is removed at the end."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..checks import printable
from ..config import EVALUATOR, AssignedPolicy, Config, StopConfig, actor_names, crews, learner_names, node_names
from ..declared import changed
from ..evaluation import save_policies
from ..interfaces import QueueSource, ReplaySource
from ..loops import build_model
from ..processes import PID, SKIPS, STEPS, Children, Control, Telemetry
from ..record import (
    NO_COUNTS,
    CallbackSink,
    Hold,
    Monitor,
    Progress,
    RunDirectory,
    StopConditions,
    Table,
    changed_hyperparameters,
    check_resumed,
    describe,
    each_metric,
    environment_of,
    load_checkpoint,
    open_sinks,
    read_config,
    read_progress,
    save_checkpoint,
    taken_over,
)
from ..self_play import create_self_play, make_beside_anchors
from .async_run import RemoteWorkers, run_async, start_all, supervisor_of
from .run_input import RunInput, share_of
from .serial import run_serial
from .workers import Blueprint, PolicyBlueprint, create_storage, create_weights, deal_steps

if TYPE_CHECKING:
    from ..cluster.nodes import RayCluster, Uplink

log = logging.getLogger(__name__)


class Session:
    """A run's shared memory and processes, which a stack removes in the end; `children.interrupts` stops it.

    Several runs may share a fork server and a table of progress.
    """

    def __init__(self, stack: ExitStack, run_input: RunInput, children: Children, table: Table | None = None) -> None:
        env_fn, policies, config = run_input.env_fn, run_input.policies, run_input.config
        self.input = run_input
        sources = {policy: state["from"] for policy, state in run_input.initial.items()}
        self.described = describe(env_fn, policies, config) | {"init_from": sources}
        self.interrupts = interrupts = children.interrupts
        self._children = children
        conditions = StopConditions(config.stop)
        if run_input.resume is not None:
            check_resumed(run_input.resume, self.described, policies)  # first, so that a refused run stays unchanged
        self.directory = self._open_run(stack)
        self._cluster = stack.enter_context(self._connected()) if config.cluster.seats else None
        self._uplinks: dict[str, Uplink] = {}
        self._taken: dict[Path, dict[str, Any]] = {}  # of a resumed run that continues with another's weights
        if run_input.resume is not None and config.stop != StopConfig():
            conditions.check_unmet(each_metric(self.directory.path / "metrics.csv"))
        csv, path, callback = self.directory.csv, self.directory.path, run_input.callback
        make_callback = partial(CallbackSink, callback, interrupts) if callback is not None else None
        self.sinks = open_sinks(csv, path, config.metrics, make_callback)
        stack.callback(self.sinks.await_callback, lambda: interrupts.stopping)
        stack.callback(self.sinks.close)
        names = [policy.name for policy in policies]
        learners = learner_names(config, names)
        apart = learner_names(config, [name for name in names if name in config.cluster.learners])
        self._workers = [*actor_names(config), *(name for name in learners if name not in apart)]
        if config.evaluation.evaluates:
            self._workers.append(EVALUATOR)
        workers = [*self._workers, *node_names(config), *apart]
        self.telemetry = stack.enter_context(closing(Telemetry.create(workers)))
        self.control = stack.enter_context(closing(Control.create(workers, names, **self._about())))
        blueprints = tuple(self._blueprint_of(stack, policy) for policy in policies)
        self_play = create_self_play(stack, policies, config, self.directory.path)
        if run_input.resume is not None:  # last, when no check can fail any more
            if self._cluster is not None:
                self._cluster.sweep()
            self.described["init_from"] = read_config(self.directory.path).get("init_from", {}) | sources
            for checkpoint, state in self._taken.items():
                save_checkpoint(checkpoint, state)
            self.directory.replace_config(self.described)  # after what its `init_from` names was taken
            if not config.replay.save:  # they would be older than the next checkpoints
                for policy in policies:
                    self.directory.replay_path(policy.name).unlink(missing_ok=True)
        save_policies(self.directory.path, env_fn, policies, config)
        began = time.monotonic() - _restore_progress(self.directory, self.control, config, names)
        deal_steps(self.control, config, node_names(config))
        control, telemetry = self.control, self.telemetry
        handles = control.handle, telemetry.handle
        self.blueprint = Blueprint(env_fn, config, blueprints, *handles, began, crews(config)[0], self_play)
        if table is None and run_input.progress:
            table = stack.enter_context(Progress())
        self.monitor = Monitor(
            self.directory, self.sinks, control, telemetry, table, config.total_steps, began, interrupts, conditions
        )
        stack.callback(self.monitor.tick, last=True)

    def _connected(self) -> RayCluster:
        from ..cluster.nodes import RayCluster, try_learner  # here, so that a run on one machine needs none of it

        config, token = self.input.config, secrets.token_hex(8)
        self._holds = {name: Hold(self.directory.checkpoint_path(name), token, 0) for name in config.cluster.learners}
        trials = {}
        for name, hold in self._holds.items():
            hold.take()
            trials[name] = partial(try_learner, hold, config.learner_of(name).device, config.replay.path)
        anchors, make = [*config.self_play.anchors], self.input.env_fn
        if anchors:
            make = partial(make_beside_anchors, make, anchors)
        return RayCluster(config.cluster, make, self.described["env"], self.interrupts, trials)

    def _open_run(self, stack: ExitStack) -> RunDirectory:
        config, resume = self.input.config, self.input.resume
        if resume is None:
            return stack.enter_context(RunDirectory.create(config.run_dir, self.described, self.input.runs))
        run = stack.enter_context(RunDirectory.resume(resume))
        before, now = environment_of(read_config(resume)), environment_of(self.described)
        if before != now and "<" not in f"{before}{now}":  # else it is a local function's name or an object's
            log.warning("resume: the environment is %s", printable(f"{now} instead of {before}, with the same spaces"))
        for policy in self.input.policies:
            Hold(run.checkpoint_path(policy.name), "", 0).end()  # a learner that still lives elsewhere saves no more
            if not os.path.lexists(run.checkpoint_path(policy.name)) and policy.name not in self.input.initial:
                log.warning("resume: %s has no checkpoint yet, its learner starts from scratch", printable(policy.name))
        own = [policy for policy in self.input.policies if policy.name not in self.input.replays]
        replays = [policy.name for policy in own if isinstance(policy.source, ReplaySource)]
        if empty := [name for name in replays if not os.path.lexists(run.replay_path(name))]:
            why = "were not saved before the run ended" if config.replay.save else "were not saved (replay.save)"
            log.warning("resume: replays %s: empty at first for %s", why, printable(", ".join(empty)))
        return run

    def _about(self) -> dict[str, Any]:
        """The description of the run for its workers and `marlcore top`; a learner has one policy or, shared, none."""
        policies, config = self.input.policies, self.input.config
        of_policies = {}
        for policy in policies:
            batch = config.learner_of(policy.name).batch_size if isinstance(policy.source, ReplaySource) else 0
            of_policies[policy.name] = {"batch_size": batch, "share": share_of(policy, policies)}
        learners, shared = learner_names(config, [*of_policies]), config.learner.processes is not None
        return {
            "run_dir": str(self.directory.path.resolve()),
            "pid": os.getpid(),
            "total_steps": config.total_steps,
            "actors": [*actor_names(config), *node_names(config)],
            "nodes": node_names(config),
            "learners": {worker: "" if shared else policy for worker, (policy, *_) in learners.items()},
            "policies": of_policies,
            "telemetry": asdict(self.telemetry.handle),
        }

    def _blueprint_of(self, stack: ExitStack, policy: AssignedPolicy) -> PolicyBlueprint:
        """A policy's memory and weights, whose versions continue, since a saved replay's rows refer to them."""
        config, run = self.input.config, self.directory
        name, checkpoint, saved = policy.name, run.checkpoint_path(policy.name), run.replay_path(policy.name)
        model = build_model(policy, config)
        state, initial = load_checkpoint(checkpoint), self.input.initial.get(name)
        if initial is not None:
            left_out = model.initialise(initial, self.input.init_strict, name)
            if left_out:
                log.warning("init_from: %s starts without %s", printable(name), ", ".join(left_out))
            if self.input.resume is None:
                save_checkpoint(checkpoint, {**NO_COUNTS, **model.saved()})
            else:
                self._taken[checkpoint] = taken_over(state, initial) | model.saved()
        elif state:
            expected = f"resume: expected a checkpoint of {printable(name)}'s {type(policy.algorithm).__name__}"
            try:
                model.restore_checked(state, checkpoint, expected)
            except ValueError as error:
                changes = changed_hyperparameters(run.path, policy)
                if not changes:
                    raise
                old = {label: before for label, (before, _) in changes.items()}
                alone = {label: {other: old[other] for other in old if other != label} for label in old}
                unfit = [label for label in old if not _fits(state, policy, config, alone[label])] or old
                told = " and ".join(f"{label} {changes[label][1]!r} instead of {old[label]!r}" for label in unfit)
                raise ValueError(
                    f"resume: expected hyperparameters that fit {printable(name)}'s network, got {told}"
                ) from error
        store = stack.enter_context(create_weights(policy, config, model, state.get("version", 0)))
        if name in config.cluster.learners:
            from ..cluster.nodes import Uplink

            uplink = Uplink(stack, policy, config, crews(config)[0], store.description, config.cluster.seats, 1)
            store.close()  # its learner's machine has one
            self._uplinks[name] = uplink
            return uplink.blueprint(self._holds[name])
        return PolicyBlueprint(
            **vars(policy),
            checkpoint=checkpoint,
            transitions=self.input.replays.get(name) or create_storage(stack, policy, config, saved),
            weights=store.handle,
            queued=isinstance(policy.source, QueueSource),
            replay_was_saved=saved.exists(),
        )

    def work(self) -> None:
        """Works until all steps are taken, or a signal came. Raises: WorkerFailed: a worker failed for good."""
        config, interrupts = self.input.config, self.interrupts
        with ExitStack() as stack:
            children = stack.enter_context(closing(self._children))
            stack.callback(self.control.stop)
            supervisor = supervisor_of(self.blueprint, self.control, self._workers, self.directory.log_path, children)
            paced = None not in (config.updates_per_step, *config.ratios.values())
            fallback = config.supervision.serial_fallback and paced and not config.cluster.seats
            if config.mode == "async" and start_all(supervisor, interrupts, fallback):
                remote: RemoteWorkers | None = None
                if self._cluster is not None:
                    from ..cluster.nodes import Controller

                    about = self.blueprint, self.control, self.telemetry
                    remote = Controller(stack, self._cluster, *about, self._uplinks)
                run_async(supervisor, self.blueprint, self.control, self.monitor, interrupts, remote)
            else:
                children.close()  # some may have been started
                for notes in self.control.notes.values():
                    notes.store(PID, os.getpid())
                run_serial(self.blueprint, self.monitor, interrupts)


def _fits(state: Mapping[str, Any], policy: AssignedPolicy, config: Config, others: Mapping[str, Any]) -> bool:
    """Whether a checkpoint fits the policy's network if these hyperparameters are others."""
    try:
        algorithm: Any = changed(cast(Any, policy.algorithm), others)
        build_model(replace(policy, algorithm=algorithm), config).restore(state)
    except (ValueError, TypeError, KeyError, RuntimeError):
        return False
    return True


def _restore_progress(run: RunDirectory, control: Control, config: Config, policies: list[str]) -> float:
    """Sets the workers' counters to the run's saved progress; returns the seconds that the run had taken.

    Another number of workers that step, which are the actors or, without any, the learners, shares the steps equally.
    If the parent was killed, a learner's checkpoint may be newer: its steps count, so that schedules do not go back.
    """
    names = [*learner_names(config, policies)] if config.offline else [*actor_names(config), *node_names(config)]
    saved, kind = read_progress(run.path), ("learner-",) if config.offline else ("actor-", "node-")
    before = {name: int(count) for name, count in saved.get("steps", {}).items() if name.startswith(kind)}
    steps = {name: before[name] if before.keys() == {*names} else 0 for name in names}
    reached = max(int(load_checkpoint(run.checkpoint_path(name)).get("step", 0)) for name in policies)
    missing = max(reached, sum(before.values())) - sum(steps.values())
    for i, name in enumerate(names):
        control.workers[name].store(STEPS, steps[name] + missing // len(steps) + (i < missing % len(steps)))
    run.csv.resume_at(control.steps)
    if EVALUATOR in control.workers:
        control.workers[EVALUATOR].store(SKIPS, saved.get("skips", 0))
    return float(saved.get("time_s", 0.0))
