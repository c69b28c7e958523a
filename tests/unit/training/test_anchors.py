"""Anchors: what a scripted opponent may return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym
from refusals import refused

from marlcore.spaces import Spaces
from marlcore.training.self_play.anchors import ScriptedPlayer


@pytest.mark.parametrize(
    ("space", "mask", "good", "bad"),
    [
        (gym.Discrete(3, start=5), [True, False, True], 7, 6),
        (gym.MultiDiscrete([2, 3]), [True, True, False, True, True], [1, 2], [1, 0]),
    ],
)
def test_an_anchor_keeps_to_the_mask(space: gym.Space[Any], mask: list[bool], good: Any, bad: Any) -> None:
    """An illegal move would lose each game, and the payoff table would not tell why."""
    spaces = Spaces(gym.Box(-1, 1, (1,), np.float32), space, masked=True)
    obs: Any = {"observation": np.zeros((1, 1), np.float32), "action_mask": np.array([mask])}
    moves = iter([good, bad])
    player = ScriptedPlayer("anchor:mover", lambda _obs: np.asarray(next(moves), np.int64), spaces, 1)
    at, begins = np.zeros(1, np.int64), np.ones(1, np.bool_)
    assert spaces.shifted(player.choose(obs, at, begins)).tolist() == [good]
    with refused(ValueError, f"action of anchor:mover: expected one that action_mask allows, got {bad}"):
        player.choose(obs, at, begins)
