"""A game of two agents who see a cue each, and earn together: by choices, or by moves."""

from typing import Any

import numpy as np
from gymnasium import spaces

CUES = 3
STEPS = 5  # of an episode


class Matching:
    """A PettingZoo Parallel environment; the team earns 1 where both choose their own cue's number.

    With `moves`, an agent moves in [-1, 1], and the team earns minus the squared distances from the cues' places. With
    `opposed`, an agent earns 1 for its own right choice and loses 1 for the other's, so that their sum is always 0.
    """

    possible_agents = ("a", "b")

    def __init__(self, moves: bool = False, opposed: bool = False) -> None:
        self.agents: list[str] = []
        self._moves, self._opposed = moves, opposed
        self._rng = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0, 1, (CUES,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1, 1, (1,), np.float32) if self._moves else spaces.Discrete(CUES)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._step = list(self.possible_agents), 0
        return self._observed(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        acted = self.agents
        if self._moves:
            off = [float(actions[agent][0]) - (self._cues[agent] - 1) * 0.7 for agent in acted]
            earned = -sum(distance**2 for distance in off), 0.0
        else:
            first, second = (actions[agent] == self._cues[agent] for agent in acted)
            lead = float(first) - float(second)
            earned = (lead, -lead) if self._opposed else (float(first and second), 0.0)
        self._step += 1
        ends = self._step == STEPS
        self.agents = [] if ends else acted
        rewards = dict(zip(acted, earned, strict=True))
        never, ended = dict.fromkeys(acted, False), dict.fromkeys(acted, ends)
        return self._observed(), rewards, never, ended, {agent: {} for agent in acted}

    def close(self) -> None:
        """Holds nothing."""

    def _observed(self) -> dict[str, Any]:
        self._cues = {agent: int(self._rng.integers(CUES)) for agent in self.possible_agents}
        return {agent: np.eye(CUES, dtype=np.float32)[cue] for agent, cue in self._cues.items()}
