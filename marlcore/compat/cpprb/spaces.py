"""cpprb's helpers for Gym's and Gymnasium's environments: the fields of a buffer, and the values of a transition."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ...checks import brief


def create_env_dict(
    env: Any, *, int_type: DTypeLike | None = None, float_type: DTypeLike | None = None
) -> dict[str, dict[str, Any]]:
    """Returns the `env_dict` of a buffer for an environment's transitions.

    The fields are rew, done, obs, next_obs and act. A Tuple space has obs0, next_obs0 and so on; a Dict space has
    x and next_x for each key x.

    Args:
        env: an environment with observation_space and action_space.
        int_type: of Discrete, MultiDiscrete and MultiBinary spaces; int32 by default.
        float_type: of Box spaces, rew and done; float32 by default.

    Raises: ValueError: a space is of another kind.
    """
    integer, number = int_type or np.int32, float_type or np.float32
    fields: dict[str, dict[str, Any]] = {name: {"shape": 1, "dtype": number} for name in ("rew", "done")}
    for name, space in _parts("obs", env.observation_space).items():
        fields[name] = fields[f"next_{name}"] = _field(name, space, integer, number)
    for name, space in _parts("act", env.action_space).items():
        fields[name] = _field(name, space, integer, number)
    return fields


def create_before_add_func(env: Any) -> Callable[[Any, Any, Any, Any, Any], dict[str, Any]]:
    """Returns before_add(obs, act, next_obs, rew, done), whose result `add` takes: `buffer.add(**before_add(...))`.

    The result has the fields of `create_env_dict`.
    """

    def before_add(obs: Any, act: Any, next_obs: Any, rew: Any, done: Any) -> dict[str, Any]:
        following = _values("obs", env.observation_space, next_obs)
        return {
            **_values("obs", env.observation_space, obs),
            **_values("act", env.action_space, act),
            **{f"next_{name}": value for name, value in following.items()},
            "rew": rew,
            "done": done,
        }

    return before_add


def _parts(name: str, space: Any) -> dict[str, Any]:
    return _values(name, space, getattr(space, "spaces", space))


def _values(name: str, space: Any, value: Any) -> dict[str, Any]:
    """Returns the parts of a space's value by the names of their fields."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {key: value[key] for key in parts}
    return {name: value} if parts is None else {f"{name}{i}": part for i, part in enumerate(value)}


def _field(name: str, space: Any, integer: Any, number: Any) -> dict[str, Any]:
    """Recognises a space's kind by its attributes, since Gym and Gymnasium have different classes."""
    if not any(hasattr(space, part) for part in ("low", "nvec", "n")):
        raise ValueError(f"{name}: expected a Box, Discrete, MultiDiscrete or MultiBinary space, got {brief(space)}")
    return {"shape": space.shape or 1, "dtype": number if hasattr(space, "low") else integer}
