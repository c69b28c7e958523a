"""Recorded episodes from a .npz file, a Minari dataset or any iterator; each is checked before it is written."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import BFLOAT16, may_be_infinite
from ..checks import brief, check_finite, names_error
from ..npz import read_npz
from ..observations import Values, by_name, each, nested, part_name, rows_at
from ..spec import Field, TransitionSpec, rows_of

# The names of fields in the data sets of Minari and D4RL
NAMES = {
    "observations": "obs",
    "next_observations": "next_obs",
    "actions": "action",
    "rewards": "reward",
    "terminations": "terminated",
    "terminals": "terminated",
    "truncations": "truncated",
    "timeouts": "truncated",
}
OF_MINARI = ("observations", "actions", "rewards", "terminations", "truncations")
MASK = "action_mask"
PRIORITY = "priority"  # an extra in which NaN means the highest priority so far
OBSERVATIONS = ("obs", "final_obs", "next_obs")
_NUMBERS, _ANY = "biufc", "biufcmMOSUV"  # kinds of arrays
_REWARD, _FLAG = Field((), "float32"), Field((), "bool")


@dataclass
class RecordedEpisodes:
    """Yields for each recorded episode the arguments of `Writer.add_batch`; see `ReplayBuffer.from_episodes`.

    Attributes:
        spec: the spec of the rows; None until the first episode is read.
    """

    source: Any
    spec: TransitionSpec | None
    action_space: Any = None

    def __post_init__(self) -> None:
        if self.spec is not None:
            _check_spec(self.spec)
        space = getattr(self.source, "action_space", None)
        if self.action_space is None and hasattr(space, "start"):  # a Minari dataset's Discrete or MultiDiscrete
            self.action_space = space

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index, episode in enumerate(_episodes_of(self.source, self._declared)):
            try:
                yield self._arguments(_fields_of(episode, self._declared))
            except (ValueError, TypeError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(f"episode {index}: {error}") from None

    @property
    def _declared(self) -> Collection[str] | None:
        """The names of an observation's arrays, ALONE for a single array; None if no spec or space declares them."""
        if self.spec is not None:
            return self.spec.obs_fields.keys()
        space = getattr(self.source, "observation_space", None)  # a Minari dataset's
        return None if space is None else _names_in(space)

    def _arguments(self, fields: dict[str, Any]) -> dict[str, Any]:
        obs, action, rewards = (_needed(fields, name) for name in ("obs", "action", "reward"))
        action = _array("action", action)
        if not action.ndim or not len(action):
            raise ValueError(f"action: expected an array [T, ...] with T of at least 1, got {brief(fields['action'])}")
        steps, final = len(action), _final_obs(fields, obs, len(action))
        for row in np.flatnonzero(_seams(fields, steps)):
            raise ValueError(f"next_obs: expected row {row} to equal row {row + 1} of obs, got another observation")
        obs = each(lambda array: array[:steps], obs)
        spec = self.spec or TransitionSpec(each(_field_of, obs), _field_of(action))
        terminated, _ = (_ends(name, fields.get(name), steps) for name in ("terminated", "truncated"))
        if not terminated and final is None:
            raise ValueError("final_obs: expected the observation after an episode that does not terminate, got none")
        reward = rows_of("reward", _REWARD, rewards, steps)
        check_finite("reward", reward)
        last = np.arange(steps) == steps - 1
        arguments = {
            "obs": _values("obs", spec, obs, steps),
            "action": self._action(spec, action, by_name(obs).get(MASK)),
            "reward": reward,
            "terminated": last & terminated,
            "truncated": last & (not terminated),  # also where the record stops
            "final_obs": None if terminated else _values("final_obs", spec, final, 1),
        }
        for name, field in spec.extra_fields.items():
            if name not in fields and field.every == 1:
                raise ValueError(f"{name}: expected {field.describe()} for each transition, got none")
            # Windows begin with zeros and burn in, since recurrent states of other policies are useless.
            arguments[name] = rows_of(name, field, fields.get(name, field.zeros(steps)), steps)
            if may_be_infinite(field.numpy) and field.every == 1 and name != PRIORITY:
                check_finite(name, arguments[name])
        self.spec = spec
        return arguments

    def _action(self, spec: TransitionSpec, action: NDArray[Any], mask: NDArray[Any] | None) -> NDArray[Any]:
        """Returns the checked actions as rows hold them: Discrete and MultiDiscrete actions count from 0."""
        if self.action_space is not None:
            low, high, start = _bounds(self.action_space)
            for place in np.argwhere(~((action >= low) & (action <= high))):
                got = f"{action[tuple(place)]} at step {place[0]}"
                raise ValueError(f"action: expected values within {self.action_space}, got {got}")
            action = action - start
        assert isinstance(spec.action, Field)  # see above
        action = rows_of("action", spec.action, action, len(action))
        if may_be_infinite(action.dtype):
            check_finite("action", action)
        if mask is not None and action.ndim == 1:
            allowed = ((action[:, None] == np.arange(mask.shape[1])) & (mask != 0)).any(1)
            for step in np.flatnonzero(~allowed):
                raise ValueError(f"action: expected an action that {MASK} allows, got {action[step]} at step {step}")
        return action


def rows_taken(arguments: Mapping[str, Any]) -> int:
    """Counts the rows of an episode, the row of its final_obs included."""
    return len(arguments["reward"]) + (arguments["final_obs"] is not None)


def _check_spec(spec: TransitionSpec) -> None:
    if spec.next_obs:
        raise ValueError("spec: expected a spec without next_obs, since the rows of an episode follow one another")
    for name, part in {"action": spec.action, **spec.extras}.items():
        if not isinstance(part, Field):
            raise ValueError(f"spec: expected one Field as {name}, got {brief(part)}")
    if spec.reward.shape:
        raise ValueError(f"spec: expected a scalar reward, got {spec.reward.describe()}")


def _episodes_of(source: Any, declared: Collection[str] | None) -> Iterable[Any]:
    if isinstance(source, (str, os.PathLike)):
        source = _arrays_in(Path(source))
    if isinstance(source, Mapping):
        return _episodes_in(_fields_of(source, declared))
    if hasattr(source, "iterate_episodes"):
        episodes: Iterable[Any] = source.iterate_episodes()
        return episodes
    if isinstance(source, Iterable):
        return source
    expected = "the path of a .npz file, a Minari dataset or an iterable of episodes"
    raise TypeError(f"episodes: expected {expected}, got {brief(source)}")


def _arrays_in(path: Path) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for name, array in read_npz("episodes", path).items():
        field, _, part = name.partition(".")
        if part and isinstance(arrays.setdefault(field, {}), dict):
            arrays[field][part] = array
        elif part or field in arrays:
            raise ValueError(f"episodes: expected one array or parts of {field!r}, got both in {str(path)!r}")
        else:
            arrays[name] = array
    return arrays


def _episodes_in(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    fields = {name: values if name in OBSERVATIONS else _array(name, values, _ANY) for name, values in fields.items()}
    finals = fields.pop("final_obs", None)
    steps = len(np.atleast_1d(_needed(fields, "reward")))
    for name, values in fields.items():
        for array in by_name(values).values():
            if array.shape[:1] != (steps,):
                raise ValueError(f"{name}: expected {steps} rows, as reward has, got shape {array.shape}")
    terminated, truncated = (
        rows_of(name, _FLAG, fields.get(name, np.zeros(steps, np.bool_)), steps) for name in ("terminated", "truncated")
    )
    seams = np.flatnonzero(_seams(fields, steps) & ~(terminated | truncated)[:-1])
    last = np.union1d(np.flatnonzero(terminated | truncated), [*seams, steps - 1])
    cut = {step: number for number, step in enumerate(last[~terminated[last]].tolist())}
    for array in [] if finals is None else by_name(finals).values():
        if array.shape[:1] != (len(cut),):
            rows = f"{len(cut)} rows, one for each episode that does not terminate"
            raise ValueError(f"final_obs: expected {rows}, got shape {array.shape}")
    for first, after in pairwise([0, *(last + 1).tolist()]):
        episode = {name: rows_at(values, slice(first, after)) for name, values in fields.items()}
        if finals is not None and after - 1 in cut:
            episode["final_obs"] = rows_at(finals, cut[after - 1])
        yield episode


def _seams(fields: Mapping[str, Any], steps: int) -> NDArray[np.bool_]:
    """Marks rows, bool [steps - 1], whose `next_obs` differs from the next row's `obs`; the last row has no mark."""
    seams = np.zeros(steps - 1, np.bool_)
    following = by_name(fields.get("next_obs", {}))
    for name, array in by_name(fields["obs"]).items():
        stored, obs = np.asarray(following.get(name, ()))[: steps - 1], array[1:steps]
        if stored.shape == obs.shape:
            if stored.dtype.kind == obs.dtype.kind == "f":  # one of them may have been rounded
                kind = min(stored.dtype, obs.dtype)
                with np.errstate(over="ignore"):
                    stored, obs = stored.astype(kind, copy=False), obs.astype(kind, copy=False)
            differs = (stored != obs) & ~((stored != stored) & (obs != obs))  # two NaN are the same
            seams |= differs.any(axis=(*range(1, differs.ndim),))
    return seams


def _fields_of(episode: Any, declared: Collection[str] | None) -> dict[str, Any]:
    """Renames an episode's fields to marlcore's names. Raises ValueError or TypeError if the fields are wrong."""
    if not isinstance(episode, Mapping):
        if not hasattr(episode, "observations"):
            raise TypeError(f"expected a dict of arrays or an episode of Minari, got {brief(episode)}")
        episode = {name: getattr(episode, name) for name in OF_MINARI}
    fields = {NAMES.get(name, name): value for name, value in episode.items()}
    if len(fields) < len(episode):
        raise ValueError(f"expected one array for each field, got {sorted(episode)}")
    if not fields.keys() & {"terminated", "truncated"} and (ends := sorted(fields.keys() & {"done", "dones"})):
        raise ValueError(f"expected 'terminated' or 'truncated', got {ends[0]!r} alone, which may mean either")
    for name in OBSERVATIONS:
        if name in fields:
            fields[name] = _arrays(name, fields[name], declared)
            declared = declared or by_name(fields[name]).keys()
    return fields


def _needed(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise ValueError(f"{name}: expected an array, got none beside {brief(sorted(fields))}")
    return fields[name]


def _arrays(label: str, obs: Any, declared: Collection[str] | None, keys: tuple[Any, ...] = ()) -> Any:
    """Returns observations as an array, or as arrays by name (see `_name_of`), without texts and empty arrays.

    A tuple holds the steps of one array if `declared` has this array's name; otherwise it holds the parts of a Tuple
    space. Raises ValueError if `obs` is a tuple and no names are declared.
    """
    inside: Iterable[tuple[Any, Any]]
    if isinstance(obs, Mapping):
        inside = obs.items()
    elif not isinstance(obs, tuple) or (declared is not None and _name_of(keys, declared) in declared):
        return _array(label, obs, "biufcU" if keys else _NUMBERS)
    elif declared is None:
        expected = "a list or an array of steps, or a spec that names a tuple's parts"
        raise ValueError(f"{label}: expected {expected}, got a tuple of {len(obs)}")
    else:
        inside = enumerate(obs)
    arrays: dict[str, Any] = {}
    for key, part in inside:
        values = _arrays(label, part, declared, (*keys, key))
        if isinstance(values, dict):
            arrays |= values
        elif values.size and values.dtype.kind != "U":
            arrays[_name_of((*keys, key), declared)] = values
    return arrays


def _name_of(keys: tuple[Any, ...], declared: Collection[str] | None) -> str:
    """Returns the name of the part under these keys: their path if a spec declares it, otherwise `part_name`."""
    path = ".".join(map(str, keys))
    return path if declared is not None and path in declared else part_name(keys)


def _array(label: str, values: Any, kinds: str = _NUMBERS) -> NDArray[Any]:
    """Returns the values as an array. Raises ValueError if its dtype is of no kind in `kinds`."""
    try:
        array = np.asarray(values)
    except ValueError:  # a list of different shapes
        array, kinds = np.empty(0, object), ""
    if array.dtype.kind not in kinds and array.dtype.name != BFLOAT16 and values is not None:
        raise ValueError(f"{label}: expected an array [T, ...] of numbers, or a dict of them, got {brief(values)}")
    return array


def _names_in(space: Any, keys: tuple[Any, ...] = ()) -> set[str]:
    inside = getattr(space, "spaces", None)
    if inside is None:
        return {part_name(keys)}
    pairs = inside.items() if isinstance(inside, Mapping) else enumerate(inside)
    return set().union(*(_names_in(part, (*keys, key)) for key, part in pairs))


def _final_obs(fields: Mapping[str, Any], obs: Values, steps: int) -> Any:
    """Returns the observation after an episode, [1, ...], from final_obs, obs or next_obs; None if there is none."""
    lengths = {array.shape[:1] for array in by_name(obs).values()}
    if lengths not in ({(steps,)}, {(steps + 1,)}):
        raise ValueError(f"obs: expected {steps} rows, as action has, or one more, got {brief(lengths)}")
    if "final_obs" in fields:
        return each(lambda array: array[None], fields["final_obs"])
    if lengths == {(steps + 1,)}:
        return rows_at(obs, slice(steps, None))
    return rows_at(fields["next_obs"], slice(-1, None)) if "next_obs" in fields else None


def _field_of(array: NDArray[Any]) -> Field:
    return Field(array.shape[1:], array.dtype.name)


def _values(label: str, spec: TransitionSpec, obs: Any, rows: int) -> Values:
    """Returns observations [rows, ...] in the spec's form. Raises ValueError or TypeError if they do not fit it."""
    fields, arrays = spec.obs_fields, by_name(obs)
    if isinstance(spec.obs, Field) and isinstance(obs, Mapping):
        raise TypeError(f"{label}: expected {spec.obs.describe()}, got {brief(obs)}")
    if arrays.keys() != fields.keys():
        raise names_error(label, fields, arrays)
    checked = {}
    for name, field in fields.items():
        part = label if isinstance(spec.obs, Field) else f"{label}[{name!r}]"
        checked[name] = rows_of(part, field, arrays[name], rows)
        if may_be_infinite(field.numpy):
            check_finite(part, checked[name])
    values: Values = nested(checked, spec.obs)
    return values


def _ends(name: str, value: Any, steps: int) -> bool:
    """Whether an episode ended in the way `name`. `value`: a bool, or a bool for each step, True only in the last."""
    if value is None or isinstance(value, (bool, np.bool_)):
        return bool(value)
    flags = rows_of(name, _FLAG, value, steps)
    for step in np.flatnonzero(flags[:-1]):
        raise ValueError(f"{name}: expected True for the last transition alone, got True at step {step}")
    return bool(flags[-1])


def _bounds(space: Any) -> tuple[Any, Any, Any]:
    """Returns a Gymnasium space's lowest and highest actions, and its start, which is subtracted from actions."""
    if hasattr(space, "low"):
        return space.low, space.high, 0
    if not hasattr(space, "start"):  # a MultiBinary
        return 0, 1, 0
    return space.start, space.start + getattr(space, "nvec", getattr(space, "n", 0)) - 1, space.start
