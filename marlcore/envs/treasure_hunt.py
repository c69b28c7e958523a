"""A gridworld in which several agents collect gems and food and should avoid bones."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from ..spec import Field

__all__ = ["TreasureHunt"]

EMPTY, WALL, AGENT, GEM, FOOD, BONE = range(6)
REWARDS = {EMPTY: 0.0, GEM: 10.0, FOOD: 5.0, BONE: -10.0}  # an agent's reward for entering a cell
PLANES = np.array([WALL, AGENT, GEM, FOOD, BONE], np.uint8).reshape(-1, 1, 1)


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
        for name, value in {"agents": agents, "size": size, "view": view, "horizon": horizon}.items():
            if value < 1:
                raise ValueError(f"TreasureHunt {name}: expected at least 1, got {value}")
        for name, value in {"gems": gems, "food": food, "bones": bones}.items():
            if value < 0:
                raise ValueError(f"TreasureHunt {name}: expected at least 0, got {value}")
        if not 0.0 <= respawn <= 1.0:
            raise ValueError(f"TreasureHunt respawn: expected a probability, got {respawn}")
        crowd = agents + gems + food + bones
        if crowd >= size * size:
            raise ValueError(f"TreasureHunt size: expected more than {crowd} cells, got {size}x{size}")
        width = 2 * view + 1
        self.agents: tuple[str, ...] = tuple(f"agent_{i}" for i in range(agents))
        self.observations: Mapping[str, Field] = dict.fromkeys(self.agents, Field((len(PLANES), width, width)))
        self.actions: Mapping[str, int] = dict.fromkeys(self.agents, 4)
        self.agent: str | None = None
        self._window = (width, width)
        self._horizon = horizon
        self._respawn = respawn
        self._entities = [*repeat(GEM, gems), *repeat(FOOD, food), *repeat(BONE, bones)]
        self._rng = np.random.default_rng()
        self._build_ground(size, view)

    def _build_ground(self, size: int, view: int) -> None:
        """One byte per cell, row by row; the walls are as thick as the view, so that every window fits."""
        side = size + 2 * view
        ground = np.full((side, side), WALL, np.uint8)
        ground[view:-view, view:-view] = EMPTY
        self._inside = np.flatnonzero(ground == EMPTY).tolist()
        self._bare = ground.tobytes()
        self._cells = bytearray(self._bare)
        self._moves = (-side, side, -1, 1)
        self._strides = (side, 1)
        self._corner = view * side + view  # from the upper left cell of a window to its centre

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode with everything on random cells; without a seed the generator continues."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._cells[:] = self._bare
        self._waiting: list[int] = []  # collected entities that have not returned
        for entity in self._entities:
            self._place(entity)
        self._positions = [self._place(AGENT) for _ in self.agents]
        self._earned = [0.0] * len(self.agents)
        self._turn = 0
        self._index = 0
        self.agent = self.agents[0]

    def last(self) -> tuple[NDArray[np.float32], float, bool, bool]:
        """(observation, reward of the agent's previous action, False, whether the time is over)."""
        corner = self._positions[self._index] - self._corner
        window = np.ndarray(self._window, np.uint8, self._cells, corner, self._strides)
        obs = (window == PLANES).astype(np.float32)
        return obs, self._earned[self._index], False, self._turn == self._horizon

    def step(self, action: int | None) -> None:
        """Move the agent whose turn it is; when the time is over, None removes it."""
        if self.agent is None:
            raise ValueError(f"step: expected a reset, since the episode is over, got action {action!r}")
        if self._turn == self._horizon:
            if action is not None:
                raise ValueError(f"step: expected None from {self.agent}, which is truncated, got {action!r}")
        elif action is None or not 0 <= action < 4:
            raise ValueError(f"step: expected an action from 0 to 3 from {self.agent}, got {action!r}")
        else:
            self._earned[self._index] = self._move(self._moves[action])
        self._pass_turn()

    def close(self) -> None:
        """The environment holds no resources."""

    def _move(self, offset: int) -> float:
        """Move the agent by `offset` cells if possible; returns its reward."""
        origin = self._positions[self._index]
        target = origin + offset
        found = self._cells[target]
        if found in (WALL, AGENT):
            return 0.0
        self._cells[origin] = EMPTY
        self._cells[target] = AGENT
        self._positions[self._index] = target
        if found != EMPTY:
            self._waiting.append(found)
        return REWARDS[found]

    def _pass_turn(self) -> None:
        self._index += 1
        if self._index == len(self.agents):
            self._index = 0
            self._turn += 1
            if self._turn < self._horizon:
                self._bring_back()
        self.agent = self.agents[self._index] if self._turn <= self._horizon else None

    def _bring_back(self) -> None:
        """Returns collected entities to the ground, at random."""
        waiting, self._waiting = self._waiting, []
        for entity in waiting:
            if self._rng.random() < self._respawn:
                self._place(entity)
            else:
                self._waiting.append(entity)

    def _place(self, what: int) -> int:
        """Put `what` on a random empty cell; returns the cell."""
        while True:  # ends, since the constructor ensures an empty cell
            cell = self._inside[int(self._rng.random() * len(self._inside))]
            if self._cells[cell] == EMPTY:
                self._cells[cell] = what
                return cell
