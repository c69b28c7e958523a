"""A Gymnasium environment with a nested observation, whatever action space, and masks where one wants them."""

from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym


class Counting(gymnasium.Env[Any, Any]):
    """Counts to a random length; the reward is the sum of the action. Its observations are new arrays.

    A mask in "observation" or "info" forbids one action of Discrete(5) or MultiDiscrete([3, 2]), and all at the end.
    """

    def __init__(self, action: gym.Space | None = None, mask_in: str | None = None) -> None:
        self.action_space = gym.Discrete(5, start=3) if action is None else action
        inside = gym.Dict({
            "place": gym.Dict({"x": gym.Box(-9, 9, (2,), np.float32), "room": gym.Discrete(4, start=1)}),
            "doors": gym.MultiBinary(3),
            "keys": gym.Tuple([gym.MultiDiscrete([3, 2]), gym.Box(0, 255, (2, 2), np.uint8)]),
        })  # fmt: skip
        self.mask_in = mask_in
        masked = {"observation": inside, "action_mask": gym.Box(0, 1, (5,), np.int8)}
        self.observation_space = gym.Dict(masked) if mask_in == "observation" else inside
        self.steps = 0
        self.seen = {
            "place": {"x": np.zeros(2, np.float32), "room": np.int64(1)},
            "doors": np.zeros(3, np.int8),
            "keys": (np.zeros(2, np.int64), np.zeros((2, 2), np.uint8)),
        }
        self.mask = np.ones(5, np.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.steps, self.length = 0, int(self.np_random.integers(2, 9))
        self.previous = 0
        return self.look()

    def look(self) -> tuple[Any, Any]:
        self.seen["place"]["x"][:] = self.np_random.random(2)
        self.seen["place"]["room"] = np.int64(1 + self.steps % 4)
        self.seen["doors"][:] = self.np_random.integers(2, size=3)
        self.seen["keys"][0][:] = self.np_random.integers(2, size=2)
        self.seen["keys"][1][:] = self.steps
        seen = deepcopy(self.seen)
        over = self.steps == self.length
        self.mask[:] = 0 if over else 1
        self.mask[(self.previous + 1) % 5] = 0
        info = {"steps": self.steps, "name": "counting", "map": np.zeros(3), "inner": {"x": 1}}
        if self.mask_in == "info":
            several = isinstance(self.action_space, gym.MultiDiscrete)
            info["action_mask"] = tuple(np.split(self.mask.copy(), [3])) if several else self.mask.copy()
        if self.mask_in == "observation":
            return {"observation": seen, "action_mask": self.mask.copy()}, info
        return seen, info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        assert self.action_space.contains(action), action
        if self.mask_in:
            chosen = np.atleast_1d(action - self.action_space.start) + [0, 3][: np.size(action)]
            assert self.mask[chosen].all(), "a masked action"
        self.previous = int(np.sum(action)) % 5
        self.steps += 1
        over, cut = self.steps == self.length, self.length % 2 == 0
        obs, info = self.look()
        return obs, float(np.sum(action)), over and not cut, over and cut, info


VARIANTS: dict[str, dict[str, Any]] = {  # by name, which begins with "masked" where there are masks
    "nested": {},
    "masked in the observation": {"mask_in": "observation"},
    "masked in the info": {"mask_in": "info"},
    "multi-discrete": {"action": gym.MultiDiscrete([3, 2], start=[4, -1])},
    "masked multi-discrete": {"action": gym.MultiDiscrete([3, 2], start=[4, -1]), "mask_in": "info"},
    "masked multi-discrete in the observation": {"action": gym.MultiDiscrete([3, 2]), "mask_in": "observation"},
    "multi-binary": {"action": gym.MultiBinary(3)},
    "box": {"action": gym.Box(-1, 1, (2, 2), np.float32)},
}
