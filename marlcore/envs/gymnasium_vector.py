"""Gymnasium vector environments and EnvPool as VectorEnvironments: arrays all the way, without a loop over copies."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..checks import brief
from ..errors import EnvironmentFailed
from ..interfaces import Outcome, Turn
from ..observations import Values, by_name, in_form, rows_at
from ..spaces import MASK, Part, Spaces
from ..spec import as_field, rows_of
from .agent_view import AgentView, failed, label_of, may_mask, numbers, result_of
from .gymnasium import AGENT

MODES = ("NextStep", "SameStep", "Disabled")
NOT_NUMBERS = {"env_id"}  # of EnvPool


class GymnasiumVector:
    """A Gymnasium vector environment as a `VectorEnvironment` with one agent, "agent_0".

    It determines the number of copies. Every autoreset mode works; in NEXT_STEP mode a copy has no turn in the step
    that resets it. If the infos may hold action masks, the environment is reset once here to see.

    Raises: ValueError: marlcore does not support a space. EnvironmentFailed: the environment raised.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self.copies: int = int(env.num_envs)
        self.agents: tuple[str, ...] = (AGENT,)
        spaces = self._single_spaces()
        AgentView.of(AGENT, *spaces)  # refuses spaces before the reset
        masked = may_mask(*spaces) and MASK in self._call(self._reset, 0)[1]
        self._view = AgentView.of(AGENT, *spaces, masked)
        self.spaces: Mapping[str, Spaces] = {AGENT: self._view.spaces}
        self.episodes = 0
        self.ended = np.zeros(self.copies, np.int64)
        self._first: Any = None  # what a reset returned, until it is observed
        self._all = np.arange(self.copies)
        mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode", "NextStep")
        self._mode: str = getattr(mode, "value", mode)
        # In the mode Disabled, a reset of some copies returns only their masks.
        if self._mode not in MODES or (masked and self._mode == "Disabled"):
            raise ValueError(f"autoreset_mode of {env}: expected NextStep or SameStep, got {self._mode}")
        self._idle = _member(self._view)
        self._actions = np.stack([self._idle] * self.copies)

    def _single_spaces(self) -> tuple[gym.Space, gym.Space]:
        return self._env.single_observation_space, self._env.single_action_space

    def reset(self, seed: int) -> None:
        self.episodes = 0
        self.ended[:] = 0
        self._first = self._call(self._reset, int(np.random.SeedSequence(seed).generate_state(1)[0]))
        self._acting = self._all
        self._begins = np.ones(self.copies, bool)

    def _reset(self, seed: int) -> Any:
        return result_of("reset", self._env.reset(seed=seed))

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        if self._first is not None:
            (obs, info), self._first = self._first, None
            return [], [self._turn(self._values(obs, info))]
        obs, reward, terminated, truncated, info = self._call(self._step)
        terminated, truncated = _bools("terminated", terminated), _bools("truncated", truncated)
        ended = np.logical_or(terminated, truncated)
        over = ended.nonzero()[0]
        self.episodes += len(over)
        self.ended[over] += 1
        values = self._values(obs, info)
        copies, rewards = self._acting, np.asarray(reward)[self._acting]
        self._view.check_rewards(copies, rewards)
        final_obs, infos = None, []
        if len(over):
            last = _final_info(info) if self._mode == "SameStep" else info
            final_obs = self._final_obs(values, info, last, over)
            by_copy = ((copy, _numbers(last, copy, self.copies)) for copy in over.tolist()) if last else ()
            infos = [(copy, of_copy) for copy, of_copy in by_copy if of_copy]
        outcome = Outcome(AGENT, copies, rewards, terminated[copies], truncated[copies], final_obs, infos)
        if self._mode == "NextStep":
            self._begins = np.ones(self.copies, bool)
            self._begins[copies] = False
            self._acting = (~ended).nonzero()[0] if len(over) else self._all
            if len(over) == self.copies:  # nobody acts in the step that resets all
                self._actions[:] = self._idle
                self._call(self._send)
                obs, _, _, _, info = self._call(self._step)
                values, self._begins, self._acting = self._values(obs, info), ended, self._all
        else:
            self._begins = ended
            if self._mode == "Disabled" and len(over):
                values = self._values(*self._call(self._env.reset, options={"reset_mask": ended}))
        return [outcome], [self._turn(values)]

    def act(self, turn: Turn, action: NDArray[Any]) -> None:
        if len(turn.copies) < self.copies:
            self._actions[:] = self._idle
        self._actions[turn.copies] = self._view.convert(action, len(turn.copies))
        self._call(self._send)

    def _send(self) -> None:
        """The step waits for `observe`, since it may overwrite the turn's observation."""

    def _step(self) -> Any:
        return result_of("step", self._env.step(self._actions))

    def close(self) -> None:
        self._env.close()

    def _turn(self, values: Values) -> Turn:
        copies, begins = self._acting, self._begins
        if len(copies) < self.copies:
            values, begins = rows_at(values, copies), begins[copies]
        self._view.check(copies, values, acting=True)
        return Turn(AGENT, copies, values, begins)

    def _final_obs(
        self, values: Values, info: Mapping[str, Any], last: Mapping[str, Any], over: NDArray[np.int64]
    ) -> Values:
        arrays = {name: array.copy() for name, array in by_name(values).items()}
        if self._mode == "SameStep":  # the final observations are in the info, those of all copies are of later ones
            for copy in over.tolist():
                mask = last[MASK][copy] if MASK in last else None
                plain, mask = self._view.split(info["final_obs"][copy], {} if mask is None else {MASK: mask})
                for part in self._view.spaces.parts:
                    arrays[part.name][copy] = _value(copy, part, part.of(plain))
                if MASK in arrays:
                    arrays[MASK][copy] = False if mask is None else mask
        if MASK in arrays:  # no action follows, and many environments allow none
            arrays[MASK][~arrays[MASK].any(axis=1)] = True
        final_obs = in_form(arrays, values)
        self._view.check(over, rows_at(final_obs, over), acting=False)
        return final_obs if len(self._acting) == self.copies else rows_at(final_obs, self._acting)

    def _values(self, obs: Any, info: Mapping[str, Any]) -> Values:
        try:
            plain, mask = self._view.split(obs, info)
            arrays = {part.name: self._rows(part, part.of(plain)) for part in self._view.spaces.parts}
            if self._view.spaces.masked:
                arrays[MASK] = self._masks(mask)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EnvironmentFailed(f"environment, {AGENT}: {type(error).__name__}: {error}") from error
        return in_form(arrays, self._view.spaces.obs)

    def _rows(self, part: Part, values: Any) -> NDArray[Any]:
        try:
            return rows_of(label_of(part.keys), part.field, values, self.copies)
        except ValueError:
            if np.shape(values)[:1] == (self.copies,):
                for copy in range(self.copies):
                    _value(copy, part, values[copy])  # tells whose value it is
            raise

    def _masks(self, masks: Any) -> NDArray[np.bool_]:
        """The masks of all copies; a copy whose info held none allows nothing, which `check` refuses if it acts."""
        shape = self.copies, self._view.spaces.choices
        if masks is None:
            return np.zeros(shape, bool)
        if isinstance(masks, np.ndarray) and masks.dtype == object:  # tuples, one for each component
            masks = [np.zeros(shape[1], bool) if mask is None else self._view.mask(mask) for mask in masks]
        return self._view.mask(np.asarray(masks), shape[:1]).astype(bool)

    def _call(self, method: Any, *args: Any, **options: Any) -> Any:
        try:
            return method(*args, **options)
        except Exception as error:
            raise EnvironmentFailed(f"environment: {type(error).__name__}: {error}") from error


class EnvPool(GymnasiumVector):
    """`envpool.make(..., env_type="gymnasium")` in synchronous mode, whose copies compute while the actor does.

    EnvPool takes its seed only when it is made, so each reset makes the pool again.

    Raises: ValueError: the pool has another form, or marlcore does not support a space.
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

    def _send(self) -> None:
        self._env.send(self._actions)

    def _step(self) -> Any:
        return result_of("step", self._env.recv())


def is_gymnasium_vector(env: Any) -> bool:
    return hasattr(env, "num_envs") and hasattr(env, "single_action_space")


def is_envpool(env: Any) -> bool:
    return all(hasattr(env, name) for name in ("send", "recv", "config", "spec", "observation_space"))


def _bools(name: str, ends: Any) -> NDArray[np.bool_]:
    array = np.asarray(ends)
    if array.dtype.kind not in "biu":
        raise EnvironmentFailed(f"{AGENT}: {name}: expected bools, got {brief(ends)}")
    return array.astype(bool, copy=False)


def _value(copy: int, part: Part, value: Any) -> NDArray[Any]:
    """A copy's value of a part. Raises EnvironmentFailed: it does not fit the space."""
    try:
        return as_field(label_of(part.keys), part.field, value)
    except (TypeError, ValueError) as error:
        raise failed(copy, AGENT, error) from error


def _member(view: AgentView) -> NDArray[Any]:
    """An action for copies that take none; some environments check that it is of the space."""
    zero, space = view.spaces.action_field.zeros(), view.spaces.action
    fixed = np.clip(zero, space.low, space.high) if isinstance(space, gym.Box) else view.spaces.shifted(zero)
    return fixed.astype(zero.dtype)


def _final_info(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """The infos at the episodes' ends in SAME_STEP mode; Gymnasium's statistics stand beside them, not inside."""
    statistics = {name: info[name] for name in ("episode", "_episode") if name in info}
    return {**statistics, **info.get("final_info", {})}


def _numbers(info: Mapping[str, Any], copy: int, copies: int) -> dict[str, float]:
    """The numbers of a copy in an info of arrays, whose "_name" says where "name" is present."""

    def holds(name: str) -> bool:
        return f"_{name}" not in info or bool(info[f"_{name}"][copy])

    of_copy = {
        name: values[copy]
        for name, values in info.items()
        if isinstance(values, np.ndarray)
        and values.shape == (copies,)
        and not name.startswith("_")
        and name not in NOT_NUMBERS
        and holds(name)
    }
    statistics = info.get("episode")
    if isinstance(statistics, Mapping) and holds("episode"):
        of_copy["episode"] = _numbers(statistics, copy, copies)
    return numbers(of_copy)
