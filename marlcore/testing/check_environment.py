"""Whether an environment keeps the interface that marlcore relies on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..checks import came
from ..envs import adapt, factory, vectorize
from ..envs.agent_view import LARGEST_REWARD, AgentView, label_of, may_mask, wrong_values
from ..envs.copies import EMPTY_EPISODES
from ..errors import EnvironmentFailed
from ..interfaces import Environment, VectorEnvironment
from ..observations import by_name
from ..spaces import MASK, Spaces

COSTS = "training works, but a seed does not repeat a run, also in serial mode, nor the episodes of an evaluation"


def check_env(env_or_fn: Any, steps: int = 1000, seed: int = 0) -> None:
    """Plays random allowed actions, and raises at the first violation of the interface.

    Args:
        env_or_fn: a name for `envs.make`; an environment of marlcore, PettingZoo, Gymnasium or EnvPool, of one copy or
            of several; or a function that makes one. Of names and functions two environments are made.
        steps: turns in each of the three plays that are compared.
        seed: of the environment and of the actions.

    Warns:
        UserWarning: a reset with the same seed does not repeat what it gave before, or in the other environment.

    Raises:
        EnvironmentFailed: one line that names the agent, the part, what was expected and what came.
        ValueError: marlcore does not support a space. TypeError: it is no environment.
    """
    if isinstance(env_or_fn, str):
        env_or_fn = factory(env_or_fn)
    with ExitStack() as made:
        env = env_or_fn
        if not hasattr(env_or_fn, "reset") or isinstance(env_or_fn, type):
            env = _make(env_or_fn, made)
        player = _player(env)
        first = player.play(steps, seed)
        again, what = player.play(steps, seed), "the same environment, reset with the same seed"
        differs = _difference(first, again)
        if env is not env_or_fn:
            twin = _player(_make(env_or_fn, made)).play(steps, seed)
            if differs is None:
                differs, what = _difference(first, twin), "another environment, reset with the same seed"
        if differs is not None:
            warnings.warn(f"reset: expected {what}, to repeat {differs}; {COSTS}", stacklevel=2)


def _make(env_fn: Any, made: ExitStack) -> Any:
    env = env_fn()
    if hasattr(env, "close"):
        made.callback(env.close)
    return env


def _player(env: Any) -> _Single | _Several:
    several = hasattr(env, "act") or hasattr(env, "num_envs") or hasattr(env, "send")
    return _Several(vectorize(lambda: env, 1)) if several else _Single(adapt(env))


class _Event(NamedTuple):
    """Something that two plays with one seed have in common."""

    where: str
    values: list[Any]


def _difference(first: list[_Event], again: list[_Event]) -> str | None:
    """The first event of a play that another one does not repeat, and what came instead."""
    for number, (one, other) in enumerate(zip(first, again, strict=True)):
        pairs = [(one.where, other.where), *zip(one.values, other.values, strict=False)]
        for mine, its in pairs:
            if not np.array_equal(mine, its):
                return f"event {number}, {one.where}: {came(mine)}, got {came(its)}"
    return None


class _Single:
    """Plays one copy, turn by turn."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        agents = tuple(env.agents)
        if not agents or len(set(agents)) < len(agents) or not all(isinstance(agent, str) for agent in agents):
            raise EnvironmentFailed(f"agents: expected different names, got {env.agents!r}")
        for name in ("observation_spaces", "action_spaces"):
            if set(getattr(env, name)) != set(agents):
                raise EnvironmentFailed(f"{name}: expected those of {agents}, got those of {list(getattr(env, name))}")
        self._views = {
            agent: AgentView.of(agent, env.observation_spaces[agent], env.action_spaces[agent]) for agent in agents
        }
        self._refused: set[str] = set()  # misuses that the environment was seen to refuse

    def play(self, steps: int, seed: int) -> list[_Event]:
        rng = np.random.default_rng(seed)
        self._masked: dict[str, bool] = {}  # by agent: whether its infos hold masks
        events: list[_Event] = []
        empty = 0
        self._reset(seed)
        while len(events) < steps:
            agent = self._env.agent
            if agent is None:
                empty += 1
                if empty > EMPTY_EPISODES:
                    raise EnvironmentFailed(f"reset: expected an agent that acts, got {empty} episodes without one")
                self._must_refuse(None)
                self._reset(None)
                continue
            if agent not in self._views:
                raise EnvironmentFailed(f"agent: expected one of {tuple(self._views)}, got {agent!r}")
            event, ended, mask = self._turn(agent)
            events.append(event)
            if ended:
                self._must_refuse(agent)
                self._env.step(None)
            else:
                empty = 0
                self._env.step(_member(self._views[agent].spaces, mask, rng))
        return events

    def _reset(self, seed: int | None) -> None:
        self._env.reset(seed)
        agent = self._env.agent
        if agent is None:
            return
        if agent in self._views and any(self._last(agent)[2:4]):
            raise EnvironmentFailed(f"reset: expected an episode that begins, got the end of {agent}'s")

    def _last(self, agent: str) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
        last = self._env.last()
        if not isinstance(last, tuple) or len(last) != 5 or not isinstance(last[4], Mapping):
            expected = "(observation, reward, terminated, truncated, info)"
            raise EnvironmentFailed(f"last of {agent}: expected {expected}, got {came(last)}")
        return last

    def _turn(self, agent: str) -> tuple[_Event, bool, NDArray[np.bool_] | None]:
        observation, reward, terminated, truncated, info = self._last(agent)
        for name, value in {"terminated": terminated, "truncated": truncated}.items():
            if not isinstance(value, (bool, np.bool_)):
                raise EnvironmentFailed(f"{agent}: {name}: expected a bool, got {value!r}")
        number = isinstance(reward, (int, float, np.number, np.ndarray)) and np.ndim(reward) == 0
        if not number or not abs(reward) <= LARGEST_REWARD:
            raise EnvironmentFailed(f"{agent}: reward: expected a finite number of float32, got {came(reward)}")
        ended = bool(terminated or truncated)
        values, mask = self._seen(agent, observation, info, acting=not ended)
        return _Event(agent, [*values, mask, float(reward), terminated, truncated]), ended, mask

    def _seen(
        self, agent: str, observation: Any, info: Mapping[str, Any], *, acting: bool
    ) -> tuple[list[NDArray[Any]], NDArray[np.bool_] | None]:
        """The parts of an observation, and the mask, checked."""
        view = self._views[agent]
        try:
            plain, mask = view.split(observation, {})
            values = [_checked(agent, part.keys, part.space, part.of(plain)) for part in view.spaces.parts]
        except (KeyError, IndexError, TypeError):
            space = self._env.observation_spaces[agent]
            raise EnvironmentFailed(f"{agent}: obs: expected {space}, got {came(observation)}") from None
        if may_mask(self._env.observation_spaces[agent], view.spaces.action):
            mask = info.get(MASK)
            there = self._masked.setdefault(agent, mask is not None)
            if acting and there != (mask is not None):
                raise EnvironmentFailed(f"{agent}: {MASK}: expected one in every info or in none, got {came(info)}")
        if mask is None or not acting:
            return values, None
        try:
            allowed = view.mask(mask).astype(bool)
        except ValueError as error:
            raise EnvironmentFailed(f"{agent}: {error}") from None
        if not all(part.any() for part in _components(view.spaces, allowed)):
            raise EnvironmentFailed(f"{agent}: {MASK}: expected an allowed action, got {came(mask)}")
        return values, allowed

    def _must_refuse(self, agent: str | None) -> None:
        """Tries an action where none may follow, once for each agent; nothing may come of it."""
        who = agent or self._env.agents[0]
        case = f"{who}, whose episode has ended" if agent else "an episode that is over"
        if case in self._refused:
            return
        self._refused.add(case)
        try:
            self._env.step(_member(self._views[who].spaces, None, np.random.default_rng(0)))
        except Exception:
            return
        raise EnvironmentFailed(f"step: expected an error for an action of {case}, got none")


def _checked(agent: str, keys: tuple[Any, ...], space: gym.Space, value: Any) -> NDArray[Any]:
    """A part of an observation, copied. Raises EnvironmentFailed: it is not of its space."""
    array = np.array(value)
    label, dtype = f"{agent}: {label_of(keys)}", np.dtype(space.dtype)
    same = array.dtype == dtype or (isinstance(space, gym.Discrete) and array.dtype.kind in "iu")
    if array.shape != space.shape or not same:
        expected = f"{dtype.name} {space.shape}"
        raise EnvironmentFailed(f"{label}: expected {expected}, got {array.dtype.name} {array.shape}")
    _check_floats(label, space, array)
    if not space.contains(value if isinstance(space, gym.Discrete) else array):
        raise EnvironmentFailed(f"{label}: expected a member of {space}, got {came(array.tolist())}")
    return array


def _check_floats(label: str, space: gym.Space, array: NDArray[Any]) -> None:
    wrong = wrong_values(space, array) if array.dtype.kind in "fc" else None
    if wrong is not None and wrong.any():
        got = f"{array[wrong].flat[0]} in {came(array.tolist())}"
        raise EnvironmentFailed(f"{label}: expected finite numbers, got {got}")


def _components(spaces: Spaces, mask: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    if isinstance(spaces.action, gym.MultiDiscrete):
        return list(np.split(mask, np.cumsum(spaces.action.nvec)[:-1]))
    return [mask]


def _member(spaces: Spaces, mask: NDArray[np.bool_] | None, rng: np.random.Generator) -> Any:
    """A random allowed action of the space."""
    chosen = _row(spaces, mask, rng)
    if isinstance(spaces.action, gym.Discrete):
        return int(chosen + spaces.first_action)
    return (chosen + spaces.first_action).astype(chosen.dtype) if spaces.first_action.any() else chosen


def _row(spaces: Spaces, mask: NDArray[np.bool_] | None, rng: np.random.Generator) -> NDArray[Any]:
    """A random allowed action, as rows hold it."""
    space = spaces.action
    if isinstance(space, gym.Box):
        low, high = np.nan_to_num(space.low, neginf=-1.0), np.nan_to_num(space.high, posinf=1.0)
        return np.asarray(rng.uniform(np.minimum(low, high), np.maximum(low, high)), space.dtype)
    if isinstance(space, gym.MultiBinary):
        bits: NDArray[Any] = rng.integers(2, size=space.shape).astype(space.dtype)
        return bits
    allowed = np.ones(spaces.choices, bool) if mask is None else mask
    chosen = [int(rng.choice(np.flatnonzero(part))) for part in _components(spaces, allowed)]
    return np.array(chosen[0] if isinstance(space, gym.Discrete) else chosen, space.dtype)


class _Several:
    """Plays several copies, round by round."""

    def __init__(self, env: VectorEnvironment) -> None:
        self._env = env

    def play(self, steps: int, seed: int) -> list[_Event]:
        env, rng = self._env, np.random.default_rng(seed)
        env.reset(seed)
        self._pending: set[tuple[str, int]] = set()  # (agent, copy) whose action has no outcome yet
        self._begun: set[tuple[str, int]] = set()
        if np.any(env.ended):
            raise EnvironmentFailed(f"ended: expected no episodes after a reset, got {env.ended}")
        events: list[_Event] = []
        while len(events) < steps:
            outcomes, turns = env.observe()
            _check_array("ended", env.ended, (env.copies,), "i")
            if int(env.ended.sum()) != env.episodes:
                raise EnvironmentFailed(f"ended: expected {env.episodes} episodes in all copies, got {env.ended}")
            if not turns:
                raise EnvironmentFailed("observe: expected at least one turn, got none")
            for outcome in outcomes:
                events.append(self._outcome(*outcome))
            for turn in turns:
                events.append(self._turn(turn.agent, turn.copies, turn.obs, turn.begins))
            for turn in turns:
                env.act(turn, self._actions(turn, rng))
        return events[:steps]

    def _outcome(
        self, agent: str, copies: Any, reward: Any, terminated: Any, truncated: Any, final_obs: Any, infos: Any
    ) -> _Event:
        who = f"outcome of {agent}"
        self._check_copies(who, agent, copies)
        arrays = {"reward": (reward, "f"), "terminated": (terminated, "b"), "truncated": (truncated, "b")}
        for name, (array, kind) in arrays.items():
            _check_array(f"{who}: {name}", array, (len(copies),), kind)
        if not (np.abs(reward) <= LARGEST_REWARD).all():
            raise EnvironmentFailed(f"{who}: reward: expected finite numbers of float32, got {came(reward.tolist())}")
        ended = terminated | truncated
        if ended.any():
            if final_obs is None:
                raise EnvironmentFailed(f"{who}: final_obs: expected observations, since an episode ended, got None")
            self._values(f"{who}: final_obs", agent, copies, final_obs)
        for copy, end in zip(copies.tolist(), ended.tolist(), strict=True):
            if (agent, copy) not in self._pending:
                raise EnvironmentFailed(f"{who}: copy {copy}: expected none, since the agent has not acted there")
            self._pending.discard((agent, copy))
            if end:
                self._begun.discard((agent, copy))
        return _Event(who, [copies.copy(), np.array(reward), terminated.copy(), truncated.copy()])

    def _turn(self, agent: str, copies: Any, obs: Any, begins: Any) -> _Event:
        who = f"turn of {agent}"
        self._check_copies(who, agent, copies)
        values = self._values(f"{who}: obs", agent, copies, obs)
        _check_array(f"{who}: begins", begins, (len(copies),), "b")
        for copy, begin in zip(copies.tolist(), begins.tolist(), strict=True):
            if begin:  # an episode of all agents may have ended before this agent's outcome came
                self._pending.discard((agent, copy))
                self._begun.add((agent, copy))
            elif (agent, copy) in self._pending:
                raise EnvironmentFailed(f"{who}: copy {copy}: expected an outcome of its last action before this turn")
            elif (agent, copy) not in self._begun:
                raise EnvironmentFailed(f"{who}: copy {copy}: expected begins to be True in an episode's first turn")
            self._pending.add((agent, copy))
        return _Event(who, [copies.copy(), *values, begins.copy()])

    def _check_copies(self, who: str, agent: str, copies: Any) -> None:
        if agent not in self._env.agents:
            raise EnvironmentFailed(f"{who}: expected one of {self._env.agents}")
        whole = isinstance(copies, np.ndarray) and copies.ndim == 1 and copies.dtype.kind == "i" and len(copies) > 0
        if not whole or (np.diff(copies) <= 0).any() or copies[0] < 0 or copies[-1] >= self._env.copies:
            expected = f"ascending numbers below {self._env.copies}"
            raise EnvironmentFailed(f"{who}: copies: expected {expected}, got {came(copies)}")

    def _values(self, who: str, agent: str, copies: Any, values: Any) -> list[NDArray[Any]]:
        obs = self._env.spaces[agent].obs
        fields, found = by_name(obs), by_name(values)
        if found.keys() != fields.keys():
            raise EnvironmentFailed(f"{who}: expected the fields {list(fields)}, got {list(found)}")
        spaces = {part.name: part.space for part in self._env.spaces[agent].parts}
        for name, field in fields.items():
            label = f"{who}[{name!r}]" if isinstance(obs, dict) else who
            _check_array(label, found[name], (len(copies), *field.shape), field.numpy)
            if name in spaces:
                _check_floats(label, spaces[name], found[name])
        return [found[name].copy() for name in fields]

    def _actions(self, turn: Any, rng: np.random.Generator) -> NDArray[Any]:
        spaces = self._env.spaces[turn.agent]
        masks = turn.obs[MASK] if spaces.masked else [None] * len(turn.copies)
        return np.stack([_row(spaces, mask, rng) for mask in masks])


def _check_array(label: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """Raises EnvironmentFailed unless it is an array of this shape, and of this dtype or kind of dtype."""
    right = isinstance(array, np.ndarray) and array.shape == shape
    if not right or (array.dtype.kind != dtype if isinstance(dtype, str) else array.dtype != dtype):
        name = {"f": "floats", "b": "bools", "i": "integers"}[dtype] if isinstance(dtype, str) else dtype.name
        raise EnvironmentFailed(f"{label}: expected {name} {shape}, got {came(array)}")
