"""Routes: an episode's tag decides in which part of a policy's replay its rows lie; learners mix the parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import EnvironmentFailed
from ...interfaces import Turn
from .seat import Ended, Seat


@dataclass(frozen=True)
class Routes:
    """The assignment of episodes to parts of the replay by `info["tag"]` at the agent's first turn."""

    names: list[str]  # of the parts
    seats: Mapping[str, Seat]  # by agent; it fills their column `parts`

    def begin(self, turn: Turn) -> None:
        """Raises EnvironmentFailed: an episode has no tag, or one without a part."""
        if turn.agent not in self.seats:
            return
        for copy in turn.copies[turn.begins].tolist():
            try:
                self.seats[turn.agent].parts[copy] = part_of_tag(turn.tags.get(copy), self.names)
            except ValueError as error:
                raise EnvironmentFailed(f"environment copy {copy}, {turn.agent}: {error}") from None

    def note(self, ended: Ended) -> None:
        """Routes do not depend on outcomes."""


def part_of_tag(tag: Any, names: list[str]) -> int:
    """The number of a tag's part; a tag "anchor:weak" belongs to the part of that name, otherwise to "anchor".

    Args:
        names: of the parts; without any, the replay has one part for all.

    Raises: ValueError: it has no part.
    """
    if not names:
        return 0
    for name in (tag, tag.partition(":")[0]) if isinstance(tag, str) else ():
        if name in names:
            return names.index(name)
    raise ValueError(f"tag: expected one of {names}, as replay.mixture has them, got {tag!r}")
