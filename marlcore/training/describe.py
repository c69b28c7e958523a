"""A run's description in config.json: its environment, algorithm and settings, written and read back."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import algos
from ..interfaces import Algorithm
from ..references import reference_to
from .config import Config
from .run_directory import read_config, read_progress

__all__ = ["check_resumed", "describe", "described_run"]


def describe(env_fn: Any, algorithm: Algorithm, config: Config) -> dict[str, Any]:
    """A form ready for JSON: importable names of the environment and the algorithm, and every setting."""
    if dataclasses.is_dataclass(algorithm):
        given = {one.name: getattr(algorithm, one.name) for one in dataclasses.fields(algorithm) if one.init}
    else:
        given = getattr(algorithm, "__dict__", {})
    return {
        "env": getattr(env_fn, "name", None) or reference_to(env_fn) or repr(env_fn),
        "algorithm": algos.name_of(algorithm),
        "hyperparameters": {name: _plain(value) for name, value in given.items()},
        **config.to_dict(),
    }


def _plain(value: Any) -> Any:
    """A form for JSON; a value that JSON cannot hold becomes its repr, only for human readers."""
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    simple = isinstance(value, (bool, int, str, type(None))) or (isinstance(value, float) and math.isfinite(value))
    return value if simple else {"repr": repr(value)}


def described_run(run_dir: str | Path) -> tuple[str, Algorithm, Config]:
    """The environment's name, the algorithm and the configuration of a run to resume.

    Raises ValueError: config.json does not describe them, or an import fails.
    """
    described = read_config(run_dir)
    try:
        config, env, name = Config.from_dict(described), described["env"], described["algorithm"]
        hyperparameters = {label: _given(label, value) for label, value in described["hyperparameters"].items()}
        for what, known_as in (("environment", env), ("algorithm", name)):
            _check_named(what, known_as)
        return env, algos.make(name, **hyperparameters), config
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = str(error) if isinstance(error, ValueError) else repr(error)
        raise ValueError(
            f"resume: expected a run that its config.json describes, got {str(run_dir)!r} ({reason}); "
            "the program that started it can resume it: marlcore.train(env_fn, algorithm, config, resume=...)"
        ) from None


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
    for label in ("algorithm", "hyperparameters"):
        if before.get(label) != now[label]:
            raise ValueError(f"resume: expected {label} {before.get(label)!r}, as the run had it, got {now[label]!r}")
    for part, label in (("actor", "processes"), ("actor", "envs"), ("replay", "capacity"), ("replay", "stack")):
        section = before.get(part)
        had = section.get(label) if isinstance(section, dict) else None
        if had != now[part][label]:
            raise ValueError(f"resume: expected {part}.{label} {had!r}, as the run had it, got {now[part][label]!r}")
    taken = sum(read_progress(run_dir).get("steps", {}).values())
    if now["total_steps"] <= taken:
        raise ValueError(
            f"total_steps: expected more than the {taken:,} steps that the run has taken, got {now['total_steps']}"
        )
