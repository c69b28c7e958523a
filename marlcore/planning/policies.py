"""The result of backward induction: values and policies by agent, state and goal, in one segment of shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from ..errors import pass_on_from_handler
from ..kernels.backup import ACHIEVED, OFFERED
from ..memory import LINE, Segment, Shared
from .goals import Goal, GoalTable


@dataclass(frozen=True)
class AgentPolicies:
    """One agent's arrays.

    Attributes:
        goals: the goals, in the order of the second axis.
        values: [states, goals], float64, float32 or float16: the discounted probability of achieving the goal.
        policy: [states, goals, actions], float64, or float32 with narrower values. Zero in terminal states, and where
            a goal is not on offer.
        flags: uint8 [states, goals], bits of kernels.backup.
        weight: float64 [states, goals] or [1, goals].
    """

    goals: list[Goal]
    values: NDArray[Any]
    policy: NDArray[Any]
    flags: NDArray[np.uint8]
    weight: NDArray[np.float64]

    @property
    def offered(self) -> NDArray[np.bool_]:
        """Whether a goal is on offer: bool [states, goals]."""
        return (self.flags & OFFERED).astype(bool)

    @property
    def achieved(self) -> NDArray[np.bool_]:
        """Whether a state achieves a goal: bool [states, goals]."""
        return (self.flags & ACHIEVED).astype(bool)

    def on_offer(self, state: int) -> list[int]:
        """The numbers of the goals on offer in a state, by its number."""
        found: list[int] = np.flatnonzero(self.flags[state] & OFFERED).tolist()
        return found

    @property
    def stored(self) -> NDArray[Any]:
        """The values as kernels see them: float16 as its bits."""
        return self.values.view(np.uint16) if self.values.dtype == np.float16 else self.values


class Policies(Shared):
    """Values and policies of agents; `policies[agent]` has one agent's arrays.

    Other processes attach by the handle, or by getting the object itself, and see the same memory. The goals travel by
    cloudpickle.

    Attributes:
        agents: the agents, in the order asked for.
    """

    kind = "planned policies"

    def _understand(self, segment: Segment) -> None:
        about = segment.description
        self.agents: tuple[int, ...] = tuple(about["agents"])
        self._of: dict[int, dict[str, NDArray[Any]]] = {}
        at = 0
        for agent, goals, rows in zip(self.agents, about["goals"], about["weight_rows"], strict=True):
            self._of[agent] = {}
            for name, dtype, *shape in _arrays(about["states"], goals, rows, about["actions"], about["dtype"]):
                nbytes = _nbytes(dtype, shape)
                self._of[agent][name] = segment.body[at : at + nbytes].view(dtype).reshape(shape)
                at += _padded(nbytes)
        self._pickled = segment.body[at : at + about["pickled"]]
        self._goals: dict[int, list[Goal]] | None = None

    @classmethod
    def create(cls, tables: Mapping[int, GoalTable], actions: int, dtype: str) -> Policies:
        """Zeroed values and policies for these agents' goals.

        Raises: SharedMemoryFull: no room. TypeError: a goal cannot be pickled.
        """
        goals = {agent: table.goals for agent, table in tables.items()}
        pickled = np.frombuffer(_pickle(goals), np.uint8)
        counts = [len(one) for one in goals.values()]
        rows = [len(table.weight) for table in tables.values()]
        states = len(next(iter(tables.values())).flags)
        about = {
            "kind": cls.kind, "agents": [*tables], "states": states, "actions": actions, "dtype": dtype,
            "goals": counts, "weight_rows": rows, "pickled": len(pickled),
        }  # fmt: skip
        arrays = [one for each in zip(counts, rows, strict=True) for one in _arrays(states, *each, actions, dtype)]
        nbytes = sum(_padded(_nbytes(kind, shape)) for _, kind, *shape in arrays)
        policies = cls(Segment.create("policies", about, nbytes + len(pickled)))
        policies._pickled[:] = pickled
        policies._goals = goals
        for agent, table in tables.items():
            policies._of[agent]["flags"][:] = table.flags
            policies._of[agent]["weight"][:] = table.weight
        return policies

    def __getitem__(self, agent: int) -> AgentPolicies:
        """Raises ClosedError: the policies were closed. KeyError: they have no such agent."""
        self.check_open()
        if self._goals is None:
            self._goals = cloudpickle.loads(self._pickled.tobytes())
        return AgentPolicies(self._goals[agent], **self._of[agent])

    def __repr__(self) -> str:
        about = self._segment.description
        goals = dict(zip(self.agents, about["goals"], strict=True))
        return f"<Policies {self._segment.path} states={about['states']} goals={goals} dtype={about['dtype']}>"

    def close(self) -> None:
        """Releases the memory; arrays that are still in use keep it."""
        self._of, self._pickled = {}, np.zeros(0, np.uint8)
        super().close()


def _pickle(goals: dict[int, list[Goal]]) -> bytes:
    try:
        pickled: bytes = cloudpickle.dumps(goals)
        return pickled
    except Exception as error:  # a class's own pickling may raise anything
        pass_on_from_handler(error)
        raise TypeError(
            f"goals: expected something that can be pickled, got {type(error).__name__}: {error}"
        ) from error


def _arrays(states: int, goals: int, weight_rows: int, actions: int, dtype: str) -> list[tuple[Any, ...]]:
    """One agent's arrays in their order: name, dtype, and axes."""
    return [
        ("values", dtype, states, goals),
        ("policy", "float64" if dtype == "float64" else "float32", states, goals, actions),
        ("flags", "uint8", states, goals),
        ("weight", "float64", weight_rows, goals),
    ]


def _nbytes(dtype: str, shape: list[int]) -> int:
    return int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64))


def _padded(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE
