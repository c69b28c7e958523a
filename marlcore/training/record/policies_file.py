"""A run's policies in JSON, from which those of built-in algorithms are made again without executing any code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ... import algos
from ...checks import came
from ...spaces import Spaces, is_text
from ..config import AssignedPolicy, Config, is_custom
from .describe import hyperparameters, remade
from .files import read_json, write_json

FILE = "checkpoints/policies.json"
_UNREADABLE = (
    OSError,
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


def write_policies(run_dir: Path, policies: tuple[AssignedPolicy, ...], config: Config) -> None:
    """Writes what `described_policies` reads."""
    plain = config.to_dict()
    norms = {policy: {"obs_norm": learner.obs_norm} for policy, learner in config.learners.items()}
    settings = {
        "learner": {"obs_norm": config.learner.obs_norm},
        "learners": norms,
        "replay": {"pad": config.replay.pad},
        "exploration": plain["exploration"],
        "stages": plain["stages"],
    }
    described = [
        {
            "name": policy.name,
            "agents": policy.agents,
            "observation": _described(policy.spaces.observation),
            "action": _described(policy.spaces.action),
            "masked": policy.spaces.masked,
            "stack": policy.spaces.stack,
            "algorithm": algos.name_of(policy.algorithm),
            "hyperparameters": hyperparameters(policy.algorithm),
        }
        for policy in policies
    ]
    write_json(run_dir / FILE, {"policies": described, "config": settings})


def described_policies(run_dir: Path) -> tuple[tuple[AssignedPolicy, ...], Config]:
    """A run's policies and the settings that they act by; schedules that are functions are left out.

    Raises: ValueError: an algorithm is not of this package, or the file is damaged or missing.
    """
    path = run_dir / FILE
    try:
        described = read_json(path)
        return tuple(map(_policy, described["policies"])), _config(described["config"])
    except _UNREADABLE as error:
        reason = str(error) if isinstance(error, (ValueError, OSError)) else came(error)
        expected = "weights_only: expected policies of built-in algorithms"
        raise ValueError(f"{expected}, got {str(path)!r} ({reason})") from None


def _policy(plain: Mapping[str, Any]) -> AssignedPolicy:
    name, given = plain["algorithm"], plain["hyperparameters"]
    if name.lower() not in algos.ALGORITHMS:
        raise ValueError(f"{plain['name']} is of the algorithm {name}, whose code would have to be imported")
    for label, value in given.items():
        if ":" in json.dumps(value):  # module:name, or a value that JSON could not hold
            raise ValueError(f"{plain['name']} has the hyperparameter {label}={came(value)}, which is code")
    spaces = Spaces(_space(plain["observation"]), _space(plain["action"]), plain["masked"], plain["stack"])
    return AssignedPolicy(plain["name"], tuple(plain["agents"]), spaces, remade(name, given))


def _config(plain: dict[str, Any]) -> Config:
    exploration = plain["exploration"]
    kept = {name: text for name, text in exploration["schedules"].items() if not is_custom(text)}
    epsilon = None if is_custom(exploration["epsilon"]) else exploration["epsilon"]
    return Config.from_dict({**plain, "exploration": {**exploration, "epsilon": epsilon, "schedules": kept}})


def _described(space: gym.Space) -> dict[str, Any]:
    """A form for JSON of the spaces that `Spaces` takes."""
    if isinstance(space, gym.Dict):
        return {"kind": "Dict", "spaces": [[_key(key), _described(part)] for key, part in space.spaces.items()]}
    if isinstance(space, gym.Tuple):
        return {"kind": "Tuple", "spaces": [_described(part) for part in space.spaces]}
    if isinstance(space, gym.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": _dtype(space)}
    if isinstance(space, gym.MultiDiscrete):
        start = np.asarray(space.start).tolist()
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": start, "dtype": _dtype(space)}
    if isinstance(space, gym.MultiBinary):
        return {"kind": "MultiBinary", "n": np.asarray(space.n).tolist()}  # a number or a shape
    if is_text(space):
        return {"kind": "Text"}  # it keeps its place, and no network sees it
    assert isinstance(space, gym.Box)
    bounds = {"low": _bounds(space.low), "high": _bounds(space.high)}
    return {"kind": "Box", **bounds, "shape": list(space.shape), "dtype": _dtype(space)}


def _space(plain: Mapping[str, Any]) -> gym.Space:
    """Raises KeyError, TypeError, ValueError: `plain` is not of `_described`."""
    kind = plain["kind"]
    if kind == "Dict":
        return gym.Dict({key: _space(part) for key, part in plain["spaces"]})
    if kind == "Tuple":
        return gym.Tuple([_space(part) for part in plain["spaces"]])
    if kind == "MultiBinary":
        return gym.MultiBinary(plain["n"])
    if kind == "Text":
        return gym.Text(1)
    dtype = np.dtype(plain["dtype"])
    if kind == "Discrete":
        other = {} if dtype == np.int64 else {"dtype": dtype}  # of which earlier releases of Gymnasium know nothing
        return gym.Discrete(plain["n"], start=plain["start"], **other)
    if kind == "MultiDiscrete":
        return gym.MultiDiscrete(np.array(plain["nvec"]), dtype=dtype, start=np.array(plain["start"]))
    if kind != "Box":
        raise ValueError(f"expected the kind of a space, got {kind!r}")
    numbers = dtype if dtype.kind in "iu" else np.float64  # which reads "inf"
    low, high = (np.broadcast_to(np.array(plain[end], numbers), plain["shape"]) for end in ("low", "high"))
    return gym.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)


def _dtype(space: gym.Space) -> str:
    return str(np.dtype(space.dtype).name)


def _key(key: Any) -> Any:
    return key if isinstance(key, (str, int)) else {"repr": repr(key)}  # which no dict can have as a key


def _bounds(array: NDArray[Any]) -> Any:
    """One number if all are equal; infinity is text."""
    if array.size and (array == array.flat[0]).all():
        array = array.reshape(-1)[0]
    return _finite(array.tolist())


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return value if math.isfinite(value) else repr(value)
