"""Cheap environments of many agents, acting at once."""

from typing import Any

import gymnasium
import numpy as np


class Rounds:
    """A PettingZoo Parallel environment by its methods, whose agents all have the spaces `see` and `do`."""

    metadata: dict[str, Any] = {"name": "rounds_v0"}  # noqa: RUF012 - PettingZoo's own form
    render_mode = None
    see: gymnasium.Space[Any]
    do: gymnasium.Space[Any]

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return self.see

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return self.do

    def close(self) -> None:
        pass


class Crowd(Rounds):
    """Each agent sees a number and is paid for naming its sign; 20 rounds."""

    see, do = gymnasium.spaces.Box(-1, 1, (1,), np.float32), gymnasium.spaces.Discrete(2)

    def __init__(self, agents: int = 100) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(agents)]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._rng = np.random.default_rng(seed) if seed is not None or not hasattr(self, "_rng") else self._rng
        self.agents, self._round = list(self.possible_agents), 0
        return self._look(), {}

    def _look(self) -> dict[str, Any]:
        self._numbers = self._rng.uniform(-1, 1, (len(self.possible_agents), 1)).astype(np.float32)
        return dict(zip(self.possible_agents, self._numbers, strict=True))

    def step(self, actions: dict[str, int]) -> Any:
        signs = (self._numbers[:, 0] > 0).tolist()
        rewards = {
            agent: float(actions[agent] == sign) for agent, sign in zip(self.possible_agents, signs, strict=True)
        }
        self._round += 1
        over = dict.fromkeys(self.possible_agents, self._round == 20)
        if self._round == 20:
            self.agents = []
        return self._look(), rewards, dict.fromkeys(self.possible_agents, False), over, {}


class Naming(Crowd):
    """Each agent sees a number in [-1, 1] and is paid minus its distance to the second half of its action."""

    do = gymnasium.spaces.Box(np.float32([0, -1]), np.float32([5, 1]))

    def __init__(self, agents: int = 1) -> None:
        super().__init__(agents)

    def step(self, actions: dict[str, Any]) -> Any:
        assert all(self.do.contains(action) for action in actions.values())
        numbers = dict(zip(self.possible_agents, self._numbers[:, 0].tolist(), strict=True))
        result = super().step(dict.fromkeys(actions, 0))
        rewards = {agent: -abs(float(action[1]) - numbers[agent]) for agent, action in actions.items()}
        return result[0], rewards, *result[2:]
