"""Checks the settings that vary in a population, and applies them to a configuration and an algorithm."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from ..algos import make
from ..checks import brief, did_you_mean
from ..config import AssignedPolicy, Config, PopulationConfig, StopConfig
from ..declared import changed, hints_of
from ..interfaces import Algorithm, QueueSource
from ..loops import build_model
from ..record import fixed_settings
from ..run import policies_of

OWN = ("run_dir", "total_steps", "seed", "mode", "policies")  # set by the population, or shared by its members
SHARED = ("stop", "self_play", "cluster", "evaluation")  # sections
ALGORITHM = "algorithm."


def changeable(algorithm: Algorithm | str) -> Algorithm:
    """Returns a population's algorithm, given as an instance or by name. Raises TypeError for a class or a mapping."""
    if isinstance(algorithm, type):
        raise TypeError(f"algorithm: expected an Algorithm, such as marlcore.PPO(), got the class {algorithm.__name__}")
    if isinstance(algorithm, Mapping):
        raise TypeError(f"algorithm: expected one algorithm for all policies of a population, got {brief(algorithm)}")
    return make(algorithm) if isinstance(algorithm, str) else algorithm


def with_settings(config: Config, algorithm: Any, settings: Mapping[str, Any]) -> tuple[Config, Algorithm]:
    """Applies settings, by dotted name, to a config and an algorithm. Raises ValueError or TypeError for wrong ones."""
    chosen = {name: value for name, value in settings.items() if name.startswith(ALGORITHM)}
    config = changed(config, {name: value for name, value in settings.items() if name not in chosen})
    hyperparameters = {name.removeprefix(ALGORITHM): value for name, value in chosen.items()}
    return config, changed(algorithm, hyperparameters) if chosen else algorithm


def fit_together(
    env_fn: Any, algorithm: Algorithm, config: Config, population: PopulationConfig, settings: Mapping[str, Any]
) -> bool:
    """Whether settings that are each allowed are allowed together, such as sizes of which one bounds the other."""
    try:
        _checked(env_fn, algorithm, config, population, settings)
    except ValueError:
        return False
    return True


def _checked(
    env_fn: Any, algorithm: Algorithm, config: Config, population: PopulationConfig, settings: Mapping[str, Any],
    progress: bool = False,
) -> tuple[tuple[AssignedPolicy, ...], Config]:  # fmt: skip
    """Returns the policies and the config of a member with these settings. Raises ValueError for wrong ones."""
    config, algorithm = with_settings(config, algorithm, settings)
    policies = policies_of(env_fn, algorithm, config, progress)
    if population.method != "random":
        _check_interval(policies, population.interval)
    return policies, config


def check_names(algorithm: Algorithm, config: Config, population: PopulationConfig) -> None:
    """Checks the settings that members share, and the names of the settings that vary.

    Raises ValueError if `stop`, `self_play.pool` or `cluster.address` is set, if a name is unknown, or if a setting may
    not vary.
    """
    if config.stop != StopConfig():
        raise ValueError(f"stop: expected the defaults in a population, got {config.stop}")
    if config.self_play.pool:
        raise ValueError(
            "self_play.pool: expected 0 in a population, whose members would be scored against opponents of their own, "
            f"got {config.self_play.pool}"
        )
    if config.cluster.seats:
        raise ValueError(f"cluster.address: expected None in a population, got {config.cluster.address!r}")
    hyperparameters: dict[str, Any] = vars(algorithm) if is_dataclass(algorithm) else {}
    known = {*hints_of(Config), *(f"{ALGORITHM}{name}" for name in hyperparameters)}
    fixed = dict.fromkeys(OWN, "the population sets it, or all members share it")
    if population.method != "random":
        fixed |= fixed_settings(config.replay.save or config.replay.durable, config.replay.prioritized)
    for name in population.settings:
        if name in fixed or name.partition(".")[0] in SHARED:
            why = fixed.get(name, "all members share it")
            raise ValueError(f"settings: expected settings that may vary, got {name!r}: {why}")
        if name not in known:
            raise ValueError(f"settings: expected names of settings, got {name!r}{did_you_mean(name, known)}")


def check_values(
    env_fn: Any, algorithm: Algorithm, config: Config, population: PopulationConfig, progress: bool
) -> list[str]:
    """Checks the end values of all distributions; returns the policies' names. Raises ValueError for a wrong value."""
    policies, copies = policies_of(env_fn, algorithm, config, progress), population.method != "random"
    whole = _fingerprint(policies, config) if copies else None
    for name, distribution in population.settings.items():
        for value in distribution.ends:
            try:
                json.dumps(value)
            except TypeError:
                expected = f"settings: expected numbers, texts and tuples of Python for {name!r}"
                raise ValueError(f"{expected}, got {brief(value)} of type {type(value).__name__}") from None
            changed_run = _checked(env_fn, algorithm, config, population, {name: value}, progress)
            if copies and _fingerprint(*changed_run) != whole:
                raise ValueError(
                    f"settings: expected settings with which a run can be resumed, got {name!r}, whose value {value!r} "
                    "changes the run's network or saved replays"
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
                    f"batches and the end of an interval drops a partial batch, got {interval}"
                )


def _fingerprint(policies: tuple[AssignedPolicy, ...], config: Config) -> Any:
    """Returns the networks' shapes and what kept rows depend on, which no setting that varies may change."""
    models = [build_model(policy, config).whole.state_dict() for policy in policies]
    shapes = [{name: tuple(tensor.shape) for name, tensor in model.items()} for model in models]
    return shapes, [_of_rows(policy, config) for policy in policies]


def _of_rows(policy: AssignedPolicy, config: Config) -> Any:
    """Returns what a policy's kept rows, and a durable replay's sampler, depend on; None if no rows are kept."""
    source, durable = policy.source, config.replay.durable
    if isinstance(source, QueueSource):
        return (policy.transition, source.batch_size, source.length) if durable else None
    if not (durable or config.replay.save):
        return None
    limiter = config.limiter(policy.name, len(policy.agents) * config.lanes)
    return policy.transition, limiter, source.sequence if durable and source.prioritized else None
