"""A gridworld in which several agents collect gems and food and should avoid bones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from .splitmix import fresh_key, key_of, unit
from .treasure_hunts import AGENT, EMPTY, ENTITY, KINDS, WALL, Hunt, TreasureHunts


class TreasureHunt:
    """Agents walk on a square of `size` x `size` cells with walls around, and see `view` cells in each direction.

    At the start of a turn, each collected entity returns to a random empty cell with probability `respawn`. Then
    agent_0, agent_1, ... act one after another; each action takes effect at once. The actions are 0 up, 1 down, 2 left,
    3 right. An agent that would enter a wall or another agent stays in place. An agent that enters an entity's cell
    collects it: a gem is worth 10, food 5 and a bone -10.

    An observation is float32 [5, 2 * view + 1, 2 * view + 1] around the agent, rows from top to bottom. It is 1.0 where
    the cell holds, by plane, a wall, an agent (itself included), a gem, food, a bone; otherwise 0.0. No event
    terminates an episode; it is truncated for every agent after `horizon` turns.

    Args:
        agents: the number of agents; at least 1.
        size: cells along a side, without walls; agents and entities leave at least one cell empty.
        view: cells seen in each direction; at least 1.
        horizon: turns in an episode; at least 1.
        gems, food, bones: the number of each, including collected ones that may return.
        respawn: probability per turn of each collected entity's return, in [0, 1].

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        agents: int = 3,
        size: int = 11,
        view: int = 2,
        horizon: int = 100,
        *,
        gems: int = 5,
        food: int = 3,
        bones: int = 8,
        respawn: float = 0.2,
    ) -> None:
        self._hunt = hunt = Hunt(agents, size, view, horizon, gems=gems, food=food, bones=bones, respawn=respawn)
        self.agents: tuple[str, ...] = hunt.names
        self.observation_spaces: Mapping[str, Space] = dict.fromkeys(self.agents, hunt.observation_space)
        self.action_spaces: Mapping[str, Space] = dict.fromkeys(self.agents, hunt.action_space)
        self.agent: str | None = None
        self._key, self._drawn = fresh_key(), 0

    def vectorized(self, copies: int) -> TreasureHunts:
        """Several copies with the same rules, which compute together; see `marlcore.envs.vectorize`."""
        return TreasureHunts(self._hunt, copies)

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode with everything on random cells; without a seed the generator continues."""
        if seed is not None:
            self._key, self._drawn = key_of(seed), 0
        hunt = self._hunt
        self._cells = hunt.bare.copy()
        self._collected = [False] * hunt.entities
        for entity in range(hunt.entities):
            self._place(ENTITY + entity)
        self._positions = [self._place(AGENT) for _ in self.agents]
        self._earned = [0.0] * hunt.agents
        self._turn = 0
        self._index = 0
        self.agent = self.agents[0]

    def last(self) -> tuple[NDArray[np.float32], float, bool, bool, Mapping[str, Any]]:
        hunt = self._hunt
        seen = hunt.planes[self._cells[self._positions[self._index] + hunt.window]]
        obs = (seen == np.array(KINDS)[:, None]).astype(np.float32).reshape(hunt.observation_space.shape)
        return obs, self._earned[self._index], False, self._turn == hunt.horizon, {}

    def step(self, action: int | None) -> None:
        """Move the agent whose turn it is; when the time is over, None removes it."""
        if self.agent is None:
            raise ValueError(f"step: expected a reset, since the episode is over, got action {action!r}")
        if self._turn == self._hunt.horizon:
            if action is not None:
                raise ValueError(f"step: expected None from {self.agent}, which is truncated, got {action!r}")
        elif action is None or not 0 <= action < 4:
            raise ValueError(f"step: expected an action from 0 to 3 from {self.agent}, got {action!r}")
        else:
            self._earned[self._index] = self._move(int(self._hunt.moves[action]))
        self._pass_turn()

    def close(self) -> None:
        """The environment holds no resources."""

    def _move(self, way: int) -> float:
        """Move the agent if possible; returns its reward."""
        origin = self._positions[self._index]
        code = int(self._cells[origin + way])
        if code in (WALL, AGENT):
            return 0.0
        self._cells[origin] = EMPTY
        self._cells[origin + way] = AGENT
        self._positions[self._index] = origin + way
        if code >= ENTITY:
            self._collected[code - ENTITY] = True
        return float(self._hunt.rewards[code])

    def _pass_turn(self) -> None:
        self._index += 1
        if self._index == len(self.agents):
            self._index = 0
            self._turn += 1
            if self._turn < self._hunt.horizon:
                self._bring_back()
        self.agent = self.agents[self._index] if self._turn <= self._hunt.horizon else None

    def _bring_back(self) -> None:
        """Returns collected entities to the ground: draw i of a turn decides on entity i, later draws say where."""
        begin = self._drawn
        self._drawn += len(self._collected)
        for entity, collected in enumerate(self._collected):
            if collected and unit(self._key, begin + entity) < self._hunt.respawn:
                self._collected[entity] = False
                self._place(ENTITY + entity)

    def _place(self, what: int) -> int:
        """Put `what` on a random empty cell; returns the cell."""
        inside = self._hunt.inside
        while True:  # ends, since the rules leave an empty cell
            cell = int(inside[int(unit(self._key, self._drawn) * len(inside))])
            self._drawn += 1
            if self._cells[cell] == EMPTY:
                self._cells[cell] = what
                return cell
