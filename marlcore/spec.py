"""The fields of a transition, with their names, shapes and dtypes; and windows of transitions."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .arrays import BFLOAT16, as_array, dtype_of
from .checks import brief, check_type, check_whole, is_whole, names_error, short
from .observations import each, leaves
from .pytrees import register, static

RESERVED_NAMES = frozenset(
    {"obs", "next_obs", "final_obs", "action", "reward", "terminated", "truncated", "policy_version"}
)
ACTION = "action"
_KINDS = "biufc"
MAX_BYTES = 2**47  # of one array: the size of a process's address space
_MAX_DEPTH = 16  # of dicts
MAX_AXES = 24  # a batch has up to three more, and NumPy allows 32
MAX_EVERY = 2**23  # an episode's row counter ends below 2^24 and then continues at about half of that


@static
@dataclass(frozen=True)
class Field:
    """One array of a transition.

    Attributes:
        shape: the array's shape in one transition, () for a scalar; every extent is at least 1.
        dtype: the name of a NumPy dtype of booleans, integers, floats or complex numbers, in native byte order; the
            torch dtype of that name; or "bfloat16", if ml_dtypes is installed.
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
            if self.dtype is None:  # NumPy takes None for float64
                raise TypeError
            dtype = dtype_of(self.dtype)
        except (TypeError, SyntaxError):  # NumPy parses a name that has a comma
            raise TypeError(f"Field dtype: expected a NumPy dtype name, got {self.dtype!r}") from None
        if (dtype.kind not in _KINDS and dtype.name != BFLOAT16) or not dtype.isnative:
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
        return dtype_of(self.dtype)

    def zeros(self, *axes: int) -> NDArray[Any]:
        """Returns an array [*axes, *shape] of zeros."""
        return np.zeros((*axes, *self.shape), self.numpy)

    @property
    def nbytes(self) -> int:
        """Bytes of the field in one transition."""
        return math.prod(self.shape) * self.numpy.itemsize

    def describe(self) -> str:
        """Returns a short form for error messages, such as float32 (4,)."""
        return f"{self.dtype} {self.shape}" + (f" every {self.every}" if self.every > 1 else "")


Fields: TypeAlias = "Field | Mapping[str, Fields]"  # a Field, or dicts of Fields by name, which may nest


@static
@dataclass(frozen=True)
class TransitionSpec:
    """The fields of a transition.

    Attributes:
        obs: the observation: one Field, or a dict of Fields by name, which may hold further dicts. Names are any
            strings, such as "observation.state".
        action: the action, one Field or a dict as for `obs`.
        extras: further fields of each transition by name, such as log_prob: a dict as for `obs`.
        next_obs: True stores next_obs in the row itself, for rows that do not follow one another. Otherwise next_obs
            is the next row's obs, so that each frame is stored once.
        reward: float32, a scalar or, for several objectives or agents, a vector (n,); returns are then vectors too.
    """

    obs: Fields
    action: Fields
    extras: Mapping[str, Fields] = field(default_factory=dict)
    next_obs: bool = False
    reward: Field = Field()

    def __post_init__(self) -> None:
        check_type("TransitionSpec extras", self.extras, Mapping, expected="a dict of Fields")
        for name, least in (("obs", 1), ("action", 1), ("extras", 0)):
            object.__setattr__(self, name, _checked_fields(f"TransitionSpec {name}", getattr(self, name), least))
        if reserved := RESERVED_NAMES & self.extras.keys():
            raise ValueError(f"TransitionSpec extras: {min(reserved)!r} is the name of a built-in field")
        check_type("TransitionSpec reward", self.reward, Field)
        if self.reward != Field(self.reward.shape[:1]):
            raise ValueError(f"TransitionSpec reward: expected float32 () or (n,), got {self.reward.describe()}")
        for label, part in [*leaves(self.obs, "obs").items(), *self.action_fields.items()]:
            if part.every != 1:
                raise ValueError(f"TransitionSpec {label}: expected every=1, got every={part.every}")
        intervals = {extra.every for extra in self.extra_fields.values()} - {1}
        if len(intervals) > 1:
            raise ValueError(f"TransitionSpec extras: expected one interval for all, got every={sorted(intervals)}")
        if intervals and self.next_obs:
            raise ValueError(
                "TransitionSpec extras: expected every=1, since rows with next_obs do not follow one another"
            )
        check_type("TransitionSpec next_obs", self.next_obs, bool)
        register()

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_dict(), sort_keys=True))

    @classmethod
    def from_spaces(
        cls, observation_space: Any, action_space: Any, *, next_obs: bool = False, **extras: Field
    ) -> "TransitionSpec":
        """Returns the spec of an environment's transitions, from its Gymnasium spaces.

        A Box, Discrete, MultiDiscrete or MultiBinary becomes a Field with the space's shape and dtype (a Discrete: one
        int64). A Dict, which may hold further Dicts, becomes a dict of Fields. `extras` are further fields by name.

        Raises:
            ValueError: a space is of another kind, such as a Tuple.
            TypeError: an argument is an environment, not a space.
        """
        for label, space in (("observation_space", observation_space), ("action_space", action_space)):
            if hasattr(space, label):
                raise TypeError(f"{label}: expected a space, got an environment, {space!r}; pass env.{label}")
        obs, action = _fields_of("observation_space", observation_space), _fields_of("action_space", action_space)
        return cls(obs=obs, action=action, extras=extras, next_obs=next_obs)

    @property
    def state_every(self) -> int:
        """Rows of an episode between two stored recurrent states; 1 when every row stores every extra."""
        return max((extra.every for extra in self.extra_fields.values()), default=1)

    @property
    def obs_fields(self) -> dict[str, Field]:
        """The observation's fields by path, see `leaves`; a single Field has the name observations.ALONE."""
        return leaves(self.obs)

    @property
    def action_fields(self) -> dict[str, Field]:
        """The action's fields by paths that begin with ACTION, which is the path of a single Field."""
        return leaves(self.action, ACTION)

    @property
    def extra_fields(self) -> dict[str, Field]:
        """The extras' fields by path."""
        return leaves(self.extras)

    def to_dict(self) -> dict[str, Any]:
        """Returns a form ready for JSON; equal specs give equal forms."""
        plain = {name: each(_plain, getattr(self, name)) for name in ("obs", "action", "extras")}
        rewards = {"reward": _plain(self.reward)} if self.reward.shape else {}
        return {**plain, "next_obs": self.next_obs, **rewards}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "TransitionSpec":
        """Returns the spec from which `to_dict` made `plain`."""
        obs, action, extras = (each(lambda part: Field(*part), plain[name]) for name in ("obs", "action", "extras"))
        return cls(obs, action, extras, plain["next_obs"], Field(*plain["reward"]) if "reward" in plain else Field())


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
        period: transitions from one window's start to the next one's; by default length - burn_in, so that each
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
            raise ValueError(f"sequence.burn_in, sequence.period: expected 0 and None for whole=True, got {got}")


@dataclass(frozen=True)
class Ragged:
    """Arrays whose first axis varies in length from row to row, up to a maximum; all arrays of a row are equally long.

    Rows store the length, and the arrays padded with zeros to the maximum.

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
            raise ValueError(f"Ragged {self.name}: expected Fields by names other than {self.name}, got {self.parts!r}")
        for name, part in self.parts.items():
            check_type(f"Ragged {self.name}[{name!r}]", part, Field)
        object.__setattr__(self, "parts", dict(self.parts))
        if any(part.every != 1 for part in self.parts.values()):
            raise ValueError(f"Ragged {self.name}: expected Fields with every=1, got {self.parts}")
        _checked_fields(f"Ragged {self.name}", self.fields, 1)

    @property
    def fields(self) -> dict[str, Field]:
        """The fields of a row: [most, *shape] of each part, and the length, int64, named `name`."""
        padded = {name: Field((self.most, *part.shape), part.dtype) for name, part in self.parts.items()}
        return {**padded, self.name: Field((), "int64")}

    def pad(self, **arrays: Any) -> dict[str, Any]:
        """Returns the values of a row's fields, made from one array [n, *shape] for each part; n may be 0.

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


_FLAG = Field((), "bool")


def _fields_of(label: str, space: Any) -> Fields:
    """Returns a space's Fields. Raises ValueError if the space has no shape or no numeric dtype."""
    members = getattr(space, "spaces", None)
    if isinstance(members, Mapping):
        return {name: _fields_of(f"{label}[{name!r}]", member) for name, member in members.items()}
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if not isinstance(shape, tuple) or dtype is None or np.dtype(dtype).kind not in _KINDS:
        kinds = "Box, Discrete, MultiDiscrete, MultiBinary or Dict"
        raise ValueError(f"{label}: expected a {kinds} space, got {space!r}")
    try:
        return Field(shape, np.dtype(dtype).name)
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None


def _plain(part: Field) -> list[Any]:
    return [list(part.shape), part.dtype, part.every]


def _checked_fields(where: str, fields: Any, least: int) -> Any:
    """Returns a copy of `fields`: a Field, or a dict with at least `least` names of Fields or of further dicts.

    Raises ValueError or TypeError if `fields` is anything else, or if two Fields have the same path.
    """
    checked = _checked_part(where, fields, least, 0)
    try:
        leaves(checked)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return checked


def _checked_part(where: str, fields: Any, least: int, depth: int) -> Any:
    if isinstance(fields, Field):
        return fields
    check_type(where, fields, Mapping, expected="a Field or a dict of Fields")
    if depth == _MAX_DEPTH:
        raise ValueError(f"{short(where)}: expected at most {_MAX_DEPTH} levels of dicts, got more")
    if len(fields) < least:
        raise ValueError(f"{where}: expected at least one Field, got an empty dict")
    for name in fields:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{where}: expected names of at least one character, got {name!r}")
    return {name: _checked_part(f"{where}[{name!r}]", part, 1, depth + 1) for name, part in fields.items()}


def as_field(label: str, field: Field, value: Any) -> NDArray[Any]:
    """Returns `value` as an array of the field's shape and dtype; infinities and NaN stay as they are.

    Raises: ValueError, TypeError: the value does not fit, such as a finite float64 beyond float32's range; the message
        names the field, the expected value and the actual one.
    """
    try:
        array = as_array(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{label}: expected {field.describe()}, got {brief(value)} ({brief(error)})") from None
    dtype = field.numpy
    if array.shape != field.shape:
        raise ValueError(f"{label}: expected {field.describe()}, got shape {array.shape}")
    if array.dtype == dtype:
        return array
    if dtype.kind == "b" and array.dtype.kind in "iuf":
        others = array[(array != 0) & (array != 1)]
        if others.size:
            raise ValueError(f"{label}: expected {field.describe()}, or 0 and 1, got {others[0]}")
        return array.astype(dtype)
    integers = array.dtype.kind in "iu" and dtype.kind in "iu"
    if integers and array.size:
        least, most, limits = int(array.min()), int(array.max()), np.iinfo(field.dtype)
        if least < limits.min or most > limits.max:
            raise ValueError(f"{label}: expected values in {field.dtype}'s range, got {least} to {most}")
    floats = array.dtype.kind == dtype.kind == "f"  # a fast test of what can_cast tells
    if integers or floats or np.can_cast(array.dtype, dtype, "same_kind"):
        try:
            with np.errstate(over="raise"):
                fitted = array.astype(dtype)
            if field.dtype == BFLOAT16 and (np.isinf(fitted) & np.isfinite(array)).any():  # its casts never raise
                raise FloatingPointError
            return fitted
        except FloatingPointError:
            with np.errstate(over="ignore"):
                beyond = array[np.isfinite(array) & ~np.isfinite(array.astype(dtype))]
            raise ValueError(f"{label}: expected values in {field.dtype}'s range, got {beyond[0]}") from None
    raise TypeError(f"{label}: expected {field.describe()}, got dtype {array.dtype}")


def as_flag(label: str, value: Any) -> bool:
    """Returns a bool, 0 or 1, or a scalar array or tensor of it, as a bool; raises TypeError for anything else."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    try:
        return bool(as_field(label, _FLAG, value))
    except (TypeError, ValueError):
        raise TypeError(f"{label}: expected a bool, got {brief(value)}") from None


def rows_of(label: str, field: Field, value: Any, rows: int) -> NDArray[Any]:
    """Returns `value` as an array [rows, *shape] of the field's dtype, unchanged if it already is one."""
    if value.__class__ is np.ndarray and value.dtype == field.numpy and value.shape == (rows, *field.shape):
        array: NDArray[Any] = value
        return array
    return as_field(label, _of_rows(field, rows), value)


@lru_cache(256)  # a Field's checks take longer than the conversion of an array
def _of_rows(field: Field, rows: int) -> Field:
    return Field((rows, *field.shape), field.dtype)
