"""Checks whether an environment keeps the interface that marlcore relies on."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..checks import brief, check_type, check_whole
from ..envs import adapt, factory, is_vector, vectorize
from ..envs.agent_view import EXPECTED_MASK, LARGEST_REWARD, AgentView, Result, as_reward, label_of, wrong_values
from ..envs.copies import EMPTY_EPISODES, masked_agents
from ..envs.joint import state_field, state_of
from ..envs.pettingzoo import is_parallel
from ..errors import EnvironmentFailed
from ..interfaces import Environment, Outcome, Turn, VectorEnvironment
from ..observations import by_name
from ..spaces import MASK, Spaces

Event = tuple[Any, ...]  # where something happened, and the values that two plays with one seed have in common
PATIENCE = 10  # an episode should end within this many times the turns that are compared
COSTS = "training works, but no seed repeats a run (even in serial mode) or an evaluation's episodes"
ENDLESS = "endless episodes have no returns, and no evaluation ends: truncate them, as gymnasium's TimeLimit does"


def check_env(env_or_fn: Any, steps: int = 1000, seed: int = 0) -> None:
    """Plays random allowed actions, and raises at the first violation of the interface.

    Args:
        env_or_fn: a name for `envs.make`; an environment of marlcore, PettingZoo, Gymnasium or EnvPool, of one copy or
            several; or a function that makes one. With a name or a function, two environments are made and compared.
        steps: number of turns in each play.
        seed: seeds the environment and the actions.

    Warns:
        UserWarning: two plays with one seed differ, or no episode ended within 10 * `steps` turns.

    Raises:
        EnvironmentFailed: a violation; one line names the agent, the part, the expected value and the actual one.
        ValueError: marlcore does not support a space. TypeError: `env_or_fn` neither is nor makes an environment.
    """
    check_whole("steps", steps)
    if isinstance(env_or_fn, str):
        env_or_fn = factory(env_or_fn)
    with ExitStack() as made:
        env = env_or_fn
        if not hasattr(env_or_fn, "reset") or isinstance(env_or_fn, type):
            check_type("env_or_fn", env_or_fn, Callable, expected="an environment, or a function that makes one")
            env = _make(env_or_fn, made)
        player = _player(env)
        first = player.play(steps, seed, most=PATIENCE * steps)
        if not player.ended:
            warnings.warn(f"episodes: expected an end, got none in {PATIENCE * steps} turns; {ENDLESS}", stacklevel=2)
        _check_state(env, seed)
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


def _player(env: Any) -> "_Single | _Several":
    several = is_vector(env) or hasattr(env, "num_envs") or hasattr(env, "send")
    return _Several(vectorize(lambda: env, 1)) if several else _Single(adapt(env))


def _check_state(env: Any, seed: int) -> None:
    """Checks `state()` of a PettingZoo Parallel environment with a `state_space`, the input of central critics."""
    field = state_field(env)
    if field is not None and is_parallel(env):
        env.reset(seed=seed)
        try:
            state = state_of(env, field)
        except Exception as error:  # the environment may raise anything
            raise EnvironmentFailed(str(error) or f"state(): {type(error).__name__}") from error
        _require(np.isfinite(state).all(), "state()", "finite numbers", state.tolist())


def _difference(first: list[Event], again: list[Event]) -> str | None:
    for number, (event, other) in enumerate(zip(first, again, strict=True)):
        for value, repeated in zip(event, other, strict=False):
            if not np.array_equal(value, repeated):
                return f"event {number}, {event[0]}: {brief(value)}, got {brief(repeated)}"
    return None


def _require(holds: Any, label: str, expected: str, value: Any) -> None:
    if not holds:
        raise EnvironmentFailed(f"{label}: expected {expected}, got {brief(value)}")


class _Single:
    def __init__(self, env: Environment) -> None:
        self._env = env
        agents = tuple(env.agents)
        differ = agents and len(set(agents)) == len(agents) and all(isinstance(agent, str) for agent in agents)
        _require(differ, "agents", "different names", env.agents)
        for name in ("observation_spaces", "action_spaces"):
            named = list(getattr(env, name))
            if set(named) != set(agents):
                raise EnvironmentFailed(f"{name}: expected spaces of {agents}, got spaces of {named}")
        self._reset(0)
        if env.agent in agents:
            self._last(env.agent)  # so that an early fault is reported by this check, not by an exception below
        self._views = {
            agent: AgentView.of(agent, env.observation_spaces[agent], env.action_spaces[agent], masked)
            for agent, masked in masked_agents(env).items()
        }
        self._refused: set[str] = set()  # misuses that the environment was seen to refuse
        self.ended = False  # whether an agent's episode has ended

    def play(self, steps: int, seed: int, most: int = 0) -> list[Event]:
        """Plays `steps` turns, and up to `most` if no episode ended; returns the events of the first `steps` turns."""
        choosers = {agent: _Chooser(view.spaces, seed) for agent, view in self._views.items()}
        self._masked: dict[str, bool] = {}  # by agent: whether it has masks when it acts
        events: list[Event] = []
        empty = turns = 0
        self._reset(seed)
        while turns < steps or (turns < most and not self.ended):
            agent = self._env.agent
            if agent is None:
                empty += 1
                if empty > EMPTY_EPISODES:
                    raise EnvironmentFailed(f"reset: expected an agent that acts, got {empty} episodes without one")
                self._must_refuse(None)
                self._reset(None)
                continue
            _require(agent in self._views, "agent", f"one of {tuple(self._views)}", agent)
            event, ended, mask = self._turn(agent)
            turns, self.ended = turns + 1, self.ended or ended
            events += [event][: turns <= steps]
            if ended:
                if agent in self._over:  # some may be out before anyone acts, but not for a second time
                    raise EnvironmentFailed(f"reset: expected a new episode, got a second end of {agent}'s episode")
                self._over.add(agent)
                self._must_refuse(agent)
                self._env.step(None)
            else:
                empty = 0
                self._over.discard(agent)  # an agent may return in the same episode
                self._env.step(choosers[agent].choose(mask))
        return events

    def _reset(self, seed: int | None) -> None:
        self._env.reset(seed)
        self._over: set[str] = set()  # agents whose episode has ended

    def _last(self, agent: str) -> Result:
        last = self._env.last()
        right = isinstance(last, tuple) and len(last) == 5 and isinstance(last[4], Mapping)
        _require(right, f"last of {agent}", "(observation, reward, terminated, truncated, info)", last)
        return last

    def _turn(self, agent: str) -> tuple[Event, bool, NDArray[np.bool_] | None]:
        observation, reward, terminated, truncated, info = self._last(agent)
        for name, value in {"terminated": terminated, "truncated": truncated}.items():
            _require(np.size(value) == 1 and np.asarray(value).dtype == bool, f"{agent}: {name}", "a bool", value)
        number = np.nan
        with suppress(TypeError, ValueError, OverflowError):
            number = as_reward(reward)
        _require(abs(number) <= LARGEST_REWARD, f"{agent}: reward", "a finite number of float32", reward)
        ended = bool(terminated or truncated)
        values, mask = self._seen(agent, observation, info, acting=not ended)
        return (agent, *values, mask, number, terminated, truncated), ended, mask

    def _seen(
        self, agent: str, observation: Any, info: Mapping[str, Any], *, acting: bool
    ) -> tuple[list[NDArray[Any]], NDArray[np.bool_] | None]:
        view, space = self._views[agent], self._env.observation_spaces[agent]
        try:
            plain, mask = view.split(observation, info)
            values = [_checked(agent, part.keys, part.space, part.of(plain)) for part in view.spaces.parts]
            allowed = view.mask(mask).astype(bool) if mask is not None else None
        except (KeyError, IndexError, TypeError):
            raise EnvironmentFailed(f"{agent}: obs: expected {space}, got {brief(observation)}") from None
        except ValueError as error:
            raise EnvironmentFailed(f"{agent}: {error}") from None
        if acting and self._masked.setdefault(agent, mask is not None) != (mask is not None):
            raise EnvironmentFailed(f"{agent}: {EXPECTED_MASK}{brief(info)}")
        if not acting or allowed is None:
            return values, None
        can = np.logical_or.reduceat(allowed, view.spaces.mask_starts).all()
        _require(can, f"{agent}: {MASK}", "an allowed action", mask)
        return values, allowed

    def _must_refuse(self, agent: str | None) -> None:
        """Checks that `step` raises after the agent's end or, if `agent` is None, after the whole episode's end."""
        actor = agent or self._env.agents[0]
        case = f"{actor}, whose episode has ended" if agent else "an episode that is over"
        if case in self._refused:
            return
        self._refused.add(case)
        try:
            self._env.step(_Chooser(self._views[actor].spaces, 0).choose(None))
        except Exception:
            return
        raise EnvironmentFailed(f"step: expected an error for an action of {case}, got none")


def _checked(agent: str, keys: tuple[Any, ...], space: gym.Space, value: Any) -> NDArray[Any]:
    array = np.array(value)
    label, dtype = f"{agent}: {label_of(keys)}", np.dtype(space.dtype)
    same = array.dtype == dtype or (isinstance(space, gym.Discrete) and array.dtype.kind in "iu")
    if array.shape != space.shape or not same:
        expected = f"{dtype.name} {space.shape}"
        raise EnvironmentFailed(f"{label}: expected {expected}, got {array.dtype.name} {array.shape}")
    if array.dtype.kind in "fc":
        _check_values(label, space, array)
    member = space.contains(value if isinstance(space, gym.Discrete) else array)
    _require(member, label, f"a member of {space}", array.tolist())
    return array


def _check_values(label: str, space: gym.Space, array: NDArray[Any]) -> None:
    wrong = wrong_values(space, array)
    if wrong is not None and wrong.any():
        expected = "finite numbers" if array.dtype.kind in "fc" else brief(space)
        got = f"{array[wrong].flat[0]} in {brief(array.tolist())}"
        raise EnvironmentFailed(f"{label}: expected {expected}, got {got}")


class _Chooser:
    def __init__(self, spaces: Spaces, seed: int) -> None:
        self._spaces = spaces
        self._space = deepcopy(spaces.action)
        self._space.seed(seed)

    def choose(self, mask: NDArray[np.bool_] | None) -> Any:
        allowed: Any = None
        if mask is not None:
            parts = tuple(np.split(mask.astype(np.int8), self._spaces.mask_starts[1:]))
            allowed = parts if isinstance(self._space, gym.MultiDiscrete) else parts[0]
        action = self._space.sample(allowed)
        return int(action) if isinstance(self._space, gym.Discrete) else action


@dataclass
class _Several:
    _env: VectorEnvironment
    ended: bool = False

    def play(self, steps: int, seed: int, most: int = 0) -> list[Event]:
        env = self._env
        choosers = {agent: _Chooser(spaces, seed) for agent, spaces in env.spaces.items()}
        env.reset(seed)
        self._pending: set[tuple[str, int]] = set()  # (agent, copy) whose action has no outcome yet
        self._begun: set[tuple[str, int]] = set()
        if np.any(env.ended):
            raise EnvironmentFailed(f"ended: expected zeros after a reset, got {env.ended}")
        events: list[Event] = []
        played = 0
        while len(events) < steps or (played < most and not self.ended):
            episodes = env.episodes
            outcomes, turns = env.observe()
            self.ended |= env.episodes > 0
            played += len(turns)
            _check_array("ended", env.ended, (env.copies,), "i")
            if int(env.ended.sum()) != env.episodes:
                raise EnvironmentFailed(f"ended: expected a sum of {env.episodes}, as in `episodes`, got {env.ended}")
            if not turns and env.episodes == episodes:
                raise EnvironmentFailed("observe: expected at least one turn, got none")
            happened = [*map(self._outcome, outcomes), *map(self._turn, turns)]
            events += happened[: max(0, steps - len(events))]
            for turn in turns:
                env.act(turn, self._actions(turn, choosers[turn.agent]))
        return events

    def _outcome(self, outcome: Outcome) -> Event:
        agent, copies, reward, terminated, truncated, final_obs, *_ = outcome
        label = f"outcome of {agent}"
        self._check_copies(label, agent, copies)
        arrays = {"reward": (reward, "f"), "terminated": (terminated, "b"), "truncated": (truncated, "b")}
        for name, (array, kind) in arrays.items():
            _check_array(f"{label}: {name}", array, (len(copies),), kind)
        fits = (np.abs(reward) <= LARGEST_REWARD).all()
        _require(fits, f"{label}: reward", "finite numbers of float32", reward.tolist())
        ended = terminated | truncated
        if ended.any():
            final = f"{label}: final_obs"
            _require(final_obs is not None, final, "observations, since an episode ended", final_obs)
            self._values(final, agent, copies, final_obs, told=ended)
        for copy, end in zip(copies.tolist(), ended.tolist(), strict=True) if outcome.acted else ():
            if (agent, copy) not in self._pending:
                raise EnvironmentFailed(f"{label}: copy {copy}: expected no outcome, since the agent has not acted")
            self._pending.discard((agent, copy))
            if end:
                self._begun.discard((agent, copy))
        return label, copies.copy(), np.array(reward), terminated.copy(), truncated.copy()

    def _turn(self, turn: Turn) -> Event:
        agent, copies, obs, begins, _ = turn
        label = f"turn of {agent}"
        self._check_copies(label, agent, copies)
        values = self._values(f"{label}: obs", agent, copies, obs)
        _check_array(f"{label}: begins", begins, (len(copies),), "b")
        for copy, begin in zip(copies.tolist(), begins.tolist(), strict=True):
            place, where = (agent, copy), f"{label}: copy {copy}"
            if begin:  # an episode of all agents may have ended before this agent's outcome came
                self._begun.add(place)
            elif place in self._pending:
                raise EnvironmentFailed(f"{where}: expected an outcome of its last action before this turn")
            elif place not in self._begun:
                raise EnvironmentFailed(f"{where}: expected begins to be True in an episode's first turn")
            self._pending.add(place)
        return label, copies.copy(), *values, begins.copy()

    def _check_copies(self, label: str, agent: str, copies: Any) -> None:
        if agent not in self._env.agents:
            raise EnvironmentFailed(f"{label}: expected an agent of {self._env.agents}")
        whole = isinstance(copies, np.ndarray) and copies.ndim == 1 and copies.dtype.kind == "i" and len(copies) > 0
        right = whole and (np.diff(copies) > 0).all() and copies[0] >= 0 and copies[-1] < self._env.copies
        _require(right, f"{label}: copies", f"ascending numbers below {self._env.copies}", copies)

    def _values(self, label: str, agent: str, copies: Any, values: Any, told: Any = ...) -> list[NDArray[Any]]:
        """Checks observations of these copies; `told` selects those that are more than filler."""
        obs = self._env.spaces[agent].obs
        fields, arrays = by_name(obs), by_name(values)
        _require(arrays.keys() == fields.keys(), label, f"the fields {list(fields)}", list(arrays))
        spaces = {part.name: part.space for part in self._env.spaces[agent].parts}
        for name, field in fields.items():
            of_part = f"{label}[{name!r}]" if isinstance(obs, dict) else label
            _check_array(of_part, arrays[name], (len(copies), *field.shape), field.numpy)
            if name in spaces:
                _check_values(of_part, spaces[name], arrays[name][told])
        return [arrays[name].copy() for name in fields]

    def _actions(self, turn: Turn, chooser: _Chooser) -> NDArray[Any]:
        spaces, obs = self._env.spaces[turn.agent], turn.obs
        masks = obs[MASK] if isinstance(obs, dict) and spaces.masked else [None] * len(turn.copies)
        actions = np.stack([chooser.choose(mask) for mask in masks])
        shift = spaces.action_start
        return (actions - shift if shift.any() else actions).astype(spaces.action_field.dtype)


def _check_array(label: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
    by_kind = isinstance(dtype, str)  # a kind: "f", "b" or "i"
    right = isinstance(array, np.ndarray) and array.shape == shape
    right = right and (array.dtype.kind if by_kind else array.dtype) == dtype
    name = {"f": "floats", "b": "bools", "i": "integers"}[dtype] if by_kind else dtype.name
    _require(right, label, f"{name} {shape}", array)
