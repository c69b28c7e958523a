"""Gives hindsight the reward functions of a run's environment, such as a GoalEnv of Gymnasium-Robotics."""

from dataclasses import replace
from typing import Any

import numpy as np

from ..checks import brief
from ..replay import Hindsight
from ..spec import TransitionSpec

ARGUMENTS = "(achieved_goal, desired_goal, info)"


def with_functions_of(env: Any, hindsight: Hindsight, spec: TransitionSpec) -> Hindsight:
    """Returns `hindsight` with the reward functions of the environment or its wrappers, unless `hindsight` has its own.

    A `compute_terminated` that takes only single goals is left out. Raises ValueError if the environment lacks
    `compute_reward`, or if this function does not return one reward for each row.
    """
    hindsight.check_goals(spec)
    if hindsight.compute_reward is not None:
        return hindsight
    reward, terminated = _method(env, "compute_reward"), _method(env, "compute_terminated")
    if reward is None:
        raise ValueError(f"replay.hindsight: expected an environment with compute_reward{ARGUMENTS}, got {brief(env)}")
    goals = spec.obs_fields["desired_goal"].zeros(2)
    info = {name: field.zeros(2) for name, field in spec.extra_fields.items()}
    if (shape := np.shape(reward(goals, goals, info))) != (2,):
        raise ValueError(
            f"replay.hindsight: expected a compute_reward that returns shape [2] for goals of shape "
            f"{list(goals.shape)}, got {list(shape)}"
        )
    if terminated is not None and np.shape(terminated(goals, goals, info)) != (2,):
        terminated = None
    return replace(hindsight, compute_reward=reward, compute_terminated=terminated)


def _method(env: Any, name: str) -> Any:
    try:
        return env.get_wrapper_attr(name) if hasattr(env, "get_wrapper_attr") else getattr(env, name, None)
    except AttributeError:
        return None
