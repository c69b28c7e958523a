"""The fields of a transition, checked once: their names, shapes and dtypes; and windows of transitions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checks import brief, check_type, check_whole, is_whole, names_error
from .observations import by_name, each

RESERVED_NAMES = frozenset(
    {"obs", "next_obs", "final_obs", "action", "reward", "terminated", "truncated", "policy_version"}
)
_KINDS = "biufc"
MAX_BYTES = 2**47  # of one array: the size of a process's address space
MAX_AXES = 24  # a batch has up to three more, and NumPy allows 32
MAX_EVERY = 2**23  # an episode's row counter ends below 2^24 and then continues at about half of that


@dataclass(frozen=True)
class Field:
    """One array of a transition.

    Attributes:
        shape: the array's shape in one transition, () for a scalar; every extent is at least 1.
        dtype: a NumPy dtype name of booleans, integers, floats or complex numbers, in native byte order.
        every: 1 stores the field in each row. For recurrent state, an extra may have a k > 1, up to 2^23: rows k, 2k,
            3k, ... of an episode store the field, and row 0 and all others do not. Sequences then begin at row 0 or at
            a row that stores it.
    """

    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    every: int = 1

    def __post_init__(self) -> None:
        shape = (self.shape,) if isinstance(self.shape, int) else self.shape
        if not isinstance(shape, (tuple, list)) or not all(is_whole(n) and n >= 1 for n in shape):
            raise ValueError(f"Field shape: expected a tuple of positive integers, got {self.shape!r}")
        if len(shape) > MAX_AXES:
            raise ValueError(f"Field shape: expected at most {MAX_AXES} axes, got {len(shape)}")
        try:
            if self.dtype is None:  # which NumPy reads as float64
                raise TypeError
            dtype = np.dtype(self.dtype)
        except (TypeError, SyntaxError):  # NumPy parses a name that has a comma
            raise TypeError(f"Field dtype: expected a NumPy dtype name, got {self.dtype!r}") from None
        if dtype.kind not in _KINDS or not dtype.isnative:
            raise TypeError(f"Field dtype: expected a native bool, integer, float or complex, got {dtype!r}")
        check_whole("Field every", self.every, 1, MAX_EVERY)
        if math.prod(map(int, shape)) > MAX_BYTES // dtype.itemsize:
            raise ValueError(f"Field shape: expected an array of at most {MAX_BYTES} bytes, got {self.shape!r}")
        object.__setattr__(self, "every", int(self.every))
        object.__setattr__(self, "shape", tuple(int(n) for n in shape))
        object.__setattr__(self, "dtype", dtype.name)

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The dtype as a `numpy.dtype`."""
        return np.dtype(self.dtype)

    def zeros(self, *axes: int) -> NDArray[Any]:
        """Returns an array [*axes, *shape] of zeros."""
        return np.zeros((*axes, *self.shape), self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the field in one transition."""
        return math.prod(self.shape) * self.numpy.itemsize

    def describe(self) -> str:
        """Returns a short form for error messages, such as float32 (4,)."""
        return f"{self.dtype} {self.shape}" + (f" every {self.every}" if self.every > 1 else "")


@dataclass(frozen=True)
class TransitionSpec:
    """The fields of a transition.

    Attributes:
        obs: the observation: one Field, or a dict of named Fields.
        action: the action.
        extras: further named fields of each transition, such as log_prob.
        next_obs: True stores next_obs in the row itself, for rows that do not follow one another. Otherwise next_obs
            is the next row's obs, so that each frame is stored once.
    """

    obs: Field | Mapping[str, Field]
    action: Field
    extras: Mapping[str, Field] = field(default_factory=dict)
    next_obs: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.obs, Mapping):
            object.__setattr__(self, "obs", _checked_fields("TransitionSpec obs", self.obs))
            if not self.obs:
                raise ValueError("TransitionSpec obs: expected at least one Field, got an empty dict")
        check_type("TransitionSpec obs", self.obs, (Field, dict), expected="a Field or a dict of Fields")
        check_type("TransitionSpec action", self.action, Field)
        object.__setattr__(self, "extras", _checked_fields("TransitionSpec extras", self.extras))
        if reserved := RESERVED_NAMES & self.extras.keys():
            raise ValueError(f"TransitionSpec extras: {min(reserved)!r} is the name of a built-in field")
        obs = self.obs if isinstance(self.obs, Mapping) else {"obs": self.obs}
        for label, part in [*obs.items(), ("action", self.action)]:
            if part.every != 1:
                raise ValueError(f"TransitionSpec {label}: expected every=1, got every={part.every}")
        intervals = {extra.every for extra in self.extras.values()} - {1}
        if len(intervals) > 1:
            raise ValueError(f"TransitionSpec extras: expected one interval for all, got every={sorted(intervals)}")
        if intervals and self.next_obs:
            raise ValueError(
                "TransitionSpec extras: expected every=1, since rows with next_obs do not follow one another"
            )
        check_type("TransitionSpec next_obs", self.next_obs, bool)

    @classmethod
    def from_spaces(
        cls, observation_space: Any, action_space: Any, *, next_obs: bool = False, **extras: Field
    ) -> "TransitionSpec":
        """Returns the spec of an environment's transitions, from its Gymnasium spaces.

        A Box, Discrete, MultiDiscrete or MultiBinary becomes a Field with the space's shape and dtype (a Discrete: one
        int64). A Dict of these as the observation space becomes a dict of Fields. `extras` are further fields by name.

        Raises:
            ValueError: a space is of another kind, such as a Tuple or a Dict in a Dict.
            TypeError: an argument is an environment, not a space.
        """
        for label, space in (("observation_space", observation_space), ("action_space", action_space)):
            if hasattr(space, label):
                raise TypeError(f"{label}: expected a space, got an environment, {space!r}; pass env.{label}")
        members = getattr(observation_space, "spaces", None)
        if isinstance(members, Mapping):
            obs: Any = {name: _field_of(f"observation_space[{name!r}]", space) for name, space in members.items()}
        else:
            obs = _field_of("observation_space", observation_space, "Box, Discrete, MultiDiscrete, MultiBinary or Dict")
        return cls(obs=obs, action=_field_of("action_space", action_space), extras=extras, next_obs=next_obs)

    @property
    def state_every(self) -> int:
        """Rows of an episode between two stored recurrent states; 1 when every row stores every extra."""
        return max((extra.every for extra in self.extras.values()), default=1)

    @property
    def obs_fields(self) -> dict[str, Field]:
        """The observation's fields by name; a single Field has the name observations.ALONE."""
        return by_name(self.obs)

    def to_dict(self) -> dict[str, Any]:
        """Returns a form ready for JSON; equal specs give equal forms."""
        return {
            "obs": each(_plain, self.obs),
            "action": _plain(self.action),
            "extras": each(_plain, self.extras),
            "next_obs": self.next_obs,
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "TransitionSpec":
        """Returns the spec from which `to_dict` made `plain`."""
        obs, action, extras = (each(lambda part: Field(*part), plain[name]) for name in ("obs", "action", "extras"))
        return cls(obs, action, extras, plain["next_obs"])


@dataclass(frozen=True)
class Sequence:
    """Windows of consecutive transitions of one episode, for recurrent learners.

    A window begins at an episode's first transition and at every `period` transitions from there. A window ends early
    if its episode ends or the writer is replaced. With `whole`, windows are whole episodes instead.

    To store the recurrent state and burn it in (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed
    Reinforcement Learning", section 3), declare the state as an extra with `Field(..., every=k)`, where k divides the
    period.

    Attributes:
        length: transitions of a window, burn-in included.
        burn_in: number of a window's first transitions, which only warm up the recurrent state; `batch.mask` is False
            for them. Exception: a window that begins its episode needs no burn-in.
        period: transitions from the start of one window to that of the next; by default length - burn_in, so that each
            transition is trained on once.
        whole: draws whole episodes of at most `length` transitions, each equally often; longer and unfinished episodes
            are never drawn. Such windows have no burn-in and no period.
    """

    length: int
    burn_in: int = 0
    period: int | None = None
    whole: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_whole("sequence.length", self.length)
        check_whole("sequence.burn_in", self.burn_in, 0)
        if self.burn_in >= self.length:
            raise ValueError(f"sequence.burn_in: expected less than the length {self.length}, got {self.burn_in}")
        if self.period is not None:
            check_whole("sequence.period", self.period)
        check_type("sequence.whole", self.whole, bool)
        if self.whole and (self.burn_in or self.period is not None):
            got = f"{self.burn_in} and {self.period}"
            raise ValueError(f"sequence.burn_in, sequence.period: expected 0 and None of whole episodes, got {got}")


@dataclass(frozen=True)
class Ragged:
    """Arrays whose first axis varies in length from row to row, up to a maximum; all arrays of a row are equally long.

    Rows store the length, and arrays of the maximal shape with zeros behind the length.

        fields = {"profile": Field((2,), "uint8"), "probability": Field()}
        outcomes = Ragged("outcomes", 50, fields)
        spec = TransitionSpec(obs, action, extras=outcomes.fields)
        padded = outcomes.pad(profile=[(0, 1), (0, 2)], probability=[0.9, 0.1])
        writer.add(obs, action, reward, **padded)
        outcomes.mask(batch.extras)  # bool [B, 50]

    Attributes:
        name: the name of the field that stores a row's length.
        most: the greatest length, at least 1.
        parts: the arrays by name, each given by the Field of one element.
    """

    name: str
    most: int
    parts: Mapping[str, Field]

    def __post_init__(self) -> None:
        check_whole(f"Ragged {self.name} most", self.most)
        if not isinstance(self.parts, Mapping) or not self.parts or self.name in self.parts:
            raise ValueError(f"Ragged {self.name}: expected Fields by other names, got {self.parts!r}")
        object.__setattr__(self, "parts", _checked_fields(f"Ragged {self.name}", self.parts))
        if any(part.every != 1 for part in self.parts.values()):
            raise ValueError(f"Ragged {self.name}: expected Fields with every=1, got {self.parts}")
        _checked_fields(f"Ragged {self.name}", self.fields)

    @property
    def fields(self) -> dict[str, Field]:
        """The fields of a row: [most, *shape] of each part, and the length, int64, named `name`."""
        padded = {name: Field((self.most, *part.shape), part.dtype) for name, part in self.parts.items()}
        return {**padded, self.name: Field((), "int64")}

    def pad(self, **arrays: Any) -> dict[str, Any]:
        """Returns the values of a row's fields, from an array [n, *shape] of each part; n may be 0.

        Raises ValueError or TypeError if a part is missing or unknown, n is too large or differs between arrays, or a
        value is wrong.
        """
        if arrays.keys() != self.parts.keys():
            raise names_error(self.name, self.parts, arrays)
        lengths = {np.shape(array)[0] if np.ndim(array) else -1 for array in arrays.values()}
        if len(lengths) > 1 or not 0 <= max(lengths) <= self.most:
            raise ValueError(f"{self.name}: expected arrays of one length up to {self.most}, got {sorted(lengths)}")
        (length,) = lengths
        row: dict[str, Any] = {name: field.zeros() for name, field in self.fields.items()}
        for name, part in self.parts.items() if length else ():
            row[name][:length] = as_field(f"{self.name} {name}", Field((length, *part.shape), part.dtype), arrays[name])
        row[self.name][...] = length
        return row

    def mask(self, fields: Mapping[str, Any]) -> Any:
        """Returns a mask, bool [..., most], of the elements that exist in `fields`, such as a batch's extras."""
        lengths = fields[self.name]
        if isinstance(lengths, np.ndarray):
            return np.arange(self.most) < lengths[..., None]
        import torch

        return torch.arange(self.most, device=lengths.device) < lengths[..., None]


def _field_of(label: str, space: Any, kinds: str = "Box, Discrete, MultiDiscrete or MultiBinary") -> Field:
    """Returns a space's Field. Raises ValueError if it is of another kind, without a shape or a numeric dtype."""
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if not isinstance(shape, tuple) or dtype is None or np.dtype(dtype).kind not in _KINDS:
        raise ValueError(f"{label}: expected a {kinds} space, got {space!r}")
    try:
        return Field(shape, np.dtype(dtype).name)
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None


def _plain(part: Field) -> list[Any]:
    return [list(part.shape), part.dtype, part.every]


def _checked_fields(where: str, fields: Mapping[str, Field]) -> dict[str, Field]:
    check_type(where, fields, Mapping, expected="a dict of Fields")
    for name, part in fields.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{where}: expected names that are identifiers, got {name!r}")
        check_type(f"{where}[{name!r}]", part, Field)
    return dict(fields)


def as_field(label: str, field: Field, value: Any) -> NDArray[Any]:
    """Returns `value` as an array of the field's shape and dtype; infinities and NaN stay as they are.

    Raises: ValueError, TypeError: the value does not fit, such as a finite float64 beyond float32's range; the message
        names the field, the expected value and the actual one.
    """
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{label}: expected {field.describe()}, got {brief(value)} ({brief(error)})") from None
    dtype = field.numpy
    if array.shape != field.shape:
        raise ValueError(f"{label}: expected {field.describe()}, got shape {array.shape}")
    if array.dtype == dtype:
        return array
    integers = array.dtype.kind in "iu" and dtype.kind in "iu"
    if integers and array.size:
        least, most, limits = int(array.min()), int(array.max()), np.iinfo(field.dtype)
        if least < limits.min or most > limits.max:
            raise ValueError(f"{label}: expected values in {field.dtype}'s range, got {least} to {most}")
    if integers or np.can_cast(array.dtype, dtype, "same_kind"):
        try:
            with np.errstate(over="raise"):
                return array.astype(dtype)
        except FloatingPointError:
            with np.errstate(over="ignore"):
                beyond = array[np.isfinite(array) & ~np.isfinite(array.astype(dtype))]
            raise ValueError(f"{label}: expected values in {field.dtype}'s range, got {beyond[0]}") from None
    raise TypeError(f"{label}: expected {field.describe()}, got dtype {array.dtype}")


def rows_of(label: str, field: Field, value: Any, rows: int) -> NDArray[Any]:
    """Returns `value` as an array [rows, *shape] of the field's dtype, unchanged if it already is one."""
    if value.__class__ is np.ndarray and value.dtype == field.numpy and value.shape == (rows, *field.shape):
        array: NDArray[Any] = value
        return array
    return as_field(label, type(field)((rows, *field.shape), field.dtype), value)
