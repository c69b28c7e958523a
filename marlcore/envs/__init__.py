"""Environments by name; a third-party package is imported when one of its environments is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..interfaces import Environment
from ..references import is_importable, resolve
from .treasure_hunt import TreasureHunt

__all__ = ["NamedEnvironment", "TreasureHunt", "adapt", "factory", "make"]

KINDS = "treasure_hunt, gymnasium:<id>, pettingzoo:<module>, pettingzoo-parallel:<module> or <module>:<function>"


def make(name: str, /, **options: Any) -> Environment:
    """Make an environment with `options`.

    Args:
        name: one of
            treasure_hunt;
            gymnasium:<id>, such as gymnasium:CartPole-v1, made by `gymnasium.make`. The package of the id is
            imported if its name follows from the id; otherwise name it: gymnasium:<package>:<id>;
            pettingzoo:<module>, such as pettingzoo:mpe2.simple_spread_v3, made by the module's `env`;
            pettingzoo-parallel:<module>, made by the module's `parallel_env`;
            <module>:<function>, made by the function (see `adapt`).
        options: arguments of `TreasureHunt`, `gymnasium.make`, `env`, `parallel_env` or the function.

    Raises:
        ValueError: the name is unknown, or marlcore does not support the environment's spaces.
        ImportError: the environment's package is not installed.
    """
    kind, _, rest = name.partition(":")
    if name == "treasure_hunt":
        return TreasureHunt(**options)
    if kind == "gymnasium" and rest:
        from .gymnasium import make_gymnasium

        return make_gymnasium(rest, **options)
    if kind in ("pettingzoo", "pettingzoo-parallel") and rest:
        from .pettingzoo import make_pettingzoo

        return make_pettingzoo(kind, rest, **options)
    if is_importable(name) and rest:
        return adapt(_call(name, options))
    hint = f"; did you mean gymnasium:{name}?" if _in_gymnasium(name) else ""
    raise ValueError(f"environment: expected {KINDS}, got {name!r}{hint}")


def _call(name: str, options: dict[str, Any]) -> Any:
    function = resolve("environment", name)
    try:
        return function(**options)
    except TypeError as error:
        raise TypeError(f"environment: {name!r}: {error}") from error


def _in_gymnasium(name: str) -> bool:
    try:
        from .gymnasium import is_registered
    except ImportError:
        return False
    return is_registered(name)


@dataclass(frozen=True)
class NamedEnvironment:
    """A picklable call of `make` without options, which shows the environment's name."""

    name: str

    def __call__(self) -> Environment:
        return make(self.name)


def factory(env_fn: Any) -> Callable[[], Any]:
    """A function that makes environments: `env_fn` itself, or a call of `make` if `env_fn` is a name.

    Raises: TypeError: it is neither. An environment is refused too, since each actor needs several of its own.
    """
    if isinstance(env_fn, str):
        return NamedEnvironment(env_fn)
    is_environment = not isinstance(env_fn, type) and hasattr(env_fn, "reset") and hasattr(env_fn, "step")
    if callable(env_fn) and not is_environment:
        made: Callable[[], Any] = env_fn
        return made
    got = f"an environment, {type(env_fn).__name__}" if is_environment else f"{env_fn!r}"
    raise TypeError(
        "env_fn: expected a function that makes an environment, such as "
        f"lambda: gymnasium.make('CartPole-v1'), or a name, such as 'gymnasium:CartPole-v1', got {got}"
    )


def adapt(env: Any) -> Environment:
    """`env` as an Environment: unchanged, or wrapped if it is from PettingZoo (AEC or Parallel) or Gymnasium.

    Raises:
        TypeError: it is none of these. ValueError: marlcore does not support its spaces.
    """
    if hasattr(env, "observations") and hasattr(env, "last"):
        adapted: Environment = env
        return adapted
    if hasattr(env, "agent_iter"):
        from .pettingzoo import AECEnvironment

        return AECEnvironment(env)
    if hasattr(env, "possible_agents"):
        from .pettingzoo import ParallelEnvironment

        return ParallelEnvironment(env)
    if hasattr(env, "observation_space"):
        from .gymnasium import GymnasiumEnvironment

        return GymnasiumEnvironment(env)
    raise TypeError(f"env_fn: expected it to make a marlcore, PettingZoo or Gymnasium environment, got {env!r}")
