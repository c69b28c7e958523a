"""Helpers of all adapters: an agent's spaces and masks, and checks of observations, rewards and actions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..checks import are_finite, brief, printable
from ..errors import EnvironmentFailed
from ..interfaces import Outcome
from ..observations import ALONE, Values, rows_at
from ..spaces import MASK, Spaces
from ..spec import Field

Result = tuple[Any, float, bool, bool, Mapping[str, Any]]  # observation, reward, terminated, truncated, info


class Absent(NamedTuple):
    """The result of an agent that neither acts next nor has just ended: only a reward."""

    reward: Any


RETURNED = {"reset": ("observation", "info"), "step": ("observation", "reward", "terminated", "truncated", "info")}
RETURNED["last"] = RETURNED["step"]
ALLOW_INF = "allow_inf"  # the attribute of a Box whose values may be infinite; its bounds do not tell
SCALARS = (int, float, np.bool_, np.integer, np.floating)
LARGEST_REWARD = float(np.finfo(np.float32).max)
EXPECTED_MASK = f"{MASK}: expected a mask in every info or in none, got "


class Adapter:
    """The base of adapters, which wrap an environment, `_env`, and close it."""

    _env: Any

    def close(self) -> None:
        self._env.close()


class Wrapper:
    """Wraps an environment, `_env`; attributes that the wrapper lacks, such as `render`, are those of `_env`."""

    _env: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle look names up before `_env` is set
            raise AttributeError(name)
        return getattr(self._env, name)


@dataclass(frozen=True)
class AgentView:
    """Holds an agent's spaces and the place of its action mask, and checks the agent's values in several copies.

    The checks raise EnvironmentFailed, whose message names the copy, the agent and the part.
    """

    agent: str
    spaces: Spaces  # without the mask
    mask_in: Literal["observation", "info"] | None = None
    wrapped: bool = False  # the observation stands under "observation", beside the mask

    @classmethod
    def of(cls, agent: str, observation: gym.Space, action: gym.Space, masked: bool = False) -> "AgentView":
        """Makes an agent's view; `masked` tells whether infos hold masks. Raises ValueError for unsupported spaces."""
        inside = has_mask(observation)
        wrapped = inside and observation.spaces.keys() == {MASK, ALONE}
        try:
            spaces = Spaces(without_mask(observation), action, masked=inside or masked)
            _ = spaces.obs  # checks the observation space
            if inside and observation[MASK].shape != (spaces.choices,):
                raise ValueError(f"{MASK}: expected {spaces.choices} values, got {observation[MASK]}")
        except ValueError as error:
            raise ValueError(f"{printable(agent)}: {error}") from None
        return cls(agent, spaces, "observation" if inside else "info" if masked else None, wrapped)

    def split(self, observation: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
        """Returns (observation, mask or None) of one copy or of all. Raises ValueError if a mask is unexpected."""
        if self.mask_in == "observation":
            return observation[ALONE] if self.wrapped else observation, observation[MASK]
        mask = info.get(MASK)
        if self.mask_in is None and mask is not None:
            if _has_choice(self.spaces.action):
                raise ValueError(EXPECTED_MASK + brief(mask))
            raise ValueError(f"{MASK}: expected none for the action space {self.spaces.action}, got {brief(mask)}")
        return observation, mask if self.mask_in else None

    def mask(self, value: Any, rows: tuple[int, ...] = ()) -> NDArray[Any]:
        """Returns a mask as an array [*rows, actions]; for a MultiDiscrete, `value` may be a tuple of masks."""
        expected = (*rows, self.spaces.choices)
        try:
            array = np.hstack(value) if isinstance(value, (tuple, list)) and rows == () else np.asarray(value)
            if array.shape == expected and array.dtype.kind in "biu":
                return array
        except ValueError:  # parts that do not fit together
            pass
        raise ValueError(f"{MASK}: expected {Field(expected, 'bool').describe()}, got {brief(value)}")

    def check(self, copies: NDArray[np.int64], values: Values, *, acting: bool) -> None:
        """Checks that values [k, ...] are finite or, if discrete, in range; if `acting`, that masks allow an action."""
        if values.__class__ is np.ndarray and values.dtype.kind == "f" and are_finite(values):
            return  # a fast path for the most common observations
        fault = fault_of(self.spaces, values, acting=acting)
        if fault is not None:
            raise failed(copies[fault[0]], self.agent, fault[1])

    def check_outcome(self, outcome: Outcome) -> None:
        """Checks that rewards are finite as float32, and checks final observations where the episode ended."""
        copies, reward = outcome.copies, outcome.reward
        if reward.dtype.kind not in "biuf":
            raise failed(copies[0], self.agent, f"reward: expected a number, got {brief(reward[0])}")
        if reward.dtype != np.float32 or not are_finite(reward):
            fits = np.abs(reward) <= LARGEST_REWARD  # False for NaN
            if 0 in fits.tobytes():
                row = int(fits.argmin())
                raise failed(copies[row], self.agent, f"reward: expected a finite number of float32, got {reward[row]}")
        if outcome.final_obs is not None:
            ended = outcome.terminated | outcome.truncated
            self.check(outcome.copies[ended], rows_at(outcome.final_obs, ended), acting=False)


def fault_of(spaces: Spaces, values: Values, *, acting: bool) -> tuple[int, str] | None:
    """Returns the first invalid value's row and an error message, by the rules of `check`; None if all are valid."""
    arrays = values if isinstance(values, dict) else {ALONE: values}
    for part in spaces.parts:
        array = arrays[part.name]
        if array.dtype.kind in "fc" and are_finite(array):
            continue
        wrong = wrong_values(part.space, array)
        if wrong is not None and np.count_nonzero(wrong):
            row = int(wrong.reshape(len(array), -1).any(axis=1).argmax())
            value = array[row]
            expected, got = brief(part.space), brief(value.tolist())
            if value.dtype.kind in "fc":
                expected, got = "finite numbers", f"{value[wrong[row]].flat[0]} in {got}"
            return row, f"{label_of(part.keys)}: expected {expected}, got {got}"
    if acting and spaces.masked:
        mask = arrays[MASK]
        can = mask.any(axis=1)
        if isinstance(spaces.action, gym.MultiDiscrete):
            can = np.logical_or.reduceat(mask, spaces.mask_starts, axis=1).all(axis=1)
        if not can.all():
            row = int(can.argmin())
            return row, f"{MASK}: expected an allowed action, got {brief(mask[row].tolist())}"
    return None


def wrong_values(space: gym.Space, values: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Marks invalid values [k, ...]; None for a space in which every value is valid.

    Ignores Box bounds, which many environments exceed.
    """
    if values.dtype.kind in "fc":
        wrong: NDArray[np.bool_] = np.isnan(values) if getattr(space, ALLOW_INF, False) else ~np.isfinite(values)
        return wrong
    if isinstance(space, (gym.Discrete, gym.MultiDiscrete)):
        size = space.n if isinstance(space, gym.Discrete) else space.nvec
        outside: NDArray[np.bool_] = (values < space.start) | (values >= space.start + size)
        return outside
    return values >> 1 != 0 if isinstance(space, gym.MultiBinary) else None  # the shift gives 0 for 0 and 1 only


def label_of(keys: tuple[Any, ...]) -> str:
    return "obs" + "".join(f"[{key!r}]" for key in keys)


def may_mask(observation: gym.Space, action: gym.Space) -> bool:
    """Tells whether an agent's infos may hold masks: its action is discrete, and its observation holds no mask."""
    return _has_choice(action) and not has_mask(observation)


def _has_choice(action: gym.Space) -> bool:
    return isinstance(action, (gym.Discrete, gym.MultiDiscrete))


def has_mask(space: gym.Space) -> bool:
    return isinstance(space, gym.Dict) and MASK in space.spaces


def unmasked(parts: Mapping[str, Any]) -> Any:
    """Returns the parts of an observation or space without the mask; if only "observation" is left, its value."""
    others = {key: part for key, part in parts.items() if key != MASK}
    return others[ALONE] if others.keys() == {ALONE} else others


def without_mask(space: gym.Space) -> gym.Space:
    others = unmasked(space.spaces) if has_mask(space) else space
    return gym.Dict(others) if isinstance(others, dict) else others


def result_of(method: str, result: Any) -> Any:
    """Returns the result of a `reset`, `step` or `last`. Raises ValueError if the number of its values is wrong."""
    expected = RETURNED[method]
    if not isinstance(result, (tuple, list)) or len(result) != len(expected):
        got = f"{len(result)} values" if isinstance(result, (tuple, list)) else brief(result)
        raise ValueError(f"{method}: expected ({', '.join(expected)}), got {got}")
    return result


def check_action(agent: str | None, action: Any, ended: bool) -> str:
    """Checks an action for `agent`, the agent that acts now, and returns `agent`.

    Raises ValueError if no agent acts, or if `action` is None before the agent's end, or not None after it.
    """
    if agent is None:
        raise ValueError(f"step: expected a reset, since the episode is over, got action {action!r}")
    if ended != (action is None):
        expected = "None" if ended else "an action"
        raise ValueError(f"step: expected {expected} from {agent}, got {action!r}")
    return agent


def failed(copy: Any, agent: str, reason: Any) -> EnvironmentFailed:
    return EnvironmentFailed(f"environment copy {copy}, {agent}: {reason}")


def as_reward(value: Any) -> float:
    """Converts a number, or an array of one number, to float. Raises TypeError, ValueError or OverflowError."""
    if value.__class__ is float:
        return value
    shape, kind = getattr(value, "shape", ()), getattr(getattr(value, "dtype", None), "kind", "f")
    if isinstance(value, (str, bytes, bytearray)) or kind in "cSU" or math.prod(shape) != 1:
        raise TypeError(f"reward: expected a number, got {brief(value)}")
    return float(value.item() if shape else value)


def numbers(info: Mapping[str, Any]) -> dict[str, float]:
    """Returns an info's numbers by name; Gymnasium's episode statistics are episode_r, episode_l and episode_t."""
    named: dict[str, float] = {}
    for name, value in info.items():
        if isinstance(name, str) and isinstance(value, SCALARS):
            try:
                named[name] = float(value)
            except OverflowError:  # an integer beyond float64
                named[name] = math.inf if value > 0 else -math.inf
    statistics = info.get("episode")
    if isinstance(statistics, Mapping):
        named |= {f"episode_{name}": value for name, value in numbers(statistics).items()}
    return named
