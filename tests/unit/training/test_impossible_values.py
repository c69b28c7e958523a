"""Observations that are not of the space, forbidden actions and extras that are not finite are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from refusals import refused

import marlcore as mc
from marlcore.interfaces import Turn
from marlcore.training.after.loaded_policy import LoadedPolicy
from marlcore.training.loops.policy import ActingModel, PolicyPlayer
from marlcore.training.loops.seat import Seat

BOX = gym.Box(-1, 1, (2,), np.float32)
MASKED = mc.Spaces(gym.Dict(noise=BOX, target=gym.Discrete(4)), gym.Discrete(3), masked=True)
NOISE, MASK = np.zeros(2, np.float32), np.array([False, True, False])


def loaded(spaces: mc.Spaces) -> LoadedPolicy:
    """A policy whose action is 1 whatever it sees."""
    algorithm: Any = SimpleNamespace(act=lambda *_, **__: mc.Action(np.array([1])))
    return LoadedPolicy(algorithm, ActingModel(torch.nn.Identity(), None), spaces, "repeat", {})


@pytest.mark.parametrize(
    ("spaces", "obs", "message"),
    [
        (mc.Spaces(gym.Discrete(4), gym.Discrete(3)), 9, "obs: expected Discrete(4), got 9"),
        (mc.Spaces(BOX, gym.Discrete(3)), [0.0, np.nan], "obs: expected finite numbers, got nan in [0.0, nan]"),
        (MASKED, {"noise": NOISE, "target": 9, "action_mask": MASK}, "obs['target']: expected Discrete(4), got 9"),
        (
            MASKED,
            {"noise": NOISE, "target": 0, "action_mask": ~MASK & MASK},
            "action_mask: expected an allowed action, got [False, False, False]",
        ),
        (MASKED, {"observation": {"noise": NOISE, "target": 0}}, "action_mask: expected 3 booleans, got None"),
        (
            MASKED,
            {"noise": 0, "action_mask": np.array([0, 1, 0])},
            "obs: expected a value with the keys 'noise', 'target', got {'noise': 0, 'action_mask': array([0, 1, 0])}",
        ),
    ],
)
def test_a_loaded_policy_refuses_what_training_refuses(spaces: mc.Spaces, obs: Any, message: str) -> None:
    with refused(ValueError, message):
        loaded(spaces).act(obs)


def test_a_loaded_policy_refuses_a_reward_of_nan() -> None:
    policy = loaded(mc.Spaces(BOX, gym.Discrete(3)))
    assert policy.act(5 * np.ones(2)) == 1  # bounds are not checked
    with refused(ValueError, "reward: expected finite numbers, got nan in [nan]"):
        policy.act(NOISE, reward=float("nan"))


@pytest.mark.parametrize(
    ("action", "allowed", "forbidden"),
    [
        (gym.Discrete(3), [0, 2], [0, 1]),
        (gym.Discrete(3, start=5), [0, 2], [0, 1]),
        (gym.MultiDiscrete([3, 2]), [[0, 1], [2, 0]], [[0, 1], [2, 1]]),
    ],
)
@pytest.mark.parametrize("stack", [1, 3])
def test_a_forbidden_action_of_an_algorithm_is_refused(action: Any, allowed: Any, forbidden: Any, stack: int) -> None:
    spaces = mc.Spaces(BOX, action, masked=True, stack=stack)
    mask = np.array([[True, True, True, True, True], [True, False, True, True, False]])[:, : spaces.choices]
    obs = {"observation": np.zeros((2, 2), np.float32), "action_mask": mask}
    policy: Any = SimpleNamespace(act=lambda obs, at, state: mc.Action(np.array(chosen)[at]))
    player = PolicyPlayer(policy, spaces, 2, "repeat")
    begins = np.ones(2, np.bool_)
    chosen = allowed
    player.choose(obs, slice(None), begins)
    chosen = forbidden
    got = (forbidden[1] + spaces.first_action).tolist()
    line = f"action of the algorithm: expected one that action_mask allows, got {got}"
    with refused(ValueError, line):
        player.choose(obs, slice(None), begins)
    with refused(ValueError, line):  # of some copies
        player.choose({name: rows[1:] for name, rows in obs.items()}, np.array([1]), begins[1:])


@pytest.mark.parametrize(("name", "bad"), [("value", np.nan), ("value", -np.inf), ("priority", np.nan)])
def test_an_extra_that_is_not_finite_is_refused(name: str, bad: float) -> None:
    """But a priority of NaN stands for the highest so far."""
    spec = mc.TransitionSpec(mc.Field((2,)), mc.Field((), "int64"), {name: mc.Field()})
    chosen = mc.Action(np.zeros(2, np.int64), {name: np.array([0, bad], np.float32)})
    player: Any = SimpleNamespace(choose=lambda *_: chosen, before={}, policy=SimpleNamespace(version=1))
    seat = Seat("a", player, None, spec, np.arange(2))  # type: ignore[arg-type]
    turn = Turn("a", np.arange(2), np.zeros((2, 2), np.float32), np.ones(2, np.bool_))
    if name == "priority":
        seat.act(turn)
        return
    with refused(ValueError, f"{name} of the algorithm: expected finite numbers, got {bad} in [0.0, {bad}]"):
        seat.act(turn)
