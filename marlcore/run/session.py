"""A run from start to end: its directory, monitor, shared memory and workers."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from ..config import BOTH, EVALUATOR, AssignedPolicy, actor_names, crews, node_names
from ..evaluation import save_policies
from ..interfaces import ReplaySource
from ..notices import say
from ..processes import PID, START_S, Children, Control, Supervisor, Telemetry
from ..record import CallbackSink, Monitor, Progress, StopConditions, Table, open_sinks
from ..self_play import create_self_play
from ..weights import ParameterStore
from .async_run import run_async, start_all, supervisor_of
from .launch import Launch
from .machines import Cluster, OneMachine
from .memory import Memory, create_weights, deal_steps, publish_untrained, rows_in
from .resumption import NewRun, ResumedRun
from .serial import run_serial
from .spec import share_of

if TYPE_CHECKING:
    from ..loops import PolicyModel

LOOK_S = 0.02


class Session:
    """Owns a run's shared memory and processes until the stack closes them; `children.interrupts` stops the run."""

    def __init__(self, stack: ExitStack, launch: Launch, children: Children, table: Table | None = None) -> None:
        self.launch, self.spec, self._children = launch, launch.spec, children
        self.interrupts, config = children.interrupts, launch.spec.config
        beginning = NewRun(launch) if launch.resume is None else ResumedRun(launch)
        self.described = beginning.described
        algorithms = ", ".join(dict.fromkeys(type(policy.algorithm).__name__ for policy in self.spec.policies))
        self.title = f"{self.described['env']}, {algorithms}, seed {config.seed}"
        agents = {agent for policy in self.spec.policies for agent in policy.agents}
        learning = {agent for agent in agents if config.self_play.side in (BOTH, agent)}
        conditions = StopConditions(config.stop, (learning, self.spec.names))
        self.directory = beginning.open(stack, conditions)
        here = stack, self.spec, self.directory
        cluster = partial(Cluster, *here, self.described["env"], self.interrupts)
        self._machines = cluster() if config.cluster.seats else OneMachine(*here)
        self._open_sinks(stack)
        learners = [name for name in self.spec.learners if name not in self._machines.learners]
        self._workers = [*actor_names(config), *learners, *([EVALUATOR] if config.evaluation.evaluates else [])]
        workers = [*self._workers, *node_names(config), *self._machines.learners]
        self.telemetry = stack.enter_context(closing(Telemetry.create(workers)))
        self.control = stack.enter_context(closing(Control.create(workers, self.spec.names, **self._about())))
        self.memory = self._memory(stack, beginning)
        deal_steps(self.control, config, node_names(config))
        if launch.resume is not None:
            rows = sum(map(rows_in, self.memory.transitions.values()))
            say(f"resume: continues at step {self.control.steps:,} of {config.total_steps:,} with {rows:,} rows")
        if table is None and launch.progress:
            table = stack.enter_context(Progress())
            table.say(f"{self.title}, in {self.directory.path}")
        self.monitor = Monitor(
            self.directory, self.sinks, self.control, self.telemetry, table, config.total_steps, self.memory.began,
            self.interrupts, conditions,
        )  # fmt: skip
        stack.callback(self.monitor.tick, last=True)

    def _open_sinks(self, stack: ExitStack) -> None:
        callback, interrupts = self.launch.callback, self.interrupts
        make_callback = partial(CallbackSink, callback, interrupts) if callback is not None else None
        self.sinks = open_sinks(self.directory.csv, self.directory.path, self.spec.config.metrics, make_callback)
        stack.callback(self.sinks.await_callback, lambda: interrupts.stopping)
        stack.callback(self.sinks.close)

    def _about(self) -> dict[str, Any]:
        """Describes the run for workers and `marlcore top`; learners that share processes have "" as their policy."""
        policies, config = self.spec.policies, self.spec.config
        of_policies = {}
        for policy in policies:
            source, batch = policy.source, 0  # 0 transitions: a queue has no replay ratio
            if isinstance(source, ReplaySource):
                batch = config.learner_of(policy.name).batch_size * (source.sequence.length if source.sequence else 1)
            of_policies[policy.name] = {"batch_size": batch, "share": share_of(policy, policies)}
        shared = config.learner.processes is not None
        return {
            "run_dir": str(self.directory.path.resolve()),
            "pid": os.getpid(),
            "total_steps": config.total_steps,
            "actors": [*actor_names(config), *node_names(config)],
            "nodes": node_names(config),
            "learners": {worker: "" if shared else policy for worker, (policy, *_) in self.spec.learners.items()},
            "policies": of_policies,
            "telemetry": asdict(self.telemetry.handle),
        }

    def _memory(self, stack: ExitStack, beginning: NewRun) -> Memory:
        """Makes this machine's segments. A resumed run keeps counting weight versions, since saved rows hold them."""
        spec, directory, transitions, weights, saved = self.spec, self.directory, {}, {}, {}
        for policy in spec.policies:
            model, version, publishes = beginning.model_of(policy)
            make_store = partial(self._store, stack, policy, model, version, publishes)
            transitions[policy.name], weights[policy.name] = self._machines.place(policy, make_store)
            saved[policy.name] = [*model.acting.state_dict()]
        league = create_self_play(stack, spec.policies, spec.config, directory.path)
        reloaded = {name for name in spec.names if directory.replay_path(name).exists()}
        seconds = beginning.commit(self.control, self._machines)
        save_policies(directory.path, spec.env_fn, spec.policies, spec.config)
        return Memory(
            crew=crews(spec.config)[0],
            run_dir=directory.path,
            began=time.monotonic() - seconds,
            control=self.control.handle,
            telemetry=self.telemetry.handle,
            transitions=transitions,
            weights=weights,
            saved=saved,
            league=league,
            reloaded=reloaded,
            holds=self._machines.holds,
        )

    def _store(
        self, stack: ExitStack, policy: AssignedPolicy, model: PolicyModel, version: int, publishes: bool, newest: int
    ) -> ParameterStore:  # fmt: skip
        """Makes a policy's store. Its versions exceed `version` (the checkpoint's) and `newest` (the saved rows')."""
        config = self.spec.config
        store = stack.enter_context(create_weights(policy, config, model, max(version, newest)))
        if publishes:
            publish_untrained(store, policy, config, model)
        return store

    def work(self) -> None:
        """Runs the workers until all steps are taken or a signal comes. Raises WorkerFailed if one failed for good."""
        config, interrupts, run = self.spec.config, self.interrupts, (self.spec, self.memory)
        with ExitStack() as stack:
            children = stack.enter_context(closing(self._children))
            stack.callback(self.control.stop)
            supervisor = supervisor_of(*run, self.control, self._workers, self.directory.log_path, children)
            paced = None not in (config.updates_per_step, *config.ratios.values())
            fallback = config.supervision.serial_fallback and paced and not config.cluster.seats
            if config.mode == "async" and self._start(supervisor, fallback):
                remote = self._machines.begin(stack, self.memory, self.control, self.telemetry)
                run_async(supervisor, *run, self.control, self.monitor, interrupts, remote)
            else:
                children.close()  # some workers may have started
                for notes in self.control.notes.values():
                    notes.store(PID, os.getpid())
                run_serial(*run, self.monitor, interrupts)

    def _start(self, supervisor: Supervisor, fallback: bool) -> bool:
        """Starts the workers as `start_all` does: first those that need no torch, then the others.

        Between the two, waits until the fork server has imported torch, and empties telemetry, which holds few metrics.
        """
        early = [name for name in self._workers if self.spec.acts_compiled and name not in self.spec.learners]
        if not start_all(supervisor, early, self.interrupts, fallback):
            return False
        for _ in range(round(START_S / LOOK_S) if early else 0):
            if self._children.server.ready or self.interrupts.stopping:
                break
            time.sleep(LOOK_S)
            self.monitor.tick()
        return start_all(supervisor, [name for name in self._workers if name not in early], self.interrupts, fallback)
