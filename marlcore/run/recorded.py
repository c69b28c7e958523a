"""A run on recorded data: filled replays in place of actors, checked against the policies that learn from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..checks import brief, check_type
from ..config import AssignedPolicy, Config, LearnerConfig, assign
from ..interfaces import QueueSource
from ..memory import SegmentHandle
from ..replay import ReplayBuffer
from ..spaces import Spaces
from ..transitions import spec_difference
from .assignment import Algorithms, with_sources

OFFLINE = Config(learner=LearnerConfig(n_step=1))  # longer returns would be those of the policy that gathered the data


def assigned_to_spaces(
    spaces: Spaces, algorithm: Algorithms, config: Config
) -> tuple[Callable[[], Any], tuple[AssignedPolicy, ...], Config]:
    """As `assigned`, with a function that raises in place of an environment: there is none."""
    for name in ("interval", "seconds"):
        if value := getattr(config.evaluation, name):
            raise ValueError(f"evaluation.{name}: expected 0 without an environment, got {value}")
    policies = assign({"agent_0": replace(spaces, stack=1)}, config.policies, algorithm, config.replay.frames)
    return no_environment, with_sources(policies, config), config


def no_environment() -> None:
    """Stands for the environment of a run that has none. Raises ValueError."""
    raise ValueError("env_fn: expected an environment, got a run on recorded data without one; pass env_fn=")


def handles_of(
    replays: ReplayBuffer | Mapping[str, ReplayBuffer], policies: tuple[AssignedPolicy, ...], config: Config
) -> dict[str, SegmentHandle]:
    """The replays by policy. Raises ValueError, TypeError, NotEnoughData: a policy cannot learn from its replay."""
    names = [policy.name for policy in policies]
    if isinstance(replays, ReplayBuffer) and len(names) == 1:
        replays = {names[0]: replays}
    if not isinstance(replays, Mapping) or replays.keys() != {*names}:
        expected = f"a dict of one for each of the policies {names}" if len(names) > 1 else "a ReplayBuffer"
        raise TypeError(f"replay: expected {expected}, got {brief(replays)}")
    for policy in policies:
        _check_data(replays[policy.name], policy, config)
    return {name: replays[name].handle for name in names}


def _check_data(data: ReplayBuffer, policy: AssignedPolicy, config: Config) -> None:
    source, learner = policy.source, config.learner_of(policy.name)
    check_type("replay", data, ReplayBuffer, expected=f"a ReplayBuffer for {policy.name}")
    if isinstance(source, QueueSource):
        name = type(policy.algorithm).__name__
        raise ValueError(f"algorithm: expected one that learns from others' transitions, got {name}")
    if data.limiter is not None:
        raise ValueError(f"replay: expected one without a limiter, got {data.limiter}")
    spec = replace(policy.algorithm.transition(policy.spaces), next_obs=data.spec.next_obs)
    extras = {name: field for name, field in data.spec.extras.items() if name in spec.extras}
    if (used := replace(data.spec, extras=extras)) != spec:
        raise ValueError(f"replay {spec_difference(spec, used)}")
    options: dict[str, Any] = {"n_step": source.n_step, "prioritized": source.prioritized, "sequence": source.sequence}
    batch = data.sampler(learner.batch_size, stack=config.replay.frames, min_size=1, **options).sample()
    actions = batch.action.reshape(-1, *policy.spaces.action_field.shape)
    refused = policy.spaces.first_refused(actions) if actions.dtype.kind in "iu" else None
    if refused is not None:
        raise ValueError(
            f"replay action: expected one of {policy.spaces.action}, counted from 0, got {actions[refused].tolist()}; "
            "`ReplayBuffer.from_episodes(action_space=)` counts those of a space that starts at another number"
        )
