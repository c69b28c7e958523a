"""Settings in a YAML file: the keys are those of `Config`, and `env`, `algo` and `algorithm` as on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from ...checks import did_you_mean
from .config import Config, LearnerConfig
from .schedules import Schedule

BESIDE = ("env", "algo", "algorithm")


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML 1.1, but 1e-3 is a number there too."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))


@dataclass(frozen=True)
class Settings:
    """What a file says.

    Attributes:
        config: its settings, the others by default.
        env, algo: names; None where the file has none.
        algorithm: hyperparameters.
    """

    config: Config
    env: str | None
    algo: str | None
    algorithm: dict[str, Any]


def read_settings(path: str | Path) -> Settings:
    """Reads a file such as

        env: gymnasium:CartPole-v1
        algo: dqn
        algorithm: {hidden: [64, 64]}
        total_steps: 50_000
        learner: {gamma: 0.98, n_step: 1}
        exploration: {epsilon: "linear(1, 0.05, 10000)"}

    Raises: ValueError: the file cannot be read, is no YAML, or has an unknown key or a value out of range; in one line
        that names the file and the key.
    """
    try:
        plain = _without_empty(yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"config: expected a YAML file, got {str(path)!r} ({' '.join(str(error).split())})") from None
    try:
        _check_keys("", plain, Config(), BESIDE)
        for name in ("env", "algo"):
            if not isinstance(plain.get(name, ""), str):
                raise ValueError(f"{name}: expected a name, got {plain[name]!r}; mc.train takes an algorithm a policy")
        hyperparameters = plain.get("algorithm") or {}
        if not isinstance(hyperparameters, Mapping):
            raise ValueError(f"algorithm: expected its hyperparameters by name, got {hyperparameters!r}")
        given = {name: tuple(one) if isinstance(one, list) else one for name, one in hyperparameters.items()}
        return Settings(Config.from_dict(plain), plain.get("env"), plain.get("algo"), given)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def names_of(kind: Any, prefix: str = "") -> Iterator[str]:
    """The dotted names of the fields of a dataclass and its nested dataclasses."""
    for one in fields(kind):
        part: Any = one.type if is_dataclass(one.type) else one.default_factory
        if is_dataclass(part):
            marks = getattr(get_type_hints(kind, include_extras=True)[one.name], "__metadata__", ())
            unnamed = any(getattr(mark, "name", None) == "" for mark in marks)
            yield from names_of(part, prefix if unnamed else f"{prefix}{one.name}.")
        else:
            yield prefix + one.name


def _without_empty(plain: Any) -> Any:
    """The settings without keys that have nothing after the colon."""
    if not isinstance(plain, dict):
        return plain
    return {key: _without_empty(value) for key, value in plain.items() if value is not None}


def _check_keys(where: str, plain: Any, known: Any, beside: tuple[str, ...] = ()) -> None:
    """Raises ValueError: a key is no field of the dataclass `known`, or a section is no mapping."""
    if not isinstance(plain, Mapping):
        raise ValueError(f"{where.rstrip('.') or 'settings'}: expected settings by name, got {plain!r}")
    names = [one.name for one in fields(known)]
    for key, value in plain.items():
        if key in beside:
            continue
        if key not in names:
            from ...algos import ALGORITHMS  # which imports torch

            name, near = f"{where}{key}", [where + one for one in (*names, *beside)]
            others = [one for kind in ALGORITHMS.values() for one in names_of(kind, "algorithm.")]
            hint = did_you_mean(name, [*near, *names_of(Config)]) or did_you_mean(name, others)
            raise ValueError(f"unknown setting {name}{hint}")
        inside = getattr(known, key)
        if key == "learners":
            if not isinstance(value, Mapping):
                raise ValueError(f"learners: expected settings by policy, got {value!r}")
            for policy, section in value.items():
                _check_keys(f"learners.{policy}.", section, LearnerConfig())
        elif is_dataclass(inside) and not isinstance(inside, Schedule):
            _check_keys(f"{where}{key}.", value, inside)
