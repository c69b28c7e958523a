"""World models for tests: doors, slippery ground, diamonds with dead ends, and any table of transitions."""

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

MOVES = [(0, 0), (0, 1), (1, 0), (0, -1), (-1, 0)]


class World:
    def __init__(self, agents: int, actions: int, start: Any) -> None:
        self.agents = [f"agent_{i}" for i in range(agents)]
        self.action_space = SimpleNamespace(n=actions)
        self._start = self._state = start

    def reset(self) -> None:
        self._state = self._start

    def get_state(self) -> Any:
        return self._state

    def set_state(self, state: Any) -> None:
        self._state = state


class Doors(World):
    """Agents walk on a grid; a wall in the middle has a door, which is open while an agent stands on the switch.

    A state is (steps taken, positions, whether the door was ever opened). A move off the grid, into the wall or onto a
    smaller agent's new place is not possible with that profile.
    """

    def __init__(self, agents: int = 2, width: int = 4, height: int = 2, horizon: int = 4) -> None:
        super().__init__(agents, len(MOVES), (0, tuple((0, i) for i in range(agents)), False))
        self._size, self._horizon = (width, height), horizon

    def transition_probabilities(self, state: Any, profile: Any) -> list[tuple[float, Any]] | None:
        steps, places, opened = state
        if steps == self._horizon:
            return None
        after: list[tuple[int, int]] = []
        for (x, y), action in zip(places, profile, strict=True):
            place = (x + MOVES[action][0], y + MOVES[action][1])
            if place in after or not self._is_free(place, opened):
                return None
            after.append(place)
        return [(1.0, (steps + 1, tuple(after), opened or (0, 0) in after))]

    def _is_free(self, place: tuple[int, int], opened: bool) -> bool:
        (x, y), (width, height) = place, self._size
        return 0 <= x < width and 0 <= y < height and (x != width // 2 or (y == 0 and opened))


class Slippery(World):
    """Agents on a line slip with some chance, so that a profile has up to 2^agents outcomes, some of them equal."""

    def __init__(self, agents: int = 2, length: int = 4, horizon: int = 4, slip: float = 0.1) -> None:
        super().__init__(agents, 3, (0, (0,) * agents))
        self._length, self._horizon, self._slip = length, horizon, slip

    def transition_probabilities(self, state: Any, profile: Any) -> list[tuple[float, Any]] | None:
        steps, places = state
        if steps == self._horizon:
            return None
        outcomes: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
        for place, action in zip(places, profile, strict=True):
            moved = min(max(place + action - 1, 0), self._length - 1)
            outcomes = [
                (p * chance, (*done, to))
                for p, done in outcomes
                for chance, to in ((1.0 - self._slip, moved), (self._slip, place))
            ]
        return [(p, (steps + 1, done)) for p, done in outcomes]


class Slow(Slippery):
    """Its graph takes so long that each worker still has states to expand when it is seen."""

    def transition_probabilities(self, state: Any, profile: Any) -> Any:
        time.sleep(0.001)
        return super().transition_probabilities(state, profile)


@dataclass(frozen=True)
class Cell:
    """A state without an order."""

    depth: int
    place: int


class Diamonds(World):
    """Paths part and meet again (diamonds); every seventh place is a dead end; some profiles skip a step.

    Args:
        named: states are Cells, which do not compare.
    """

    def __init__(self, agents: int = 2, depth: int = 8, named: bool = False) -> None:
        self._make: Any = Cell if named else lambda depth, place: (depth, place)
        super().__init__(agents, 2, self._make(0, 0))
        self._depth, self._named = depth, named

    def __reduce__(self) -> Any:
        return Diamonds, (len(self.agents), self._depth, self._named)

    def transition_probabilities(self, state: Any, profile: Any) -> list[tuple[float, Any]] | None:
        depth, place = (state.depth, state.place) if self._named else state
        if depth == self._depth or (depth and place % 7 == 3):
            return None
        step = 2 if sum(profile) == len(profile) and depth + 2 <= self._depth else 1
        chances = {place + sum(profile): 0.5, place + (place + profile[0]) % 2: 0.25, abs(place - 1): 0.25}
        left = 1.0 - sum(chances.values())
        outcomes = [(p, self._make(depth + step, to)) for to, p in chances.items()]
        return [*outcomes, (left, self._make(self._depth, 0))] if left else outcomes


class Table(World):
    """Any transitions: {state: {profile: [(probability, successor), ...]}}, from the state `start` on."""

    def __init__(self, agents: int, actions: int, table: dict[Any, dict[Any, Any]], start: Any = 0) -> None:
        super().__init__(agents, actions, start)
        self.table = table

    def transition_probabilities(self, state: Any, profile: Any) -> Any:
        return self.table.get(state, {}).get(tuple(profile))
