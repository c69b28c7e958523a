"""Reads settings from a YAML file. Its keys are the fields of `Config`, and `env`, `algo` and `algorithm`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ..checks import as_path, brief, did_you_mean, printable, short
from ..declared import hints_of
from ..regular_files import read_regular
from .config import Config, by_dotted_name, hints_by_policy

PRESETS = Path(__file__).parents[1] / "presets"
LONGEST = 2**20  # bytes of a file
_NULL, _TEXT, _BOOL = "tag:yaml.org,2002:null", "tag:yaml.org,2002:str", "tag:yaml.org,2002:bool"


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Loads YAML 1.1, but refuses aliases, which can expand to any size, and repeated keys.

    Unlike in YAML 1.1, 1e-3 is a number, and 1:30:00, on, off, yes and no are text. A key without a value is left out;
    `null` is None.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(None, None, "expected a value, got an alias", self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        keys = set()
        for key, _ in node.value:
            name = key.tag, str(key.value)
            if name in keys:
                raise yaml.MarkedYAMLError(None, None, f"expected each key once, got {brief(name[1])}", key.start_mark)
            keys.add(name)
        node.value = [(key, value) for key, value in node.value if (value.tag, value.value) != (_NULL, "")]
        super().flatten_mapping(node)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))
for _first in "-+0123456789":  # before YAML's own, which reads it as a number of base 60
    _Loader.yaml_implicit_resolvers[_first].insert(0, (_TEXT, re.compile(r"[-+]?[\d_]+(:[0-5]?\d)+(\.[\d_]*)?$")))
_resolvers = _Loader.yaml_implicit_resolvers
_resolvers |= {first: [one for one in _resolvers[first] if one[0] != _BOOL] for first in "yYnNoO"}


class Settings(NamedTuple):
    """The settings of a file, with defaults for missing ones; `algorithm` has the hyperparameters by name."""

    config: Config
    env: str | None = None
    algo: str | None = None
    algorithm: Mapping[str, Any] = {}


def read_settings(path: str | Path) -> Settings:
    """Reads a file such as

        env: gymnasium:CartPole-v1
        algo: dqn
        algorithm: {hidden: [64, 64]}
        total_steps: 50_000
        learner: {gamma: 0.98, n_step: 1}
        exploration: {epsilon: "linear(1, 0.05, 10000)"}

    Raises ValueError, in one line that names the file and the key, if the file cannot be read or is not YAML, or if it
    has an unknown key or a value out of range.
    """
    path = as_path("settings", path)
    try:
        plain = yaml.load(read_regular(path, LONGEST).decode("utf-8"), _Loader)
        plain = {} if plain is None else plain
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = short(" ".join(str(error).split()))
        raise ValueError(f"settings: expected a YAML file, got {str(path)!r} ({reason})") from None
    try:
        _check_names(plain)
        for name in ("env", "algo"):
            if not isinstance(plain.get(name, ""), str):
                raise ValueError(f"{name}: expected a name, got {brief(plain[name])}")
        hyperparameters = plain.get("algorithm", {})
        if not isinstance(hyperparameters, Mapping):
            raise ValueError(f"algorithm: expected hyperparameters by name, got {brief(hyperparameters)}")
        return Settings(Config.from_dict(plain), plain.get("env"), plain.get("algo"), hyperparameters)
    except (ValueError, TypeError) as error:
        raise ValueError(printable(f"{path}: {error}")) from None


def preset_names() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def read_preset(name: str) -> Settings:
    """Reads the settings of a preset. Raises ValueError if no preset has this name."""
    names = preset_names()
    if name not in names:
        raise ValueError(f"preset: expected one of {', '.join(names)}, got {brief(name)}{did_you_mean(name, names)}")
    return read_settings(PRESETS / f"{name}.yaml")


def _check_names(plain: Any) -> None:
    names = by_dotted_name(plain)
    known = {*hints_of(Config), *hints_by_policy(names), "env", "algo", "algorithm"}
    for name in names:
        if name not in known:
            from ..algos import ALGORITHMS  # imports torch

            others = {other for kind in ALGORITHMS.values() for other in hints_of(kind, "algorithm.")}
            raise ValueError(f"unknown setting {short(name)}{did_you_mean(name, known) or did_you_mean(name, others)}")
