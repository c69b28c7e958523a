"""The rules of the treasure hunt, for one copy and for many at once."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from ..declared import Number, Whole, check_declared

# What a cell holds; entity i has the code ENTITY + i, so that each collected entity is known.
WALL, AGENT, EMPTY, ENTITY = range(4)
KINDS = PLANE_WALL, PLANE_AGENT, GEM, FOOD, BONE = range(5)  # the planes of an observation
WORTH = {GEM: 10.0, FOOD: 5.0, BONE: -10.0}  # an agent's reward for entering a cell
NO_PLANE = 5


@dataclass(frozen=True)
class Hunt:
    """The rules' numbers, and what follows from them; see `TreasureHunt`."""

    agents: Annotated[int, Whole(1)] = 3
    size: Annotated[int, Whole(1)] = 11
    view: Annotated[int, Whole(1)] = 2
    horizon: Annotated[int, Whole(1)] = 100
    _: KW_ONLY
    gems: Annotated[int, Whole(0)] = 5
    food: Annotated[int, Whole(0)] = 3
    bones: Annotated[int, Whole(0)] = 8
    respawn: Annotated[float, Number(0, 1)] = 0.2

    def __post_init__(self) -> None:
        check_declared(self, "TreasureHunt")
        crowd = self.agents + self.entities
        if crowd >= self.size * self.size:
            raise ValueError(f"TreasureHunt size: expected more than {crowd} cells, got {self.size}x{self.size}")

    @property
    def entities(self) -> int:
        return self.gems + self.food + self.bones

    @property
    def side(self) -> int:
        """Cells along a side of the ground; the walls are as thick as the view, so that every window fits."""
        return self.size + 2 * self.view

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(f"agent_{i}" for i in range(self.agents))

    @cached_property
    def observation_space(self) -> Box:
        width = 2 * self.view + 1
        return Box(0.0, 1.0, (len(KINDS), width, width), np.float32)

    @cached_property
    def action_space(self) -> Discrete:
        return Discrete(4)

    @cached_property
    def bare(self) -> NDArray[np.int16]:
        """The ground without agents and entities, row by row."""
        ground = np.full((self.side, self.side), WALL, np.int16)
        ground[self.view : -self.view, self.view : -self.view] = EMPTY
        return ground.ravel()

    @cached_property
    def inside(self) -> NDArray[np.int64]:
        """The cells without walls."""
        return np.flatnonzero(self.bare == EMPTY)

    @cached_property
    def moves(self) -> NDArray[np.int64]:
        """By action: the way from a cell to the next."""
        return np.array([-self.side, self.side, -1, 1])

    @cached_property
    def window(self) -> NDArray[np.int64]:
        """The way from an agent's cell to each cell that it sees."""
        reach = np.arange(-self.view, self.view + 1)
        return (reach[:, None] * self.side + reach).ravel()

    @cached_property
    def planes(self) -> NDArray[np.int8]:
        """By code of a cell: the plane in which it shows."""
        kinds = [GEM] * self.gems + [FOOD] * self.food + [BONE] * self.bones
        return np.array([PLANE_WALL, PLANE_AGENT, NO_PLANE, *kinds], np.int8)

    @cached_property
    def rewards(self) -> NDArray[np.float64]:
        """By code of a cell: the reward for entering it."""
        return np.array([WORTH.get(int(plane), 0.0) for plane in self.planes])
