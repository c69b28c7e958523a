"""The rules of the treasure hunt, and several copies that compute together: with the same seeds as plain copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from ..checks import check_whole
from ..declared import Number, Whole, check_declared
from ..interfaces import Outcome, Turn
from ..spaces import Spaces
from .splitmix import keys_of, unit

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


class TreasureHunts:
    """A VectorEnvironment of treasure hunts. All copies are always at the same turn, since only time ends an episode.

    The grounds stand one after another in one array, so that a cell's place also says which copy it is of.
    """

    def __init__(self, hunt: Hunt, copies: int) -> None:
        check_whole("copies", copies)
        self._hunt = hunt
        self.copies = copies
        self.agents: tuple[str, ...] = hunt.names
        self.spaces: Mapping[str, Spaces] = dict.fromkeys(hunt.names, Spaces(hunt.observation_space, hunt.action_space))
        self.episodes = 0
        self.ended = np.zeros(copies, np.int64)
        self._all = np.arange(copies)
        self._grounds = self._all * len(hunt.bare)  # where each copy's ground begins
        shape = (copies, *hunt.observation_space.shape)
        self._seen = {agent: np.zeros(shape, np.float32) for agent in self.agents}
        self._kinds = np.array(KINDS, np.int8).reshape(1, -1, 1)
        self._never, self._always = np.zeros(copies, bool), np.ones(copies, bool)

    def reset(self, seed: int) -> None:
        self.episodes = 0
        self.ended[:] = 0
        self._keys = keys_of(seed, self.copies)
        self._drawn = np.zeros(self.copies, np.uint64)
        self._begin()

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        outcomes = []
        if self._turn == self._hunt.horizon:
            outcomes = [self._outcome(index, over=True) for index in range(self._hunt.agents)]
            self.episodes += self.copies
            self.ended += 1
            self._begin()
        elif self._turn:
            outcomes = [self._outcome(self._index, over=False)]
        agent = self.agents[self._index]
        obs = self._look(self._index, self._seen[agent])
        return outcomes, [Turn(agent, self._all, obs, self._never if self._turn else self._always)]

    def act(self, turn: Turn, action: NDArray[np.int64]) -> None:
        actions = np.asarray(action)
        fits = actions.shape == (self.copies,) and actions.dtype.kind in "iu"
        if not fits or actions.min() < 0 or actions.max() > 3:
            raise ValueError(f"action: expected {self.copies} integers from 0 to 3, got {action!r}")
        hunt, index = self._hunt, self._index
        origin = self._positions[index]
        target = origin + hunt.moves[actions]
        codes = self._cells[target]
        target = np.where(codes >= EMPTY, target, origin)
        self._cells[origin] = EMPTY
        self._cells[target] = AGENT
        self._positions[index] = target
        self._earned[index] = hunt.rewards[codes]
        hits = np.flatnonzero(codes >= ENTITY)
        self._collected[hits, codes[hits] - ENTITY] = True
        self._pass_turn()

    def close(self) -> None:
        """The environment holds no resources."""

    def _begin(self) -> None:
        hunt = self._hunt
        self._cells = np.tile(hunt.bare, self.copies)
        self._collected = np.zeros((self.copies, hunt.entities), bool)
        for entity in range(hunt.entities):
            self._place(self._all, ENTITY + entity)
        self._positions = np.array([self._place(self._all, AGENT) for _ in self.agents])  # [agent, copy]
        self._earned = np.zeros((hunt.agents, self.copies))
        self._turn = 0
        self._index = 0

    def _outcome(self, index: int, *, over: bool) -> Outcome:
        truncated = self._always if over else self._never
        final_obs = self._look(index, np.empty_like(self._seen[self.agents[index]])) if over else None
        return Outcome(self.agents[index], self._all, self._earned[index].copy(), self._never, truncated, final_obs)

    def _look(self, index: int, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """The observations of an agent, into `obs`."""
        hunt = self._hunt
        seen = hunt.planes[self._cells[self._positions[index][:, None] + hunt.window]]
        np.equal(seen[:, None, :], self._kinds, out=obs.reshape(self.copies, len(KINDS), -1))
        return obs

    def _pass_turn(self) -> None:
        self._index += 1
        if self._index == self._hunt.agents:
            self._index = 0
            self._turn += 1
            if self._turn < self._hunt.horizon:
                self._bring_back()

    def _bring_back(self) -> None:
        """Returns collected entities to the ground, in each copy one after another."""
        entities = self._hunt.entities
        copy, entity = np.nonzero(self._collected)  # by copy, then by entity
        luck = unit(self._keys[copy], self._drawn[copy] + entity.astype(np.uint64))
        self._drawn += np.uint64(entities)
        back = luck < self._hunt.respawn
        copy, entity = copy[back], entity[back]
        self._collected[copy, entity] = False
        while len(copy):
            first = np.ones(len(copy), bool)  # of its copy
            first[1:] = copy[1:] != copy[:-1]
            self._place(copy[first], ENTITY + entity[first])
            copy, entity = copy[~first], entity[~first]

    def _place(self, copies: NDArray[np.int64], what: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """Put something on a random empty cell of each of these copies; returns the cells."""
        inside = self._hunt.inside
        cells = np.zeros(len(copies), np.int64)
        codes = np.broadcast_to(np.asarray(what, np.int16), len(copies))
        left = np.arange(len(copies))
        while len(left):
            copy = copies[left]
            drawn = (unit(self._keys[copy], self._drawn[copy]) * len(inside)).astype(np.int64)
            cell = self._grounds[copy] + inside[drawn]
            self._drawn[copy] += np.uint64(1)
            free = self._cells[cell] == EMPTY
            placed = left[free]
            self._cells[cell[free]] = codes[placed]
            cells[placed] = cell[free]
            left = left[~free]
        return cells
