"""Two agents that act in turns, in episodes of random lengths, so that copies are soon at different turns."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

LONGEST = 30


class Wander:
    """Random observations and rewards; an episode terminates, is truncated, or ends for all between two turns.

    Given a file `killed`, it creates that and kills its process once, after a number of steps.
    """

    agents = ("left", "right")
    observation_spaces = dict.fromkeys(agents, Box(-10, 10, (3,), np.float32))
    action_spaces = dict.fromkeys(agents, Discrete(4, start=-2))
    agent: str | None = None

    def __init__(self, killed: Path | None = None, after: int = 0) -> None:
        self._rng, self._killed, self._after = np.random.default_rng(), killed, after

    def reset(self, seed: int | None = None) -> None:
        self._rng = self._rng if seed is None else np.random.default_rng(seed)
        self._steps, self._left, self.agent = 0, [*self.agents], self.agents[0]
        self._length = int(self._rng.integers(1, 2 * LONGEST))
        self._end = self._rng.choice(["terminated", "truncated"])

    def last(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        over = self._steps >= self._length
        obs = self._rng.normal(size=3).astype(np.float32)
        terminated = over and self._end == "terminated"
        return obs, float(self._rng.normal(scale=3)), terminated, over and not terminated, {}

    def step(self, action: int | None) -> None:
        assert self.agent is not None
        if action is None:
            self._left.remove(self.agent)
        else:
            self._steps += 1
            self._after -= 1
            if self._killed is not None and self._after < 0 and not self._killed.exists():
                self._killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        turn = self.agents[self.agent == "left"]
        self.agent = turn if turn in self._left else next(iter(self._left), None)

    def close(self) -> None:
        pass
