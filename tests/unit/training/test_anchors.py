"""What a scripted opponent sees, and what it may return."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym
from refused import check_refused

from marlcore.spaces import Spaces
from marlcore.training.loops import ScriptedPlayer


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

    def choose() -> Any:
        return spaces.shifted(player.choose(obs, np.zeros(1, np.int64), np.ones(1, np.bool_)).action)

    assert choose().tolist() == [good]
    says = f"action of anchor:mover: expected one that action_mask allows, got {bad}"
    check_refused(choose, ValueError, says)


class Counter:
    """Returns how often it acted since its last reset, on top of a number."""

    def __init__(self, first: int = 0) -> None:
        self.first, self.acted = first, 0

    def reset(self) -> None:
        self.acted = 0

    def act(self, obs: Any) -> int:
        assert obs.shape == (1,), "a critic's part is not shown"
        self.acted += 1
        return self.first + self.acted


@pytest.mark.parametrize(("script", "first"), [(Counter, 0), (Counter(10), 10)])
def test_each_copy_has_a_script_of_its_own(script: Any, first: int) -> None:
    observation = gym.Dict({"observation": gym.Box(-1, 1, (1,)), "joint_observation": gym.Box(-1, 1, (2,))})
    spaces = Spaces(observation, gym.Discrete(20))
    player = ScriptedPlayer("bot", script, spaces, 3)

    def choose(copies: list[int], begins: list[bool]) -> list[int]:
        rows = {name: np.zeros((len(copies), *field.shape), np.float32) for name, field in spaces.obs.items()}
        return (player.choose(rows, np.array(copies), np.array(begins)).action - first).tolist()

    assert choose([0, 1, 2], [True] * 3) == [1, 1, 1]
    assert choose([0, 2], [False, False]) == [2, 2]
    assert choose([0, 1, 2], [False, False, True]) == [3, 2, 1]
