"""A test of memory: the agent sees a cue once, and must name it after a delay."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from ..checks import check_whole
from ..interfaces import Outcome, Turn
from ..spaces import Spaces
from .gymnasium import AGENT
from .lockstep import Draws, Lockstep


class Recall(gymnasium.Env):  # type: ignore[misc] # here, gymnasium is Any
    """The first observation shows one of `cues`; `delay` steps later the action is rewarded with 1 if it names the cue.

    Earlier actions do not matter. An observation has a number for each cue, and a last one that is 1 when it is
    time to answer. Without memory, no policy beats a guess: a mean return of 1 / cues.

    Args:
        cues: the number of different cues, at least 2.
        delay: steps from the cue to the answer, at least 1.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 Gymnasium's own declaration

    def __init__(self, cues: int = 4, delay: int = 20) -> None:
        check_whole("Recall cues", cues, 2)
        check_whole("Recall delay", delay)
        self.cues, self.delay = int(cues), int(delay)
        self.observation_space = Box(0.0, 1.0, (self.cues + 1,), np.float32)
        self.action_space = Discrete(self.cues)
        self._draws = Draws()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begins an episode; a seed determines this episode and all later ones."""
        if seed is not None:
            self._draws = Draws([seed])
        self._cue, self._step = int(self._draws.take()[0] * self.cues), 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Performs an action; the last one of an episode is the answer."""
        over = self._step == self.delay
        reward = float(over and int(action) == self._cue)
        self._step += 1
        return self._observe(), reward, over, False, {}

    def _observe(self) -> NDArray[np.float32]:
        obs = np.zeros(self.cues + 1, np.float32)
        obs[self._cue] = self._step == 0
        obs[-1] = self._step == self.delay
        return obs

    def vectorized(self, copies: int) -> "Recalls":
        """Returns several copies that are computed together."""
        return Recalls(self, copies)


class Recalls(Lockstep):
    """A VectorEnvironment of copies of `Recall`; it behaves as separate copies with the same seeds do."""

    agents: tuple[str, ...] = (AGENT,)

    def __init__(self, recall: Recall, copies: int) -> None:
        super().__init__(copies)
        self.spaces: Mapping[str, Spaces] = {AGENT: Spaces(recall.observation_space, recall.action_space)}
        self._cues, self._delay = recall.cues, recall.delay
        self._seen = np.zeros((copies, recall.cues + 1), np.float32)

    def _begin(self) -> None:
        self._cue = (self._draws.take() * self._cues).astype(np.int64)
        self._step = 0

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        outcomes = []
        if self._step:
            over = self._step > self._delay
            reward = (self._right & over).astype(np.float64)
            ended, final = (self._always, np.zeros_like(self._seen)) if over else (self._never, None)
            outcomes.append(Outcome(AGENT, self._all, reward, ended, self._never, final))
            if over:
                self._begin_next()
        self._seen[:] = 0.0
        self._seen[self._all, self._cue] = self._step == 0
        self._seen[:, -1] = self._step == self._delay
        return outcomes, [Turn(AGENT, self._all, self._seen, self._always if self._step == 0 else self._never)]

    def act(self, turn: Turn, action: NDArray[Any]) -> None:
        self._right = np.asarray(action) == self._cue
        self._step += 1
