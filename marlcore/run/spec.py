"""A run as one value: which policies learn in which environment, with which settings; checked once, step by step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from ..checks import check_whole, printable
from ..config import SCRIPT, AssignedPolicy, Config, applied, applied_offline, learner_names
from ..envs import factory
from ..interfaces import OF_OUTCOMES, QueueSource, ReplaySource
from ..loops import ScriptedPlayer, choose_device, with_functions_of
from ..memory import SegmentHandle
from ..notices import say
from ..processes import check_picklable
from ..references import resolve
from ..replay import ReplayBuffer
from ..self_play import check_self_play
from ..spaces import Spaces
from .assignment import Algorithms, assigned
from .recorded import assigned_to_spaces, handles_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunSpec:
    """A checked run, which is pickled as it is to each worker.

    Attributes:
        env_fn: makes an environment as the policies observe it.
        policies: with the agents that act by them, and the sources of their batches.
        config: the settings that apply, with absolute paths.
        recorded: by policy, the replay of a run on recorded data.
    """

    env_fn: Callable[[], Any]
    policies: tuple[AssignedPolicy, ...]
    config: Config
    recorded: Mapping[str, SegmentHandle] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Those of the policies."""
        return [policy.name for policy in self.policies]

    @property
    def learners(self) -> dict[str, list[str]]:
        """The policies that each learner process trains, by its name."""
        return learner_names(self.config, self.names)


def acting_spec(env_fn: Callable[[], Any] | str, algorithm: Algorithms, config: Config) -> RunSpec:
    """A run whose actors play in the environment. Raises ValueError, TypeError."""
    if config.offline:
        raise ValueError("actor.processes: expected an integer of at least 1, got 0; see train_offline")
    spec = _with_devices(RunSpec(*assigned(factory(env_fn), algorithm, config)))
    if any(getattr(policy.algorithm, "imitates", False) for policy in spec.policies):
        raise ValueError("algorithm: expected one that learns from rewards; this one imitates: use train_offline")
    return _checked(spec)


def recorded_spec(
    replay: ReplayBuffer | Mapping[str, ReplayBuffer], updates: int,
    env_fn: Callable[[], Any] | str | Spaces, algorithm: Algorithms, config: Config,
) -> RunSpec:  # fmt: skip
    """A run that makes so many updates of each policy on recorded data. Raises ValueError, TypeError, NotEnoughData."""
    check_whole("updates", updates)
    config = applied_offline(config)
    if isinstance(env_fn, Spaces):
        made = assigned_to_spaces(env_fn, algorithm, config)
    else:
        made = assigned(factory(env_fn), algorithm, config)
    spec = RunSpec(*made)
    spec = _with_devices(replace(spec, config=replace(spec.config, total_steps=updates * len(spec.policies))))
    return _checked(replace(spec, recorded=handles_of(replay, spec.policies, spec.config)))


def _with_devices(spec: RunSpec) -> RunSpec:
    """The same. Raises ValueError: settings name another policy, or this machine lacks a learner's device."""
    for left_out in filter(None, dict.fromkeys(policy.spaces.left_out for policy in spec.policies)):
        reason = "since no network takes a text, which a wrapper may encode, or an empty array"
        say(f"observations: left out {', '.join(left_out)}, {reason}")
    spec.config.check_policies(spec.names)
    for name in spec.names:
        if name not in spec.config.cluster.learners:  # whose machine is asked
            choose_device(spec.config.learner_of(name).device)
    return spec


def _checked(spec: RunSpec) -> RunSpec:
    """The run with the settings that apply, after each check. Raises ValueError, TypeError."""
    spec = replace(spec, config=applied(spec.policies, spec.config))
    for check in (_check_goals, _check_scripts, _check_league, _check_pickles):
        check(spec)
    return spec


def _check_goals(spec: RunSpec) -> None:
    """Raises ValueError: a policy's replay relabels goals, but the environment has none or cannot judge them."""
    for policy in spec.policies:
        if isinstance(policy.source, ReplaySource) and (hindsight := policy.source.hindsight) is not None:
            with closing(spec.env_fn()) as env:
                with_functions_of(env, hindsight, policy.algorithm.transition(policy.spaces))


def _check_scripts(spec: RunSpec) -> None:
    """Raises ValueError, TypeError: it is no script, or rows of the policy hold what only its algorithm tells."""
    for policy in spec.policies:
        if (script := spec.config.of(policy.name).exploration.script) is None:
            continue
        ScriptedPlayer(SCRIPT, resolve(SCRIPT, script), policy.spaces, 1)
        if extras := policy.algorithm.transition(policy.spaces).extras.keys() - {*OF_OUTCOMES}:
            raise ValueError(
                f"{SCRIPT}: expected None, since rows of {type(policy.algorithm).__name__}, the algorithm of "
                f"{policy.name!r}, hold its {', '.join(sorted(extras))}, got {script!r}"
            )


def _check_league(spec: RunSpec) -> None:
    for policy in spec.policies if spec.config.self_play.pool else ():
        check_self_play(spec.config, policy)


def _check_pickles(spec: RunSpec) -> None:
    """Raises TypeError: a run could not save its settings, or its workers could not make the environment."""
    check_picklable(config=spec.config, algorithm=[policy.algorithm for policy in spec.policies])
    if spec.config.mode == "async":
        check_picklable(env_fn=spec.env_fn)


def share_of(policy: AssignedPolicy, policies: tuple[AssignedPolicy, ...]) -> float:
    """A policy's share of a run's steps, if every agent acts equally often."""
    return len(policy.agents) / sum(len(policy.agents) for policy in policies)


def warn_of_short_run(spec: RunSpec, taken: int) -> None:
    """Warns if a run ends before the warm-up of a replay, or before a queue's first batch.

    A run that is resumed on this machine has `taken` steps already, whose rows are lost.
    """
    left = spec.config.total_steps - taken
    steps_left = "steps that are left" if taken else "steps"
    for policy in spec.policies:
        steps, source = share_of(policy, spec.policies) * left, policy.source
        label, needed = "learner.warmup", spec.config.learner_of(policy.name).warmup + 1
        if isinstance(source, QueueSource):
            label, needed = "the algorithm's batch_size", source.batch_size * (source.length or 1)
        if 0 < steps < needed:
            log.warning(
                "%s: %s takes %s of the %d %s, and learns only with %d: it will learn nothing in them",
                label, printable(policy.name), f"{steps:.1f}".removesuffix(".0"), left, steps_left, needed,
            )  # fmt: skip


def warn_of_few_samples(spec: RunSpec, steps: int, updates: Mapping[str, int]) -> None:
    """Warns if a free run of `steps` steps drew each transition of a policy less than once on average."""
    for policy in spec.policies:
        inserted, learner = share_of(policy, spec.policies) * steps, spec.config.learner_of(policy.name)
        free = spec.config.of(policy.name).updates_per_step is None
        queued = isinstance(policy.source, QueueSource)  # which reads each transition once
        if queued or spec.recorded or not free or inserted <= learner.warmup:
            continue
        ratio = updates[policy.name] * learner.batch_size / inserted
        if ratio < 1.0:
            log.warning(
                "updates_per_step: %s trained on %.2g samples for each of its steps, since the run was free; "
                "a number, such as %g, holds the ratio",
                printable(policy.name), ratio, Config.updates_per_step,
            )  # fmt: skip
