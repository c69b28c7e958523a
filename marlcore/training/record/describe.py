"""A run's description in config.json: its environment, algorithm and settings, written and read back."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ... import algos
from ...envs.joint import JointObservations
from ...interfaces import Algorithm
from ...references import reference_to
from ..config import AssignedPolicy, Config
from .run_directory import read_config, steps_taken
from .trust import check_trusted


def describe(env_fn: Any, policies: tuple[AssignedPolicy, ...], config: Config) -> dict[str, Any]:
    """A form ready for JSON: importable names of the environment and the algorithms, and every setting.

    With one algorithm for all policies: "algorithm" and "hyperparameters"; otherwise both are dicts by policy.
    """
    algorithms = {policy.name: policy.algorithm for policy in policies}
    first = policies[0].algorithm
    one = all(algorithm is first for algorithm in algorithms.values())
    return {
        "env": _name_of(env_fn),
        "algorithm": algos.name_of(first) if one else {name: algos.name_of(it) for name, it in algorithms.items()},
        "hyperparameters": hyperparameters(first)
        if one
        else {name: hyperparameters(it) for name, it in algorithms.items()},
        **config.to_dict(),
        "policies": config.policies and {agent: policy.name for policy in policies for agent in policy.agents},
    }


def _name_of(env_fn: Any) -> str:
    made_by = env_fn.env_fn if isinstance(env_fn, JointObservations) else env_fn
    return getattr(made_by, "name", None) or reference_to(made_by) or repr(made_by)


def hyperparameters(algorithm: Algorithm) -> dict[str, Any]:
    """An algorithm's hyperparameters in a form for JSON, from which `remade` makes it again."""
    if dataclasses.is_dataclass(algorithm):
        given = {one.name: getattr(algorithm, one.name) for one in dataclasses.fields(algorithm) if one.init}
    else:
        given = getattr(algorithm, "__dict__", {})
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    """A form for JSON; a value that JSON cannot hold becomes its repr, only for human readers."""
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    simple = isinstance(value, (bool, int, str, type(None))) or (isinstance(value, float) and math.isfinite(value))
    return value if simple else {"repr": repr(value)}


def described_run(run_dir: str | Path, *, trust: bool = False) -> tuple[str, Algorithm | dict[str, Algorithm], Config]:
    """The environment's name, the algorithm (or one by policy) and the configuration of a run to resume.

    Modules that config.json names are imported, and their functions called: its directory is code.

    Args:
        trust: also a run that another user could have changed.

    Raises ValueError: config.json does not describe them, an import fails, or the run is not trusted.
    """
    described = read_config(check_trusted(run_dir, trust))
    try:
        config, env, name = Config.from_dict(described), described["env"], described["algorithm"]
        _check_named("environment", env)
        if not isinstance(name, dict):
            return env, _made("", name, described["hyperparameters"]), config
        return env, {one: _made(one, name[one], described["hyperparameters"][one]) for one in name}, config
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = str(error) if isinstance(error, ValueError) else repr(error)
        raise ValueError(
            f"resume: expected a run that its config.json describes, got {str(run_dir)!r} ({reason}); "
            "the program that started it can resume it: marlcore.train(env_fn, algorithm, config, resume=...)"
        ) from None


def _made(policy: str, name: str, hyperparameters: Mapping[str, Any]) -> Algorithm:
    _check_named(f"algorithm of {policy}" if policy else "algorithm", name)
    return remade(name, hyperparameters)


def remade(name: str, hyperparameters: Mapping[str, Any]) -> Algorithm:
    """The algorithm of that name. Raises ValueError: a hyperparameter is none, or JSON could not hold it."""
    return algos.make(name, **{label: _given(label, value) for label, value in hyperparameters.items()})


def _check_named(what: str, name: str) -> None:
    """Raises ValueError: the name belongs to a script, a notebook or a function's local."""
    if name.startswith("__main__:") or "<" in name:
        raise ValueError(f"{what}: expected one that can be imported, got {name}")


def _given(label: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        raise ValueError(f"hyperparameter {label}: {value.get('repr')} cannot be made again")
    return tuple(_given(label, one) for one in value) if isinstance(value, list) else value


def check_resumed(run_dir: str | Path, described: dict[str, Any]) -> None:
    """Raises ValueError: the directory holds no run, `described` does not match it, or it has no steps left to take."""
    before, now = read_config(run_dir), json.loads(json.dumps(described, default=os.fspath))
    for label in ("algorithm", "hyperparameters", "policies"):
        if before.get(label) != now[label]:
            raise ValueError(f"resume: expected {label} {before.get(label)!r}, as the run had it, got {now[label]!r}")
    fixed = {
        "actor": ["processes", "envs"],
        "replay": ["capacity", "stack", "prioritized", "mixture"],
        "learner": ["obs_norm"],
        "self_play": ["anchors"],  # whose order the payoff table knows
    }
    if now["replay"]["prioritized"]:  # the saved priorities depend on these
        fixed = {**fixed, "learner": ["obs_norm", "n_step"], "replay": [*fixed["replay"], "alpha"]}
    for part, label in ((part, label) for part, labels in fixed.items() for label in labels):
        section = before.get(part)
        had = section.get(label) if isinstance(section, dict) else None
        if had != now[part][label]:
            raise ValueError(f"resume: expected {part}.{label} {had!r}, as the run had it, got {now[part][label]!r}")
    taken = steps_taken(run_dir)
    if now["total_steps"] <= taken:
        raise ValueError(
            f"total_steps: expected more than the {taken:,} steps that the run has taken, got {now['total_steps']}"
        )
