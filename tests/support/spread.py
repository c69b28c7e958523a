"""Agents that spread over landmarks, as one copy of PettingZoo's kind and as several that are computed together."""

from typing import Any

import numpy as np
from crowd import Rounds
from gymnasium import spaces as gym

from marlcore.envs.lockstep import Draws, Lockstep
from marlcore.interfaces import Outcome, Turn
from marlcore.spaces import Spaces

AGENTS = ("agent_0", "agent_1", "agent_2")
WAYS = np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]) * 0.2
STEPS = 10


class Plane:
    """As many landmarks as agents, in [-1, 1]; the agents earn minus the distance from each landmark to the nearest."""

    def __init__(self, copies: int) -> None:
        self.copies = copies

    def begin(self, draws: Draws) -> None:
        drawn = np.stack([draws.take() for _ in range(4 * len(AGENTS))], axis=1)
        self.places, self.marks = (2 * drawn - 1).reshape(self.copies, 2, len(AGENTS), 2).swapaxes(0, 1)
        self.step = 0

    def look(self) -> Any:
        """Each agent sees its place, and from there the landmarks and the others: float32 [copies, agents, numbers]."""
        there = np.concatenate([self.marks, self.places], axis=1)[:, None] - self.places[:, :, None]
        others = there.reshape(self.copies, len(AGENTS), -1)
        return np.concatenate([self.places, others], axis=2).astype(np.float32)

    def state(self) -> Any:
        return np.concatenate([self.places, self.marks], axis=1).reshape(self.copies, -1).astype(np.float32)

    def move(self, actions: Any) -> Any:
        """Takes numbers of ways [copies, agents], or ways [copies, agents, 2]; returns each agent's reward [copies]."""
        ways = WAYS[actions] if actions.ndim == 2 else np.clip(actions, -1, 1) * 0.2
        self.places = np.clip(self.places + ways, -1, 1)
        self.step += 1
        apart = np.linalg.norm(self.marks[:, :, None] - self.places[:, None], axis=3)
        return -apart.min(axis=2).sum(axis=1) / len(AGENTS)


class SingleSpread(Rounds):
    """A PettingZoo Parallel environment. With `moves`, actions are a Box; with `stated`, it has a state."""

    see = gym.Box(-4, 4, (2 + 4 * len(AGENTS),), np.float32)
    possible_agents = AGENTS

    def __init__(self, moves: bool = False, stated: bool = False) -> None:
        self.do = gym.Box(-1, 1, (2,), np.float32) if moves else gym.Discrete(len(WAYS))
        if stated:
            self.state_space = gym.Box(-1, 1, (4 * len(AGENTS),), np.float32)
        self._plane, self._draws = Plane(1), Draws()

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._draws = self._draws if seed is None else Draws([seed])
        self._plane.begin(self._draws)
        self.agents = [*AGENTS]
        return self._look(), {}

    def _look(self) -> Any:
        return dict(zip(AGENTS, self._plane.look()[0], strict=True))

    def state(self) -> Any:
        return self._plane.state()[0]

    def step(self, actions: dict[str, Any]) -> Any:
        reward = float(self._plane.move(np.array([[actions[agent] for agent in AGENTS]]))[0])
        over = self._plane.step == STEPS
        self.agents = [] if over else [*AGENTS]
        ends = dict.fromkeys(AGENTS, False), dict.fromkeys(AGENTS, over)
        return self._look(), dict.fromkeys(AGENTS, reward), *ends, {}


class Spread(SingleSpread):
    def vectorized(self, copies: int) -> "Spreads":
        return Spreads(self, copies)


class Spreads(Lockstep):
    """The same in several copies."""

    agents: tuple[str, ...] = AGENTS

    def __init__(self, single: SingleSpread, copies: int) -> None:
        super().__init__(copies)
        self.spaces = dict.fromkeys(AGENTS, Spaces(single.see, single.do))
        if hasattr(single, "state_space"):
            self.state_space = single.state_space
        self._plane = Plane(copies)

    def _begin(self) -> None:
        self._plane.begin(self._draws)
        self._states, self._acted = self._plane.state(), {}

    def observe(self) -> Any:
        outcomes = []
        self._last = self._states
        if self._acted:
            reward = self._plane.move(np.stack([self._acted[agent] for agent in AGENTS], axis=1))
            self._last, self._acted = self._plane.state(), {}
            over = self._plane.step == STEPS
            seen, cut = self._plane.look(), self._always if over else self._never
            for number, agent in enumerate(AGENTS):
                final = seen[:, number] if over else None
                outcomes.append(Outcome(agent, self._all, reward, self._never, cut, final))
            if over:
                self._begin_next()
        self._states, seen = self._plane.state(), self._plane.look()
        begins = self._always if self._plane.step == 0 else self._never
        return outcomes, [Turn(agent, self._all, seen[:, number], begins) for number, agent in enumerate(AGENTS)]

    def states(self) -> Any:
        return self._states, self._last

    def act(self, turn: Turn, action: Any) -> None:
        self._acted[turn.agent] = np.asarray(action)
