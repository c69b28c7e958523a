"""Joins the spaces, observations and actions of a team's members, in one or several copies of an environment."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from ..checks import brief
from ..observations import ALONE
from ..spaces import ALIVE, MASK, MEMBERS, Spaces
from ..spec import Field

Arrays = dict[str, NDArray[Any]]  # a team's observations by part, [k, ...], with the masks


class Team:
    """Joins some agents of an environment into one; `members` holds their spaces.

    Members with equal spaces form a group, whose observations are one array [members, ...]: the part "members" of the
    team's observation, or "members_0", "members_1" and so on for several groups. The part "alive" tells which members
    act. The action is a MultiDiscrete with a component for each member, or a Box [members, components], flat if members
    have unequal numbers of components. In "alive" and in the action, members have the order of the groups. An absent
    member observes zeros; if the team has masks, the absent member's mask allows only its first action.

    Attributes:
        members: the spaces of each member by name, in the order of the groups.
        numbers: each member's index in `members`.
        fields: the field of each member's observation in the team's observation: a Box unchanged, other spaces
            flattened to float32.

    Raises: ValueError: the members' actions are neither all Discrete nor all a Box of floats.
    """

    def __init__(self, name: str, members: Mapping[str, Spaces]) -> None:
        groups: list[list[str]] = []
        for member, spaces in members.items():
            pair = spaces.observation, spaces.action
            alike = (group for group in groups if pair == (members[group[0]].observation, members[group[0]].action))
            group = next(alike, None)
            groups.append([member]) if group is None else group.append(member)
        self.members = {member: members[member] for group in groups for member in group}
        self.numbers = {member: number for number, member in enumerate(self.members)}
        plain = {
            member: space if isinstance(space, gym.Box) else gym.Box(-np.inf, np.inf, (gym.flatdim(space),))
            for member, space in ((member, spaces.observation) for member, spaces in self.members.items())
        }
        self.fields = {member: Field(space.shape, np.dtype(space.dtype).name) for member, space in plain.items()}
        names = [MEMBERS] if len(groups) == 1 else [f"{MEMBERS}_{number}" for number in range(len(groups))]
        self._groups = dict(zip(names, groups, strict=True))
        self._rows = {group[row]: (part, row) for part, group in self._groups.items() for row in range(len(group))}
        self.action_space, sizes = _joined_actions(name, [spaces.action for spaces in self.members.values()])
        ends = np.cumsum(sizes).tolist()
        self._columns = dict(zip(self.members, map(slice, [0, *ends[:-1]], ends), strict=True))
        parts = {part: batch_space(plain[group[0]], len(group)) for part, group in self._groups.items()}
        self.observation_space = gym.Dict({**parts, ALIVE: gym.MultiBinary(len(members))})
        self.masked = any(spaces.masked for spaces in members.values())
        if self.masked:
            self.observation_space = gym.Dict({ALONE: self.observation_space, MASK: gym.MultiBinary(sum(sizes))})

    def empty(self, rows: int) -> Arrays:
        """Returns `rows` team observations in which every member is absent."""
        arrays = {part: self.fields[group[0]].zeros(rows, len(group)) for part, group in self._groups.items()}
        arrays[ALIVE] = np.zeros((rows, len(self.members)), np.int8)
        if self.masked:
            arrays[MASK] = np.zeros((rows, int(self.action_space.nvec.sum())), np.int8)
            arrays[MASK][:, [columns.start for columns in self._columns.values()]] = 1
        return arrays

    def place(self, arrays: Arrays, member: str, at: Any, seen: NDArray[Any]) -> None:
        """Writes a member's observations [k, ...] into the rows `at`."""
        part, row = self._rows[member]
        arrays[part][at, row] = seen

    def allow(self, arrays: Arrays, member: str, at: Any, mask: Any) -> None:
        """Writes the masks [k, choices] of a member that acts into the rows `at`; True allows all actions."""
        arrays[MASK][at, self._columns[member]] = mask

    def actions(self, action: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Splits the team's actions [k, ...] into each member's actions [k, ...]."""
        if isinstance(self.action_space, gym.MultiDiscrete):
            return dict(zip(self.members, np.ascontiguousarray(action.T), strict=True))
        flat = action.reshape(len(action), -1)
        return {
            member: flat[:, self._columns[member]].reshape(-1, *spaces.action.shape).astype(spaces.action.dtype)
            for member, spaces in self.members.items()
        }


def _joined_actions(team: str, spaces: list[gym.Space]) -> tuple[gym.Space, list[int]]:
    """Returns one space for all members' actions, and each member's number of choices or components."""
    if all(isinstance(space, gym.Discrete) for space in spaces):
        sizes = [int(space.n) for space in spaces]
        return gym.MultiDiscrete(sizes, start=[int(space.start) for space in spaces]), sizes
    if all(isinstance(space, gym.Box) and np.dtype(space.dtype).kind == "f" for space in spaces):
        low, high = (np.concatenate([getattr(space, bound).ravel() for space in spaces]) for bound in ("low", "high"))
        sizes = [int(np.prod(space.shape)) for space in spaces]
        if len(set(sizes)) == 1:
            low, high = (bound.reshape(len(sizes), -1) for bound in (low, high))
        return gym.Box(low, high, dtype=low.dtype), sizes
    raise ValueError(f"team {team}: expected only Discrete actions, or only Boxes of floats, got {brief(spaces)}")
