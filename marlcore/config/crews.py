"""The crews of a run: the actors of each machine, and their lanes in each policy's replay or queue.

Each part of a replay has a block of lanes for each machine: first for this machine, then for each seat of the cluster.
Each lane of a block belongs to an agent, an actor and a copy of the environment. The cluster's machines hold only their
own blocks.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .config import Config


@dataclass(frozen=True)
class Crew:
    """The actors of one machine: numbers `first` to `first` + `count` - 1 of the run's actors."""

    first: int
    count: int

    @property
    def names(self) -> list[str]:
        return [f"actor-{self.first + i}" for i in range(self.count)]

    def lanes(self, parts: int, agents: int, copies: int, of_part: int) -> NDArray[np.int64]:
        """Returns the crew's lanes, int64 [parts, agents, actors, copies], if each part has `of_part` lanes.

        These are lane numbers on the crew's own machine; on the learner's machine, add `block_begins`.
        """
        block = np.arange(agents * self.count * copies)
        lanes: NDArray[np.int64] = of_part * np.arange(parts)[:, None] + block
        return lanes.reshape(parts, agents, self.count, copies)

    def block_begins(self, agents: int, copies: int) -> int:
        """Returns the first lane of the crew's block in each part of the replay on the learner's machine."""
        return self.first * agents * copies


def crews(config: Config) -> list[Crew]:
    """Returns this machine's crew, then the crew of each seat (the place of another machine in the cluster)."""
    here, each = config.actor.processes, config.cluster.actors_per_node
    return [Crew(0, here), *(Crew(here + seat * each, each) for seat in range(config.cluster.seats))]


def actor_names(config: Config) -> list[str]:
    return crews(config)[0].names


def node_names(config: Config) -> list[str]:
    """Returns the names of the cluster's seats."""
    return [f"node-{seat}" for seat in range(config.cluster.seats)]
