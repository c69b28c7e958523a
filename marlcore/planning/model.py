"""The interface of world models, and their agents' action profiles."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence, Sized
from functools import cached_property
from itertools import product
from typing import Any, Protocol

from ..checks import check_whole

MOST_PROFILES = 2**31
_KEPT = 2**16  # up to this number, profiles are kept as a list; otherwise they are made again for each state

Outcomes = Sequence[tuple[float, Hashable]]
Transition = Callable[[Any, tuple[int, ...]], Outcomes | None]  # a model's transition_probabilities


class WorldModel(Protocol):
    """A finite world in which several agents act at the same time.

    States are hashable. Equal states have equal hashes in every process, so a state must not pickle a string's hash. If
    states can be compared by <, and two states may come in either order in the graph, the smaller state comes first.
    The model is deterministic: the same state and profile give the same outcomes in the same order in every process, so
    the model must not iterate over a set of strings.

    Attributes:
        agents: one entry for each agent.
        action_space: has `n`, the number of actions of each agent.
    """

    @property
    def agents(self) -> Sized: ...

    @property
    def action_space(self) -> Any: ...

    def reset(self) -> object:
        """Makes the initial state the current state."""

    def get_state(self) -> Hashable:
        """Returns the current state."""

    def set_state(self, state: Any) -> None:
        """Makes `state` the current state."""

    def transition_probabilities(self, state: Any, action_profile: tuple[int, ...]) -> Outcomes | None:
        """Returns the outcomes of a profile, one action for each agent, as pairs (probability, successor).

        Returns None if the state is terminal or the profile is not possible in that state.
        """


class Profiles:
    """All action profiles, ordered by index, the sum of action_i * actions^i; agent 0's action varies fastest."""

    def __init__(self, agents: int, actions: int) -> None:
        """Raises ValueError if there is no agent, no action, or more than 2^31 profiles."""
        check_whole("agents", agents)
        check_whole("action_space.n", actions)
        if int(actions) ** int(agents) > MOST_PROFILES:
            raise ValueError(f"profiles: expected at most 2^31 profiles, got {actions}^{agents} for {agents} agents")
        self.agents, self.actions = int(agents), int(actions)

    def __reduce__(self) -> tuple[type[Profiles], tuple[int, int]]:
        return Profiles, (self.agents, self.actions)

    def __len__(self) -> int:
        return int(self.actions**self.agents)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return self._all() if self._kept is None else iter(self._kept)

    def __getitem__(self, index: int) -> tuple[int, ...]:
        return tuple(index // self.actions**agent % self.actions for agent in range(self.agents))

    @cached_property
    def _kept(self) -> list[tuple[int, ...]] | None:
        return [*self._all()] if len(self) <= _KEPT else None

    def _all(self) -> Iterator[tuple[int, ...]]:
        return (profile[::-1] for profile in product(range(self.actions), repeat=self.agents))
