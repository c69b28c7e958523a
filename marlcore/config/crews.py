"""The crews of a run: the actors of each machine, and their lanes in the transitions of each policy.

Each part of a policy's transitions has a block of lanes for each machine: first for this one, then for each seat of the
cluster. Each lane of a block belongs to an agent, an actor and a copy of the environment. Another machine holds the
blocks of its own crew alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .config import Config


@dataclass(frozen=True)
class Crew:
    """The actors of one machine: `count` of the run's actors, from the number `first` on."""

    first: int
    count: int

    @property
    def names(self) -> list[str]:
        return [f"actor-{self.first + i}" for i in range(self.count)]

    def lanes(self, parts: int, agents: int, copies: int, of_part: int) -> NDArray[np.int64]:
        """The lanes of its blocks, int64 [parts, agents, actors, copies], in transitions with `of_part` lanes a part.

        Those on its own machine; beside the learner, `block_begins` lanes further.
        """
        block = np.arange(agents * self.count * copies)
        lanes: NDArray[np.int64] = of_part * np.arange(parts)[:, None] + block
        return lanes.reshape(parts, agents, self.count, copies)

    def block_begins(self, agents: int, copies: int) -> int:
        """The first lane of its block in each part of the transitions beside the learner."""
        return self.first * agents * copies


def crews(config: Config) -> list[Crew]:
    """This machine's crew, and that of each seat of the cluster."""
    here, each = config.actor.processes, config.cluster.actors_per_node
    return [Crew(0, here), *(Crew(here + seat * each, each) for seat in range(config.cluster.seats))]


def actor_names(config: Config) -> list[str]:
    """The actors of this machine."""
    return crews(config)[0].names


def node_names(config: Config) -> list[str]:
    """The seats of the cluster."""
    return [f"node-{seat}" for seat in range(config.cluster.seats)]
