"""An environment that errs at a chosen step."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np


class Corridor(gymnasium.Env[Any, Any]):
    """Five steps to the end. Step `errs_at` of all calls `error`, or returns a wrong `obs` or `reward`."""

    observation_space = gymnasium.spaces.Box(0, 5, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, errs_at: int = 0, error: Callable[[], object] | None = None, **wrong: Any) -> None:
        self.errs_at, self.error, self.wrong = errs_at, error, wrong
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.place = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        self.steps += 1
        self.place += 1
        wrong = self.wrong if self.steps == self.errs_at else {}
        if self.error is not None and self.steps == self.errs_at:
            self.error()
        obs = wrong.get("obs", np.full(2, self.place, np.float32))
        return obs, wrong.get("reward", 1.0), self.place == 5, False, {}


def collapse() -> None:
    raise RuntimeError("the floor gave way")
