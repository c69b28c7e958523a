"""Random play of one copy of an environment, turn by turn."""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from marlcore.interfaces import Environment


class Turn(NamedTuple):
    agent: str
    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    action: Any


def play(env: Environment, seed: int | None, actions: np.random.Generator) -> Iterator[Turn]:
    """One episode of random actions; each turn comes before its action is taken."""
    env.reset(seed)
    for _ in range(10_000):
        if (agent := env.agent) is None:
            return
        obs, reward, terminated, truncated, _ = env.last()
        over = terminated or truncated
        space = env.action_spaces[agent]
        action = None if over else int(space.start + actions.integers(space.n))
        yield Turn(agent, copy.deepcopy(obs), float(reward), bool(terminated), bool(truncated), action)
        env.step(action)
    pytest.fail("the episode does not end")


def record(env: Environment, episodes: int, seed: int = 7) -> list[Turn]:
    actions = np.random.default_rng(seed)
    return [turn for i in range(episodes) for turn in play(env, None if i else seed, actions)]


def assert_same(ours: list[Turn], theirs: list[Turn]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one._replace(obs=None) == other._replace(obs=None)
        np.testing.assert_array_equal(one.obs, other.obs)
