"""A gridworld in which several agents collect gems and food and should avoid bones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from numpy.typing import NDArray

from ..declared import Number, Whole, check_declared
from ..interfaces import Outcome, Turn
from ..spaces import Spaces
from .agent_view import check_action
from .lockstep import Draws, Lockstep

# The contents of a cell; entity i has the code ENTITY + i, so that each collected entity is known.
WALL, AGENT, EMPTY, ENTITY = range(4)
KINDS = PLANE_WALL, PLANE_AGENT, GEM, FOOD, BONE = range(5)  # the planes of an observation
WORTH = {GEM: 10.0, FOOD: 5.0, BONE: -10.0}  # an agent's reward for entering a cell
NO_PLANE = 5


@dataclass(frozen=True)
class Rules:
    """The arguments of `TreasureHunt`."""

    agents: Annotated[int, Whole(1)]
    size: Annotated[int, Whole(1)]
    view: Annotated[int, Whole(1)]
    horizon: Annotated[int, Whole(1)]
    gems: Annotated[int, Whole(0)]
    food: Annotated[int, Whole(0)]
    bones: Annotated[int, Whole(0)]
    respawn: Annotated[float, Number(0, 1)]

    def __post_init__(self) -> None:
        check_declared(self, "TreasureHunt")
        crowd = self.agents + self.entities
        if crowd >= self.size * self.size:
            raise ValueError(f"TreasureHunt size: expected more than {crowd} cells, got {self.size}x{self.size}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"agent_{i}" for i in range(self.agents))

    @property
    def entities(self) -> int:
        return self.gems + self.food + self.bones


class HuntState:
    """The state of treasure hunts with the same rules, all at the same turn of the same agent.

    One array holds the squares of all hunts, so a cell's index also tells its hunt. A square's walls are as thick as
    the view, so that every observed window lies inside the array.

    Attributes:
        turn: the episode's present turn. index: the number of the agent that acts.
        earned: float64 [agents, hunts], the reward for each agent's last action.
    """

    def __init__(self, rules: Rules, hunts: int) -> None:
        self.rules = rules
        side, width = rules.size + 2 * rules.view, 2 * rules.view + 1
        self.observation_space = Box(0.0, 1.0, (len(KINDS), width, width), np.float32)
        self.action_space = Discrete(4)
        ground = np.full((side, side), WALL, np.int16)
        ground[rules.view : -rules.view, rules.view : -rules.view] = EMPTY
        self._bare = np.tile(ground.ravel(), hunts)
        self._inside = np.flatnonzero(ground == EMPTY)
        self._all = np.arange(hunts)
        self._grounds = self._all * ground.size  # where each hunt's ground begins
        self._moves = np.array([-side, side, -1, 1])  # by action: the offset of the next cell
        reach = np.arange(-rules.view, rules.view + 1)
        self._window = (reach[:, None] * side + reach).ravel()  # offsets from an agent's cell to the cells it sees
        kinds = [GEM] * rules.gems + [FOOD] * rules.food + [BONE] * rules.bones
        planes = [PLANE_WALL, PLANE_AGENT, NO_PLANE, *kinds]
        self._planes = np.array(planes, np.int8)  # by code of a cell: the plane in which it shows
        self._first_codes = self._all * len(planes)  # where each hunt begins in `_entered`
        self._rewards = np.array([WORTH.get(plane, 0.0) for plane in planes])  # by code: for entering the cell
        self._kinds = np.array(KINDS, np.int8).reshape(1, -1, 1)

    @property
    def is_over(self) -> bool:
        return self.turn >= self.rules.horizon

    def begin(self, draws: Draws) -> None:
        self._draws = draws
        self._cells = self._bare.copy()
        self._entered = np.zeros(len(self._all) * len(self._planes), bool)  # hunt after hunt, by code
        self._collected = self._entered.reshape(len(self._all), -1)[:, ENTITY:]
        for entity in range(self.rules.entities):
            self._place(self._all, ENTITY + entity)
        self._positions = np.array([self._place(self._all, AGENT) for _ in range(self.rules.agents)])  # [agent, hunt]
        self.earned = np.zeros((self.rules.agents, len(self._all)))
        self.turn = self.index = 0

    def look(self, index: int, obs: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Returns an agent's observations, float32 [hunts, 5, width, width], written into `obs` if it is given."""
        if obs is None:
            obs = np.empty((len(self._all), *self.observation_space.shape), np.float32)
        seen = self._planes.take(self._cells.take(self._positions[index][:, None] + self._window))
        np.equal(seen[:, None, :], self._kinds, out=obs.reshape(len(obs), len(KINDS), -1))
        return obs

    def move(self, actions: NDArray[np.int64]) -> None:
        """Moves the agent that acts by its actions, int64 [hunts]; it stays where its way is not free."""
        origin = self._positions[self.index]
        target = origin + self._moves.take(actions)
        codes = self._cells.take(target)
        self._cells[origin] = EMPTY
        np.copyto(origin, target, where=codes >= EMPTY)  # the agent's new position
        self._cells[origin] = AGENT
        self._rewards.take(codes, out=self.earned[self.index])
        self._entered[self._first_codes + codes] = True

    def pass_turn(self) -> None:
        """Makes the next agent act; at the start of a turn, collected entities may return first."""
        self.index += 1
        if self.index == self.rules.agents:
            self.index = 0
            self.turn += 1
            if not self.is_over:
                self._bring_back()

    def _bring_back(self) -> None:
        """Puts some collected entities back: a turn's draw i decides on entity i, and later draws choose the cells."""
        hunt, entity = np.nonzero(self._collected)  # by hunt, then by entity
        if len(hunt):
            back = self._draws.peek(hunt, entity) < self.rules.respawn
            hunt, entity = hunt[back], entity[back]
        self._draws.counts += np.uint64(self.rules.entities)
        self._collected[hunt, entity] = False
        while len(hunt):
            first = np.ones(len(hunt), bool)  # each hunt's first entity, since two might get the same cell
            first[1:] = hunt[1:] != hunt[:-1]
            self._place(hunt[first], ENTITY + entity[first])
            hunt, entity = hunt[~first], entity[~first]

    def _place(self, hunts: NDArray[np.int64], what: int | NDArray[np.int64]) -> NDArray[np.int64]:
        cells = np.zeros(len(hunts), np.int64)
        codes = np.broadcast_to(np.asarray(what, np.int16), len(hunts))
        left = np.arange(len(hunts))
        while len(left):  # ends, since the rules leave an empty cell
            hunt = hunts[left]
            drawn = (self._draws.take(hunt) * len(self._inside)).astype(np.int64)
            cell = self._grounds[hunt] + self._inside[drawn]
            free = self._cells[cell] == EMPTY
            placed = left[free]
            self._cells[cell[free]] = codes[placed]
            cells[placed] = cell[free]
            left = left[~free]
        return cells


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
        size: cells along a side, without walls; agents and entities must leave at least one cell empty.
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
        self._rules = Rules(agents, size, view, horizon, gems, food, bones, respawn)
        self._state = HuntState(self._rules, 1)
        self._draws = Draws()
        self.agents: tuple[str, ...] = self._rules.names
        self.observation_spaces: Mapping[str, Space] = dict.fromkeys(self.agents, self._state.observation_space)
        self.action_spaces: Mapping[str, Space] = dict.fromkeys(self.agents, self._state.action_space)
        self.agent: str | None = None

    def vectorized(self, copies: int) -> "TreasureHunts":
        """Returns several copies with the same rules, computed together; see `marlcore.envs.vectorize`."""
        return TreasureHunts(self._rules, copies)

    def reset(self, seed: int | None = None) -> None:
        """Begins an episode with everything on random cells; without a seed, the generator continues."""
        if seed is not None:
            self._draws = Draws([seed])
        self._state.begin(self._draws)
        self.agent = self.agents[0]

    def last(self) -> tuple[NDArray[np.float32], float, bool, bool, Mapping[str, Any]]:
        state = self._state
        return state.look(state.index)[0], float(state.earned[state.index, 0]), False, state.is_over, {}

    def step(self, action: int | None) -> None:
        """Moves the agent that acts now; after the agent's last turn, the action None removes it."""
        agent = check_action(self.agent, action, self.agent is not None and self._state.is_over)
        if action is not None:
            if not 0 <= action < 4:
                raise ValueError(f"step: expected an action from 0 to 3 from {agent}, got {action!r}")
            self._state.move(np.array([action]))
        self._state.pass_turn()
        self.agent = self.agents[self._state.index] if self._state.turn <= self._rules.horizon else None

    def close(self) -> None:
        """Does nothing: the environment holds no resources."""


class TreasureHunts(Lockstep):
    """A VectorEnvironment of treasure hunts; it behaves as separate copies with the same seeds do."""

    def __init__(self, rules: Rules, copies: int) -> None:
        super().__init__(copies)
        self._state = state = HuntState(rules, copies)
        self.agents: tuple[str, ...] = rules.names
        self.spaces = dict.fromkeys(self.agents, Spaces(state.observation_space, state.action_space))
        self._seen = {agent: np.zeros((copies, *state.observation_space.shape), np.float32) for agent in self.agents}

    def _begin(self) -> None:
        self._state.begin(self._draws)

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        state, outcomes = self._state, []
        if state.is_over:
            outcomes = [self._outcome(index, over=True) for index in range(len(self.agents))]
            self._begin_next()
        elif state.turn:
            outcomes = [self._outcome(state.index, over=False)]
        agent = self.agents[state.index]
        obs = state.look(state.index, self._seen[agent])
        return outcomes, [Turn(agent, self._all, obs, self._never if state.turn else self._always)]

    def _outcome(self, index: int, *, over: bool) -> Outcome:
        truncated, final_obs = (self._always, self._state.look(index)) if over else (self._never, None)
        reward = self._state.earned[index].copy()
        return Outcome(self.agents[index], self._all, reward, self._never, truncated, final_obs)

    def act(self, turn: Turn, action: NDArray[np.int64]) -> None:
        actions = np.asarray(action)
        fits = actions.shape == (self.copies,) and actions.dtype.kind in "iu"
        if not fits or actions.item(actions.argmin()) < 0 or actions.item(actions.argmax()) > 3:
            raise ValueError(f"action: expected {self.copies} integers from 0 to 3, got {action!r}")
        self._state.move(actions)
        self._state.pass_turn()
