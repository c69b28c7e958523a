"""An agent's spaces, as Gymnasium defines them, and the arrays that hold their values in rows and networks."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from .checks import brief, check_whole
from .observations import ALONE, Values, in_form, part_name
from .spec import Field

MASK = "action_mask"  # PettingZoo's name
JOINT = "joint_observation"  # the part of an observation that is for critics alone; see envs/joint.py
MEMBERS = "members"  # the part of a team's observation that holds those of its members; see envs/team.py
ALIVE = "alive"  # the part that says which members act


@dataclass(frozen=True)
class SpacePart:
    """One array of a space: the space itself, or a space inside a Dict or Tuple."""

    name: str  # of the part and of its field: the `keys` joined by "__"
    keys: tuple[Any, ...]  # that lead from the whole space to the part; empty for the space itself
    space: gym.Space  # a Box, Discrete, MultiBinary or MultiDiscrete

    @cached_property
    def field(self) -> Field:
        """The shape and dtype of a value; a value of a Discrete is one int64."""
        return Field(self.space.shape, np.dtype(self.space.dtype).name)

    def of(self, value: Any) -> Any:
        """Returns this part of a value of the whole space."""
        for key in self.keys:
            value = value[key]
        return value


@dataclass(frozen=True)
class Spaces:
    """The spaces of an agent's observations and actions.

    Attributes:
        observation: a Box, Discrete, MultiBinary or MultiDiscrete, or a Dict or Tuple of these, also nested, without
            the action mask. Rows leave out a Text, and a part without values such as a Box of shape (0,).
        action: a Box, Discrete, MultiBinary or MultiDiscrete. Rows hold actions of a Discrete or MultiDiscrete
            counted from 0, whatever the space's start.
        masked: whether each observation comes with a mask of the allowed actions. A mask is bool [n] for a Discrete;
            for a MultiDiscrete it is bool [sum of nvec], component after component.
        stack: number of observations in a network's input; with 1, the input has no axis for them.

    Raises: ValueError: a space is of another kind (the message names the part), or `stack` is less than 1.
    """

    observation: gym.Space
    action: gym.Space
    masked: bool = False
    stack: int = 1

    def __post_init__(self) -> None:
        check_whole("stack", self.stack)
        if isinstance(self.action, (gym.Dict, gym.Tuple)):
            raise ValueError(f"action space: expected a Box, Discrete, MultiBinary or MultiDiscrete, got {self.action}")
        parts_of("action space", self.action)
        if self.masked and not isinstance(self.action, (gym.Discrete, gym.MultiDiscrete)):
            raise ValueError(f"{MASK}: expected none for the action space {self.action}")
        if self.masked and any(part.name == MASK for part in self.parts):
            raise ValueError(f"observation space: expected no part {MASK!r}, the mask's name, got {self.observation}")

    @cached_property
    def parts(self) -> tuple[SpacePart, ...]:
        """The arrays of an observation, without the mask."""
        return parts_of("observation space", self.observation)

    @cached_property
    def left_out(self) -> tuple[str, ...]:
        """The names of an observation's texts and empty arrays, which no network takes."""
        return tuple(part_name(keys) for _, keys, leaf in _leaves("", self.observation) if _is_left_out(leaf))

    @cached_property
    def obs(self) -> Field | dict[str, Field]:
        """An observation's field in a row; a dict of fields if the space has several parts, or there is a mask."""
        fields = {part.name: part.field for part in self.parts}
        if self.masked:
            return fields | {MASK: Field((self.choices,), "bool")}
        return fields if isinstance(self.observation, (gym.Dict, gym.Tuple)) else fields[ALONE]

    @cached_property
    def action_field(self) -> Field:
        """An action's field in a row."""
        return parts_of("action space", self.action)[0].field

    @cached_property
    def choices(self) -> int:
        """The length of an action mask."""
        return int(self.action.n) if isinstance(self.action, gym.Discrete) else int(np.sum(self.action.nvec))

    @cached_property
    def mask_starts(self) -> NDArray[np.int64]:
        """The index in a mask at which each component of an action begins: [0] for a Discrete."""
        sizes = np.atleast_1d(getattr(self.action, "nvec", self.choices))
        starts: NDArray[np.int64] = np.cumsum(sizes) - sizes
        return starts

    def with_choices(self, mask: NDArray[Any]) -> NDArray[Any]:
        """Returns a mask [..., choices] that allows all choices of each component of which `mask` allows none."""
        empty = ~np.logical_or.reduceat(mask, self.mask_starts, axis=-1)
        allowed: NDArray[Any] = mask | np.repeat(empty, np.diff(self.mask_starts, append=self.choices), axis=-1)
        return allowed

    @cached_property
    def action_start(self) -> NDArray[np.int64]:
        """The `start` of a Discrete or MultiDiscrete, otherwise 0: the environment's action that a row stores as 0."""
        return np.asarray(getattr(self.action, "start", 0), np.int64)

    def shifted(self, action: NDArray[Any]) -> NDArray[Any]:
        """Converts actions [k, ...] from rows, which count from 0, to the environment's, which count from `start`."""
        return action + self.action_start if self.is_shifted else action

    def first_refused(self, action: NDArray[Any]) -> int | None:
        """Returns the index of the first of the rows' actions [k, ...] that is outside the space; None if all fit."""
        low, high, inside = self._action_bounds
        if low is not None:
            wrong = (action < low) | (action > high)
        else:
            numbers = action.view(f"u{action.itemsize}")  # negative numbers become the largest
            if not numbers.size or numbers.item(numbers.argmax()) <= inside:
                return None
            wrong = numbers > high
        return int(wrong.reshape(len(action), -1).any(axis=1).argmax()) if np.count_nonzero(wrong) else None

    @cached_property
    def _action_bounds(self) -> tuple[Any, Any, Any]:
        """(low, high, None) for a Box; otherwise (None, high, the least of high)."""
        space = self.action
        if isinstance(space, gym.Box):
            return space.low, space.high, None
        high = (2 if isinstance(space, gym.MultiBinary) else getattr(space, "nvec", getattr(space, "n", 0))) - 1
        return None, high, int(np.min(high))

    @cached_property
    def is_shifted(self) -> bool:
        """Whether `shifted` changes actions."""
        return bool(self.action_start.any())

    def mask_in(self, obs: Any) -> Any:
        """Returns the masks [..., choices] of the newest frames in a network's input; None without masks."""
        if not self.masked:
            return None
        return obs[MASK][..., -1, :] if self.stack > 1 else obs[MASK]

    def values(self, observation: Any, mask: Any = None) -> Values:
        """Returns an observation, or several along a leading axis, as arrays in the form of `obs`.

        Raises ValueError if a part or a needed mask is missing.
        """
        if self.masked and mask is None:
            raise ValueError(f"{MASK}: expected {self.choices} booleans, got None")
        try:
            arrays = {part.name: np.asarray(part.of(observation)) for part in self.parts}
        except (KeyError, IndexError, TypeError):
            expected = ", ".join(repr(part.keys[0] if len(part.keys) == 1 else part.keys) for part in self.parts)
            raise ValueError(f"obs: expected a value with the keys {expected}, got {brief(observation)}") from None
        if self.masked:
            arrays[MASK] = np.asarray(mask)
        return in_form(arrays, self.obs)


def parts_of(label: str, space: gym.Space) -> tuple[SpacePart, ...]:
    """Returns a space's parts, in the order of its keys.

    Raises: ValueError: a space is of another kind, or two parts have one name; the message has `label` and the part.
    """
    parts = tuple(_part(*leaf) for leaf in _leaves(label, space) if not (leaf[1] and _is_left_out(leaf[2])))
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise ValueError(f"{label}: expected parts with different names, got {sorted(names)}")
    if not parts:
        raise ValueError(f"{label}: expected at least one part, got {space}")
    return parts


def is_text(space: Any) -> bool:
    """Whether the space is a Text, or another space of strings, such as MiniGrid's missions."""
    return isinstance(space, gym.Space) and getattr(space.dtype, "kind", "") == "U"


def _is_left_out(space: Any) -> bool:
    return is_text(space) or 0 in (getattr(space, "shape", None) or ())


def _leaves(label: str, space: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """Yields the spaces inside Dicts and Tuples, each with its label and the keys that lead to it."""
    if not isinstance(space, (gym.Dict, gym.Tuple)):
        yield label, keys, space
        return
    for key, inside in space.spaces.items() if isinstance(space, gym.Dict) else enumerate(space.spaces):
        yield from _leaves(f"{label}[{key!r}]", inside, (*keys, key))


def _part(label: str, keys: tuple[Any, ...], space: Any) -> SpacePart:
    if not isinstance(space, (gym.Box, gym.Discrete, gym.MultiBinary, gym.MultiDiscrete)):
        expected = "a Box, Discrete, MultiBinary, MultiDiscrete, or a Dict or Tuple of these"
        raise ValueError(f"{label}: expected {expected}, got {space!r}")
    if isinstance(space, gym.MultiDiscrete) and space.nvec.ndim != 1:
        raise ValueError(f"{label}: expected a MultiDiscrete with one axis, got {space!r}")
    part = SpacePart(part_name(keys), keys, space)
    try:
        part.field  # noqa: B018 it checks the shape
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None
    return part
