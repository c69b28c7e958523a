"""Recorded episodes, of a .npz file, a Minari dataset or any iterator; each is checked before it is written."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import brief, check_finite, names_error
from ..npz import read_npz
from ..observations import Values, by_name, each, in_form, rows_at
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
_REWARD, _FLAG = Field((), "float32"), Field((), "bool")


@dataclass
class Recorded:
    """Iterates over episodes as the arguments of `Writer.add_batch`; see `ReplayBuffer.from_episodes`.

    Attributes:
        spec: of the rows; None until the first episode is read.
    """

    source: Any
    spec: TransitionSpec | None
    action_space: Any = None

    def __post_init__(self) -> None:
        if self.spec is not None and self.spec.next_obs:
            raise ValueError("spec: expected one without next_obs, since the rows of an episode follow one another")
        own = getattr(self.source, "action_space", None)
        if self.action_space is None and hasattr(own, "start"):  # a Minari dataset's Discrete or MultiDiscrete
            self.action_space = own

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index, episode in enumerate(_episodes_of(self.source)):
            try:
                yield self._arguments(_fields_of(episode))
            except (ValueError, TypeError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(f"episode {index}: {error}") from None

    def _arguments(self, fields: dict[str, Any]) -> dict[str, Any]:
        obs, action, rewards = (_needed(fields, name) for name in ("obs", "action", "reward"))
        action, obs = np.asarray(action), _arrays(obs)
        if not action.ndim or not len(action):
            raise ValueError(f"action: expected an array [T, ...] with T of at least 1, got {brief(fields['action'])}")
        steps, final = len(action), _final_obs(fields, obs, len(action))
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
        for name, field in spec.extras.items():
            if name not in fields and field.every == 1:
                raise ValueError(f"{name}: expected {field.describe()} for each transition, got none")
            # Recurrent states of other policies are of no use: windows begin with zeros, and burn in.
            arguments[name] = rows_of(name, field, fields.get(name, field.zeros(steps)), steps)
        self.spec = spec
        return arguments

    def _action(self, spec: TransitionSpec, action: NDArray[Any], mask: NDArray[Any] | None) -> NDArray[Any]:
        """The actions as rows hold them: those of a Discrete or MultiDiscrete counted from 0."""
        if self.action_space is not None:
            low, high, start = _bounds(self.action_space)
            wrong = ~((action >= low) & (action <= high))
            if wrong.any():
                at = np.argwhere(wrong)[0]
                raise ValueError(
                    f"action: expected values within {self.action_space}, got {action[tuple(at)]} at step {at[0]}"
                )
            action = action - start
        action = rows_of("action", spec.action, action, len(action))
        if action.dtype.kind == "f":
            check_finite("action", action)
        if mask is not None and action.ndim == 1:
            allowed = (action[:, None] == np.arange(mask.shape[1])) & mask
            if not (allowed := allowed.any(1)).all():
                step = int(np.argmin(allowed))
                raise ValueError(f"action: expected one that {MASK} allows, got {action[step]} at step {step}")
        return action


def rows_taken(arguments: Mapping[str, Any]) -> int:
    """The rows of an episode, with that of its final_obs."""
    return len(arguments["reward"]) + (arguments["final_obs"] is not None)


def _episodes_of(source: Any) -> Iterable[Any]:
    if isinstance(source, (str, os.PathLike)):
        return _episodes_in(_arrays_in(Path(source)))
    if isinstance(source, Mapping):
        return _episodes_in(source)
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


def _episodes_in(arrays: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    fields = {name: _arrays(values) for name, values in _fields_of(arrays).items()}
    finals = fields.pop("final_obs", None)
    steps = len(np.atleast_1d(_needed(fields, "reward")))
    for name, values in fields.items():
        for array in by_name(values).values():
            if array.shape[:1] != (steps,):
                raise ValueError(f"{name}: expected {steps} rows, as reward has, got shape {array.shape}")
    terminated, truncated = (
        rows_of(name, _FLAG, fields.get(name, np.zeros(steps, np.bool_)), steps) for name in ("terminated", "truncated")
    )
    last = np.flatnonzero(terminated | truncated | (np.arange(steps) == steps - 1))
    cut = {step: number for number, step in enumerate(last[~terminated[last]].tolist())}
    if finals is not None and any(array.shape[:1] != (len(cut),) for array in by_name(finals).values()):
        raise ValueError(
            f"final_obs: expected {len(cut)} rows, one for each episode that does not terminate, got others"
        )
    for first, after in pairwise([0, *(last + 1).tolist()]):
        episode = {name: rows_at(values, slice(first, after)) for name, values in fields.items()}
        if finals is not None and after - 1 in cut:
            episode["final_obs"] = rows_at(finals, cut[after - 1])
        yield episode


def _fields_of(episode: Any) -> dict[str, Any]:
    """An episode's fields by our names. Raises ValueError, TypeError: it has none, or two for one, or unclear ends."""
    if not isinstance(episode, Mapping):
        if not hasattr(episode, "observations"):
            raise TypeError(f"expected a dict of arrays or an episode of Minari, got {brief(episode)}")
        episode = {name: getattr(episode, name) for name in OF_MINARI}
    fields = {NAMES.get(name, name): value for name, value in episode.items()}
    if len(fields) < len(episode):
        raise ValueError(f"expected one array for each field, got {sorted(episode)}")
    if not fields.keys() & {"terminated", "truncated"} and (ends := sorted(fields.keys() & {"done", "dones"})):
        raise ValueError(f"terminated: expected it or truncated, got {ends[0]!r} alone, which does not say which")
    return fields


def _needed(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise ValueError(f"{name}: expected an array, got none beside {sorted(fields)}")
    return fields[name]


def _arrays(obs: Any) -> Any:
    """Observations as an array, or as arrays by name; the names of a dict in a dict are joined by "__"."""
    if not isinstance(obs, Mapping):
        return np.asarray(obs)
    arrays: dict[str, Any] = {}
    for name, part in obs.items():
        inside = _arrays(part)
        named = (
            {f"{name}__{key}": array for key, array in inside.items()} if isinstance(inside, dict) else {name: inside}
        )
        arrays |= named
    return arrays


def _final_obs(fields: Mapping[str, Any], obs: Values, steps: int) -> Any:
    """The observation after an episode [1, ...]: its own, the last of T + 1, or that of next_obs; None without one."""
    lengths = {array.shape[:1] for array in by_name(obs).values()}
    if lengths not in ({(steps,)}, {(steps + 1,)}):
        raise ValueError(f"obs: expected {steps} rows, as action has, or one more, got {brief(lengths)}")
    if "final_obs" in fields:
        return each(lambda array: array[None], _arrays(fields["final_obs"]))
    if lengths == {(steps + 1,)}:
        return rows_at(obs, slice(steps, None))
    return rows_at(_arrays(fields["next_obs"]), slice(-1, None)) if "next_obs" in fields else None


def _field_of(array: NDArray[Any]) -> Field:
    return Field(array.shape[1:], array.dtype.name)


def _values(label: str, spec: TransitionSpec, obs: Any, rows: int) -> Values:
    """Observations [rows, ...] in the form of the spec. Raises ValueError, TypeError: they do not fit it."""
    fields, arrays = spec.obs_fields, by_name(obs)
    if not isinstance(spec.obs, Mapping) and isinstance(obs, Mapping):
        raise TypeError(f"{label}: expected {spec.obs.describe()}, got {brief(obs)}")
    if arrays.keys() != fields.keys():
        raise names_error(label, fields, arrays)
    checked = {}
    for name, field in fields.items():
        part = f"{label}[{name!r}]" if isinstance(spec.obs, Mapping) else label
        checked[name] = rows_of(part, field, arrays[name], rows)
        if field.numpy.kind == "f":
            check_finite(part, checked[name])
    values: Values = in_form(checked, spec.obs)
    return values


def _ends(name: str, value: Any, steps: int) -> bool:
    """Whether an episode ends so: a bool, or a bool of each transition that is True of the last one alone."""
    if value is None or isinstance(value, (bool, np.bool_)):
        return bool(value)
    flags = rows_of(name, _FLAG, value, steps)
    if flags[:-1].any():
        raise ValueError(
            f"{name}: expected True of the last transition alone, got True at step {int(np.argmax(flags))}"
        )
    return bool(flags[-1])


def _bounds(space: Any) -> tuple[Any, Any, Any]:
    """The least and the greatest actions of a Gymnasium space, and the one that rows hold as 0."""
    if hasattr(space, "low"):
        return space.low, space.high, 0
    if not hasattr(space, "start"):  # a MultiBinary
        return 0, 1, 0
    return space.start, space.start + getattr(space, "nvec", getattr(space, "n", 0)) - 1, space.start
