"""Adapts Gymnasium vector environments and EnvPool to VectorEnvironments, without loops over copies."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..checks import brief
from ..errors import EnvironmentFailed
from ..interfaces import Outcome, Turn
from ..observations import Values, by_name, each, in_form, rows_at
from ..spaces import MASK, SpacePart, Spaces
from ..spec import as_field, rows_of
from .agent_view import Adapter, AgentView, failed, label_of, may_mask, numbers, result_of
from .gymnasium import AGENT

Info: TypeAlias = Mapping[str, Any]

MODES = ("NextStep", "SameStep", "Disabled")
FINAL_OBS = ("final_obs", "final_observation")  # their names in an info of Gymnasium: since 1.1, and before
_BOOL = np.dtype(np.bool_)
NOT_NUMBERS = {"env_id"}  # entries of EnvPool's infos to ignore


class GymnasiumVector(Adapter):
    """A Gymnasium vector environment as a `VectorEnvironment` with one agent, "agent_0".

    The environment sets the number of copies. Every autoreset mode works; in NEXT_STEP mode a copy has no turn in the
    step that resets it. If the metadata name no mode, the info at the first episode's end decides: final observations
    in it mean SAME_STEP, their absence NEXT_STEP. If infos may hold action masks, the constructor resets the
    environment once to find out.

    Raises: ValueError: marlcore does not support a space. EnvironmentFailed: the environment raised.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self.copies: int = int(env.num_envs)
        self.agents: tuple[str, ...] = (AGENT,)
        spaces = self._single_spaces()
        AgentView.of(AGENT, *spaces)  # raises for unsupported spaces before the reset
        masked = may_mask(*spaces) and MASK in self._call(self._reset, 0)[1]
        self._view = AgentView.of(AGENT, *spaces, masked)
        self.spaces: Mapping[str, Spaces] = {AGENT: self._view.spaces}
        parts = self._view.spaces.parts
        self._part = None if isinstance(self._view.spaces.obs, dict) else parts[0]  # the only one, without a mask
        self.episodes = 0
        self.ended = np.zeros(self.copies, np.int64)
        self._first: Any = None  # the result of a reset until `observe` returns it
        self._all, self._never = np.arange(self.copies), np.zeros(self.copies, bool)
        self._each, self._none = (self.copies,), bytes(self.copies)  # a column's shape; flags when no episode ends
        # Observations' shape and dtype; the dtype is None if they have several parts
        self._shape, self._dtype = (*self._each, *parts[0].field.shape), self._part and parts[0].field.numpy
        mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
        self._mode: str | None = getattr(mode, "value", mode)
        self._is_declared = self._mode is not None
        if self._mode not in (None, *MODES):
            raise ValueError(f"autoreset_mode of {env}: expected one of {', '.join(MODES)}, got {brief(self._mode)}")
        if masked and self._mode == "Disabled":
            expected = "NextStep or SameStep with masks in infos, since a reset of some copies returns only their masks"
            raise ValueError(f"autoreset_mode of {env}: expected {expected}, got Disabled")
        zero, space = self._view.spaces.action_field.zeros(), self._view.spaces.action
        fixed = np.clip(zero, space.low, space.high) if isinstance(space, gym.Box) else self._view.spaces.shifted(zero)
        self._idle = fixed.astype(zero.dtype)  # for copies that do not act; some environments check its space
        self._rest()

    def _single_spaces(self) -> tuple[gym.Space, gym.Space]:
        return self._env.single_observation_space, self._env.single_action_space

    def reset(self, seed: int) -> None:
        self.episodes = 0
        self.ended[:] = 0
        self._first = self._call(self._reset, int(np.random.SeedSequence(seed).generate_state(1)[0]))
        self._acting, self._begins = self._all, np.ones(self.copies, bool)

    def _reset(self, seed: int) -> Any:
        return result_of("reset", self._env.reset(seed=seed))

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        if self._first is not None:
            values, self._first = self._values(*self._first), None
            return [], [self._turn(values)]
        obs, reward, terminated, truncated, info = self._call(self._step)
        if reward.__class__ is not np.ndarray or reward.dtype.kind != "f" or reward.shape != self._each:
            reward = self._of_copies("reward", reward)
        if terminated.__class__ is not np.ndarray or terminated.dtype is not _BOOL or terminated.shape != self._each:
            terminated = self._of_copies("terminated", terminated, bools=True)
        if truncated.__class__ is not np.ndarray or truncated.dtype is not _BOOL or truncated.shape != self._each:
            truncated = self._of_copies("truncated", truncated, bools=True)
        fits = obs.__class__ is np.ndarray and obs.dtype is self._dtype and obs.shape == self._shape
        values = obs if fits and info.get(MASK) is None else self._values(obs, info)
        ends = terminated.tobytes() != self._none or truncated.tobytes() != self._none  # a third of the time of `any`
        ended, copies = terminated | truncated if ends else self._never, self._acting
        if copies is not self._all:
            reward, terminated, truncated = reward[copies], terminated[copies], truncated[copies]
        outcome = Outcome(AGENT, copies, reward, terminated, truncated, None)
        self._view.check_outcome(outcome)
        if ends:
            outcome, values = self._end(outcome, values, info, ended)
        else:
            self._resume(self._all)
        return [outcome], [self._turn(values)]

    def _end(self, outcome: Outcome, values: Values, info: Info, ended: NDArray[Any]) -> tuple[Outcome, Values]:
        """Ends the episodes that `ended` [copies] marks; returns the completed outcome and the next observations."""
        over = ended.nonzero()[0]
        self.episodes += len(over)
        self.ended[over] += 1
        if not self._is_declared:
            self._learn_mode(info)
        all_ended = self._mode == "NextStep" and len(over) == self.copies
        if all_ended or self._mode == "Disabled":  # the calls below may write to the arrays that the step returned
            columns = {name: getattr(outcome, name).copy() for name in ("reward", "terminated", "truncated")}
            outcome, values = outcome._replace(**columns), each(np.copy, values)
        last = {copy: self._call(self._last_info, info, copy) for copy in over.tolist()} if info else {}
        infos = [(copy, named) for copy, of_copy in last.items() if (named := numbers(of_copy))]
        outcome = outcome._replace(final_obs=self._final_obs(values, info, last, over), infos=infos)
        if self._mode == "NextStep" and not all_ended:
            self._resume((~ended).nonzero()[0])
            return outcome, values
        self._acting, self._begins = self._all, ended
        if self._mode == "Disabled":
            values = self._values(*self._call(self._env.reset, options={"reset_mask": ended}))
        elif all_ended:  # no copy acts in the step that resets all
            self._rest()
            self._call(self._send)
            obs, _, _, _, info = self._call(self._step)
            values = self._values(obs, info)
        return outcome, values

    def _resume(self, acting: NDArray[np.int64]) -> None:
        """Sets the copies that act next; a copy that did not act in this step begins an episode."""
        begins = self._never
        if self._acting is not self._all:
            begins = np.ones(self.copies, bool)
            begins[self._acting] = False
        self._acting, self._begins = acting, begins

    def act(self, turn: Turn, action: NDArray[Any]) -> None:
        spaces = self._view.spaces
        actions = spaces.shifted(rows_of("action", spaces.action_field, action, len(turn.copies)))
        self._rest()
        self._actions[turn.copies] = actions

    def _rest(self) -> None:
        """Has no copy act, by a new array: environments may keep their last action."""
        self._actions = np.repeat(self._idle[None], self.copies, axis=0)

    def _send(self) -> None:
        """Does nothing: `_step` takes the actions."""

    def _step(self) -> Any:
        """Steps the copies; `observe`, not `act`, calls it, since a step may overwrite the last turn's observations."""
        return result_of("step", self._env.step(self._actions))

    def _turn(self, values: Values) -> Turn:
        copies, begins = self._acting, self._begins
        if copies is not self._all:
            values, begins = rows_at(values, copies), begins[copies]
        self._view.check(copies, values, acting=True)
        return Turn(AGENT, copies, values, begins)

    def _learn_mode(self, info: Info) -> None:
        """Infers an undeclared autoreset mode from an episode's last info. Raises EnvironmentFailed if modes differ."""
        shown = "SameStep" if any(name in info for name in FINAL_OBS) else "NextStep"
        if self._mode not in (None, shown):
            expected = "autoreset_mode: expected a mode in the metadata, or final_obs at every episode's end or at none"
            raise EnvironmentFailed(f"{AGENT}: {expected}, got an end as in {shown} after an end as in {self._mode}")
        self._mode = self._mode or shown

    def _last_info(self, info: Info, copy: int) -> dict[str, Any]:
        """Returns a copy's info at its episode's end: in SAME_STEP mode, its "final_info" and episode statistics."""
        if self._mode != "SameStep":
            return _info_of(info, copy, self.copies)
        beside = {name: info[name] for name in ("episode", "_episode") if name in info}
        return _info_of(beside, copy, self.copies) | _info_of(info.get("final_info", {}), copy, self.copies)

    def _final_obs(self, values: Values, info: Info, last: Mapping[int, Info], over: NDArray[np.int64]) -> Values:
        final_obs = values
        if self._mode == "SameStep" or self._view.spaces.masked:
            arrays = {name: array.copy() for name, array in by_name(values).items()}
            for copy in over.tolist() if self._mode == "SameStep" else ():  # `values` begin the next episodes
                for name, value in self._final_values(info, copy, last.get(copy, {})).items():
                    arrays[name][copy] = value
            if MASK in arrays:  # no action follows, and many environments allow none
                arrays[MASK] = self._view.spaces.with_choices(arrays[MASK])
            final_obs = in_form(arrays, values)
        self._view.check(over, rows_at(final_obs, over), acting=False)
        return final_obs if self._acting is self._all else rows_at(final_obs, self._acting)

    def _final_values(self, info: Info, copy: int, last: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a copy's final observation and mask by name; `last` is its last info, `info` all copies' info."""
        name = next((name for name in FINAL_OBS if name in info), FINAL_OBS[0])
        finals = info.get(name)
        by_copy = isinstance(finals, list) or (isinstance(finals, np.ndarray) and finals.dtype.kind == "O")
        try:
            if finals is None or not info.get(f"_{name}", {copy: True})[copy]:
                raise ValueError(f"expected the last observation of an episode that ended, got none in {brief(info)}")
            plain, mask = self._view.split(self._row(finals, copy) if by_copy else finals, last)
            if not by_copy and self._view.mask_in == "observation":
                mask = self._row(mask, copy)
            values: dict[str, Any] = {}
            if self._view.spaces.masked:
                values[MASK] = False if mask is None else self._view.mask(mask)
            for part in self._view.spaces.parts:
                value = part.of(plain)
                values[part.name] = _value(copy, part, value if by_copy else self._row(value, copy))
        except ValueError as error:
            raise failed(copy, AGENT, f"{name}: {error}") from error
        except (KeyError, IndexError, TypeError) as error:
            expected = ", ".join(label_of(part.keys) for part in self._view.spaces.parts)
            raise failed(copy, AGENT, f"{name}: expected {expected}, got {brief(finals)}") from error
        return values

    def _row(self, values: Any, copy: int) -> Any:
        if len(values) != self.copies:
            raise ValueError(f"expected a row for each of {self.copies} copies, got {len(values)} rows")
        return values[copy]

    def _values(self, obs: Any, info: Info) -> Values:
        try:
            plain, mask = self._view.split(obs, info)
            if self._part is not None:
                return self._rows(self._part, plain)
            arrays = {part.name: self._rows(part, part.of(plain)) for part in self._view.spaces.parts}
            if self._view.spaces.masked:
                arrays[MASK] = self._masks(mask)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EnvironmentFailed(f"environment, {AGENT}: {type(error).__name__}: {error}") from error
        return in_form(arrays, self._view.spaces.obs)

    def _rows(self, part: SpacePart, values: Any) -> NDArray[Any]:
        try:
            return rows_of(label_of(part.keys), part.field, values, self.copies)
        except ValueError:
            if np.shape(values)[:1] == (self.copies,):
                for copy in range(self.copies):
                    _value(copy, part, values[copy])  # raises an error that names the copy
            raise

    def _masks(self, masks: Any) -> NDArray[np.bool_]:
        """Returns masks, bool [copies, choices]. A missing mask allows nothing: `check` raises if that copy acts."""
        shape = self.copies, self._view.spaces.choices
        if masks is None:
            return np.zeros(shape, bool)
        if isinstance(masks, np.ndarray) and masks.dtype == object:  # tuples, one for each component
            masks = [np.zeros(shape[1], bool) if mask is None else self._view.mask(mask) for mask in masks]
        return self._view.mask(np.asarray(masks), shape[:1]).astype(bool)

    def _of_copies(self, name: str, values: Any, bools: bool = False) -> NDArray[Any]:
        """Returns a step's values, [copies] or [copies, 1], as an array [copies]."""
        array, shape = np.asarray(values), (self.copies,)
        if array.shape not in (shape, (*shape, 1)) or (bools and array.dtype.kind not in "biu"):
            expected = f"{'bools' if bools else 'numbers'} {shape}"
            raise EnvironmentFailed(f"{AGENT}: {name}: expected {expected}, got {brief(values)}")
        return array.reshape(shape).astype(bool if bools else array.dtype, copy=False)

    def _call(self, method: Any, *args: Any, **options: Any) -> Any:
        try:
            return method(*args, **options)
        except Exception as error:
            raise EnvironmentFailed(f"environment: {type(error).__name__}: {error}") from error


class EnvPool(GymnasiumVector):
    """Adapts `envpool.make(..., env_type="gymnasium")` in synchronous mode; the pool steps while the caller works.

    A pool takes its seed only when it is made, so each reset makes a new pool.

    Raises: ValueError: the pool is asynchronous or has several players, or marlcore does not support a space.
    """

    def __init__(self, pool: Any) -> None:
        config = pool.config
        for name, expected in {"batch_size": config["num_envs"], "max_num_players": 1}.items():
            if config.get(name, expected) not in (expected, 0):
                raise ValueError(f"EnvPool {name}: expected {expected}, got {config[name]}")
        super().__init__(pool)

    def _single_spaces(self) -> tuple[gym.Space, gym.Space]:
        return self._env.observation_space, self._env.action_space

    def _reset(self, seed: int) -> Any:
        pool, spec = self._env, type(self._env.spec)
        config = {**pool.config, "seed": seed & 0x7FFFFFFF}  # EnvPool's seed is an int32
        self._env = type(pool)(spec(spec.gen_config(**config)))
        pool.close()
        return result_of("reset", self._env.reset())

    def act(self, turn: Turn, action: NDArray[Any]) -> None:
        super().act(turn, action)
        self._call(self._send)

    def _send(self) -> None:
        self._env.send(self._actions)

    def _step(self) -> Any:
        return result_of("step", self._env.recv())


def is_gymnasium_vector(env: Any) -> bool:
    return hasattr(env, "num_envs") and hasattr(env, "single_action_space")


def is_envpool(env: Any) -> bool:
    return all(hasattr(env, name) for name in ("send", "recv", "config", "spec", "observation_space"))


def _value(copy: int, part: SpacePart, value: Any) -> NDArray[Any]:
    """Returns a copy's value of a part as an array. Raises EnvironmentFailed if the value does not fit the space."""
    try:
        return as_field(label_of(part.keys), part.field, value)
    except (TypeError, ValueError) as error:
        raise failed(copy, AGENT, error) from error


def _info_of(info: Any, copy: int, copies: int) -> dict[str, Any]:
    """Returns a copy's info from an array of infos, or from a dict of arrays, where "_x" marks the copies with "x"."""
    if not isinstance(info, Mapping):
        return dict(info[copy] or {})
    of_copy: dict[str, Any] = {}
    for name, values in info.items():
        if name.startswith("_") or name in NOT_NUMBERS or not info.get(f"_{name}", {copy: True})[copy]:
            continue
        if isinstance(values, Mapping):
            of_copy[name] = _info_of(values, copy, copies)
        elif isinstance(values, np.ndarray) and values.shape[:1] == (copies,):
            of_copy[name] = values[copy]
    return of_copy
