"""Routes: an episode's tag decides in which part of a policy's replay its rows lie; learners mix the parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

from ..errors import EnvironmentFailed
from ..interfaces import Outcome, Turn
from .actor import Seat

__all__ = ["RoutedSeat", "Routes"]


class Routes:
    """The parts of a replay by tag; a tag "anchor:weak" belongs to the part of that name, otherwise to "anchor".

    Args:
        names: of the parts; without any, the replay has one part for all.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)

    def part_of(self, tag: Any) -> int:
        """The number of a tag's part. Raises ValueError: it has none."""
        if not self._names:
            return 0
        for name in (tag, tag.partition(":")[0]) if isinstance(tag, str) else ():
            if name in self._names:
                return self._names.index(name)
        raise ValueError(f"tag: expected one of {self._names}, as replay.mixture has them, got {tag!r}")


class RoutedSeat:
    """A seat whose episodes have tags from the environment: `info["tag"]` at the agent's first turn.

    Raises: EnvironmentFailed, from `act`: an episode has no tag, or one without a part.
    """

    def __init__(self, agent: str, seat: Seat, routes: Routes) -> None:
        self._agent = agent
        self._seat = seat
        self._routes = routes

    def finish(self, outcome: Outcome) -> None:
        """Takes in the results of earlier actions."""
        self._seat.finish(outcome)

    def act(self, turn: Turn) -> NDArray[Any]:
        """Chooses the actions of a turn."""
        for copy in turn.copies[turn.begins].tolist():
            try:
                self._seat.parts[copy] = self._routes.part_of(turn.tags.get(copy))
            except ValueError as error:
                raise EnvironmentFailed(f"environment copy {copy}, {self._agent}: {error}") from None
        return self._seat.act(turn)
