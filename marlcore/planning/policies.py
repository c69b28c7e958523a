"""The result of backward induction: values and policies by agent, state and goal, in one segment of shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..memory import Segment, Shared
from ..unpickling import unpickled
from .goals import Goal, GoalTable
from .kernels.expectations import ACHIEVED, OFFERED
from .layout import Shapes, bind, nbytes_of, pickled


@dataclass(frozen=True)
class AgentPolicies(GoalTable):
    """The arrays of one agent.

    Attributes:
        goals: the goals, in the order of the second axis.
        values: [states, goals], float64, float32 or float16: the discounted probability of achieving the goal.
        policy: [states, goals, actions], float64 or float32. Zero in terminal states, and where a goal is not on
            offer.
        flags: uint8 [states, goals]; `offered` and `achieved` read them.
        weight: float64 [states, goals], the goals' weights; or [1, goals] if these are equal in all states.
    """

    values: NDArray[Any]
    policy: NDArray[Any]

    @property
    def offered(self) -> NDArray[np.bool_]:
        """Whether each state offers each goal: bool [states, goals]."""
        return (self.flags & OFFERED).astype(bool)

    @property
    def achieved(self) -> NDArray[np.bool_]:
        """Whether each state achieves each goal: bool [states, goals]."""
        return (self.flags & ACHIEVED).astype(bool)

    def offers(self, state: int, goal: int) -> bool:
        """Returns whether the state with this number offers the goal with this number."""
        return bool(self.flags[state, goal] & OFFERED)

    def achieves(self, states: Any, goal: int) -> NDArray[np.int8]:
        """Returns int8, in the shape of `states` (numbers of states): 1 if the state achieves the goal, else 0."""
        achieved: NDArray[np.int8] = (self.flags[states, goal] & ACHIEVED).astype(bool).astype(np.int8)
        return achieved

    def on_offer(self, state: int) -> list[int]:
        """Returns the numbers of the goals that the state with this number offers."""
        goals: list[int] = np.flatnonzero(self.flags[state] & OFFERED).tolist()
        return goals

    @property
    def weights(self) -> NDArray[np.float64]:
        """Each goal's weight in each state: float64 [states, goals]."""
        return np.broadcast_to(self.weight, self.flags.shape)

    @property
    def stored(self) -> NDArray[Any]:
        """The values in the form that kernels take: float16 as uint16 with the same bits."""
        return self.values.view(np.uint16) if self.values.dtype == np.float16 else self.values


class Policies(Shared):
    """Values and policies of agents; `policies[agent]` returns one agent's arrays.

    Other processes attach by the handle, or by unpickling this object, and see the same memory. Cloudpickle carries
    the goals.

    Attributes:
        agents: the agents, in the order in which the caller named them.
    """

    kind = "planned policies"

    def _understand(self, segment: Segment) -> None:
        self.agents: tuple[int, ...] = tuple(segment.description["agents"])
        self._arrays = bind(_shapes(segment.description), segment.body)
        self._goals: dict[int, list[Goal]] | None = None

    @classmethod
    def create(cls, tables: Mapping[int, GoalTable], actions: int, dtype: str, policy_dtype: str) -> Policies:
        """Creates values and policies for these agents' goals; all are 0 at first."""
        goals = {agent: table.goals for agent, table in tables.items()}
        content = pickled(goals, "goals: expected something that can be pickled, got {}")
        about = {
            "kind": cls.kind, "agents": [*tables], "states": len(next(iter(tables.values())).flags),
            "actions": actions, "dtype": dtype, "policy_dtype": policy_dtype, "goals": [*map(len, goals.values())],
            "weight_rows": [len(table.weight) for table in tables.values()], "pickled": len(content),
        }  # fmt: skip
        policies = cls(Segment.create("policies", about, nbytes_of(_shapes(about))))
        policies._arrays["pickled"][:] = content
        policies._goals = goals
        for agent, table in tables.items():
            policies[agent].flags[:] = table.flags
            policies[agent].weight[:] = table.weight
        return policies

    def __getitem__(self, agent: int) -> AgentPolicies:
        """Returns an agent's arrays. Raises KeyError for an unknown agent, ClosedError if the policies were closed."""
        self.check_open()
        if self._goals is None:
            self._goals = unpickled(self._arrays["pickled"].tobytes())
        names = ("flags", "weight", "values", "policy")
        return AgentPolicies(self._goals[agent], *(self._arrays[agent, name] for name in names))

    def __repr__(self) -> str:
        about = self._segment.description
        goals = dict(zip(self.agents, about["goals"], strict=True))
        return f"<Policies {self._segment.path} states={about['states']} goals={goals} dtype={about['dtype']}>"

    def close(self) -> None:
        """Releases the memory, unless arrays of it are still in use."""
        self._arrays = {}
        super().close()


def _shapes(about: Mapping[str, Any]) -> Shapes:
    states, actions, dtype = about["states"], about["actions"], about["dtype"]
    shapes: dict[Any, tuple[str, tuple[int, ...]]] = {}
    for agent, goals, weight_rows in zip(about["agents"], about["goals"], about["weight_rows"], strict=True):
        shapes[agent, "values"] = dtype, (states, goals)
        shapes[agent, "policy"] = about["policy_dtype"], (states, goals, actions)
        shapes[agent, "flags"] = "uint8", (states, goals)
        shapes[agent, "weight"] = "float64", (weight_rows, goals)
    return {**shapes, "pickled": ("uint8", (about["pickled"],))}
