"""A VectorEnvironment made of single environments, which it steps one by one."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn, TypeAlias

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..checks import brief
from ..errors import EnvironmentFailed
from ..interfaces import MEMBER_REWARDS, Environment, Outcome, Turn
from ..observations import ALONE, Values, by_name, rows_at
from ..spaces import ALIVE, MASK, Spaces
from ..spec import as_field, rows_of
from .agent_view import (
    EXPECTED_MASK,
    Absent,
    Adapter,
    AgentView,
    Result,
    as_reward,
    failed,
    label_of,
    may_mask,
    numbers,
    result_of,
)
from .gymnasium import GymnasiumEnvironment
from .lockstep import child_seeds
from .pettingzoo import ParallelRounds, is_parallel

# Copy, reward, terminated, truncated, the numbers of an ended episode's info, the rewards of a team's members
Row = tuple[int, float, bool, bool, dict[str, float], Any]
TAG = "tag"  # in the info of an agent's first observation: the kind of the episode
EMPTY_EPISODES = 1000  # after so many episodes in a row without an action, the environment counts as broken


class Copies:
    """A VectorEnvironment over copies, each an `Environment` or a PettingZoo Parallel environment.

    Copy i is seeded by the i-th child of the seed's SeedSequence. Agents that act simultaneously get their turns from
    the same `observe`; when all have acted, the next `observe` steps their copy. If infos may hold action masks, the
    constructor resets the first copy once to find out.

    Raises: ValueError: marlcore does not support a space, or the agents are not known in advance.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        self._envs = [_in_rounds(env, copy) for copy, env in enumerate(envs)]
        first = self._envs[0]
        try:
            masked = masked_agents(first)
        except Exception as error:
            raise_in_copy(error, 0)
        views = {
            agent: AgentView.of(agent, first.observation_spaces[agent], first.action_spaces[agent], masked[agent])
            for agent in first.agents
        }
        self.copies = len(self._envs)
        self.agents: tuple[str, ...] = tuple(first.agents)
        self.spaces: Mapping[str, Spaces] = {agent: view.spaces for agent, view in views.items()}
        self.episodes = 0
        self.ended = np.zeros(self.copies, np.int64)
        self._buffers = _Buffers({agent: AgentBuffer(view, self.copies) for agent, view in views.items()})

    def reset(self, seed: int) -> None:
        self.episodes = 0
        self.ended[:] = 0
        self._empty = [0] * self.copies  # episodes in a row without an action
        for buffer in self._buffers.values():
            buffer.begin()
        for copy, (env, child) in enumerate(zip(self._envs, child_seeds(seed, self.copies), strict=True)):
            try:
                env.reset(child)
            except Exception as error:
                raise_in_copy(error, copy)

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        for copy, env in enumerate(self._envs):
            try:
                self._advance(copy, env)
            except Exception as error:
                raise_in_copy(error, copy)
        outcomes: list[Outcome] = []
        turns: list[Turn] = []
        for buffer in self._buffers.values():
            buffer.gather(outcomes, turns)
        return outcomes, turns

    def _advance(self, copy: int, env: "Rounds") -> None:
        """Plays a copy until an agent must act, or until two episodes in a row end before an agent acts."""
        acting = False
        for ends in (True, False):
            while not acting and (results := env.round()):
                for agent, result in results.items():
                    buffer = self._buffers[agent]
                    if isinstance(result, Absent):
                        buffer.leave(copy, result.reward)
                    elif buffer.acts_after(copy, result):
                        acting = True
                    else:
                        env.act(agent, None)
            if acting:
                self._empty[copy] = 0
                return
            if ends:
                self._end(copy, env)

    def _end(self, copy: int, env: "Rounds") -> None:
        self._empty[copy] += 1
        if self._empty[copy] > EMPTY_EPISODES:
            raise RuntimeError(f"expected an agent that acts, got {EMPTY_EPISODES} episodes without one")
        self.episodes += 1
        self.ended[copy] += 1
        for buffer in self._buffers.values():
            buffer.begin_copy(copy)
        env.reset()

    def act(self, turn: Turn, action: NDArray[Any]) -> None:
        copies = turn.copies.tolist()
        for copy, value in zip(copies, self._buffers[turn.agent].acted(copies, action), strict=True):
            try:
                self._envs[copy].act(turn.agent, value)
            except Exception as error:
                raise_in_copy(error, copy, turn.agent)

    def close(self) -> None:
        with ExitStack() as stack:
            for env in self._envs:
                stack.callback(env.close)


class AgentBuffer:
    """One agent's results and observations in `copies` copies of an environment.

    In a round, call the other methods for copies in ascending order, then `gather`. A reward that comes before the
    agent's first action of an episode, or after the agent's end, is not due to an action: the buffer sets it aside
    until the episode is over for all agents.
    """

    def __init__(self, view: AgentView, copies: int) -> None:
        self.view = view
        self._everywhere = np.arange(copies)
        self._parts = [(part, part.name, part.field.numpy, part.field.shape) for part in view.spaces.parts]
        self._is_team = any(part.keys[-1:] == (ALIVE,) for part in view.spaces.parts)
        self._is_named = isinstance(view.spaces.obs, dict)
        fields = by_name(view.spaces.obs)
        # Whether the agent's infos hold masks when it acts; None until its first turn
        self._masks = None if view.mask_in == "info" else True
        self._seen, self._final = ({name: field.zeros(copies) for name, field in fields.items()} for _ in range(2))
        self.begin()

    def begin(self) -> None:
        copies = len(self._everywhere)
        self._pending = [False] * copies  # whether the last action's outcome is still missing
        self._begins = [True] * copies
        self._results: list[Row] = []  # results of actions
        self._aside: dict[int, tuple[float, dict[str, float]]] = {}  # by copy: rewards without action, numbers of info
        self._over: list[Row] = []  # rewards that were set aside in episodes that are over
        self._asked: list[int] = []
        self._tags: dict[int, Any] = {}

    def begin_copy(self, copy: int) -> None:
        self._pending[copy] = False
        self._begins[copy] = True
        if copy in self._aside:
            earned, of_info = self._aside.pop(copy)
            self._over.append((copy, earned, False, False, of_info, None))

    def leave(self, copy: int, reward: Any) -> None:
        """Sets aside an absent agent's reward. If the agent left before its end, its last action gets no outcome."""
        self._pending[copy] = False
        self._begins[copy] = True
        self._set_aside(copy, reward, {})

    def acted(self, copies: list[int], action: NDArray[Any]) -> list[Any]:
        """Marks the agent as having acted in these copies; converts its actions [k, ...] to the form that `step` takes.

        Raises ValueError or TypeError if the actions do not fit the space.
        """
        spaces = self.view.spaces
        actions = spaces.shifted(rows_of("action", spaces.action_field, action, len(copies)))
        for copy in copies:
            self._pending[copy] = True
            self._begins[copy] = False
        is_discrete, dtype = isinstance(spaces.action, gym.Discrete), spaces.action_field.numpy
        return actions.tolist() if is_discrete else list(actions.astype(dtype))  # copies, which environments may keep

    def acts_after(self, copy: int, result: Result) -> bool:
        """Stores a copy's result; returns whether the agent acts next, that is, whether its episode continues."""
        observation, reward, terminated, truncated, info = result
        if terminated.__class__ is not bool:
            terminated = self._end(copy, "terminated", terminated)
        if truncated.__class__ is not bool:
            truncated = self._end(copy, "truncated", truncated)
        ended = terminated or truncated
        of_info = numbers(info) if ended else {}
        if self._pending[copy]:
            earned = reward if reward.__class__ is float else self._number(copy, reward)
            by_member = info.get(MEMBER_REWARDS) if self._is_team else None
            self._results.append((copy, earned, terminated, truncated, of_info, by_member))
            if ended:
                self._put(self._final, copy, observation, info, final=True)
        else:
            self._set_aside(copy, reward, of_info)
        self._pending[copy] = False
        if ended:
            self._begins[copy] = True
            return False
        self._put(self._seen, copy, observation, info)
        self._asked.append(copy)
        if self._begins[copy] and TAG in info:
            self._tags[copy] = info[TAG]
        return True

    def _set_aside(self, copy: int, reward: Any, of_info: dict[str, float]) -> None:
        if (number := self._number(copy, reward)) or of_info:
            earned, of_earlier = self._aside.get(copy, (0.0, {}))
            self._aside[copy] = earned + number, of_earlier | of_info

    def gather(self, outcomes: list[Outcome], turns: list[Turn]) -> None:
        """Adds this round's results and turn to the lists. Raises EnvironmentFailed if a value is wrong."""
        if self._results:
            outcomes.append(self._outcome(self._results, acted=True))
        if self._over:
            outcomes.append(self._outcome(self._over, acted=False))
        if self._asked:
            begins = [*map(self._begins.__getitem__, self._asked)]
            copies = self._everywhere if len(begins) == len(self._everywhere) else np.array(self._asked)
            obs = self._rows(self._seen, copies)
            self.view.check(copies, obs, acting=True)
            turns.append(Turn(self.view.agent, copies, obs, np.array(begins), self._tags))
        self._results, self._over, self._asked, self._tags = [], [], [], {}

    def _outcome(self, rows: list[Row], *, acted: bool) -> Outcome:
        where, *columns, infos, of_members = zip(*rows, strict=True)
        copies = self._everywhere if len(where) == len(self._everywhere) else np.array(where)
        reward, terminated, truncated = map(np.array, columns)
        final_obs = self._rows(self._final, copies) if True in columns[1] or True in columns[2] else None
        of_ended = [of_copy for of_copy in zip(where, infos, strict=True) if of_copy[1]] if any(infos) else ()
        ends = terminated, truncated, final_obs, of_ended
        outcome = Outcome(self.view.agent, copies, reward, *ends, of_members if self._is_team else (), acted)
        self.view.check_outcome(outcome)
        return outcome

    def _number(self, copy: int, reward: Any) -> float:
        try:
            return as_reward(reward)
        except (TypeError, ValueError, OverflowError) as error:
            raise failed(copy, self.view.agent, f"reward: expected a number, got {brief(reward)}") from error

    def _end(self, copy: int, name: str, value: Any) -> bool:
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in "biu":  # bool("False") would be True, bool(None) False
            raise failed(copy, self.view.agent, f"{name}: expected a bool, got {brief(value)}")
        return bool(array)

    def _rows(self, arrays: dict[str, NDArray[Any]], copies: NDArray[np.int64]) -> Values:
        if copies is not self._everywhere:
            arrays = rows_at(arrays, copies)
        return dict(arrays) if self._is_named else arrays[ALONE]

    def _put(
        self, arrays: dict[str, NDArray[Any]], copy: int, observation: Any, info: Mapping[str, Any], final: bool = False
    ) -> None:
        try:
            plain, mask = observation, None
            if self.view.mask_in or info.get(MASK) is not None:
                plain, mask = self.view.split(observation, info)
            for part, name, dtype, shape in self._parts:
                value = part.of(plain) if part.keys else plain
                array = value if value.__class__ is np.ndarray else np.asarray(value)
                if array.dtype != dtype or array.shape != shape:
                    array = as_field(label_of(part.keys), part.field, value)
                if arrays is self._seen and len(self._everywhere) == 1:  # the caller reads it before the next step
                    arrays[name] = (array if array.flags.carray else array.copy())[None]
                else:
                    arrays[name][copy] = array
            if self.view.spaces.masked:
                arrays[MASK][copy] = self._final_mask(mask) if final else self._acting_mask(mask)
        except (KeyError, IndexError) as error:
            keys = ", ".join(label_of(part.keys) for part in self.view.spaces.parts)
            masked = f" and its {MASK}" if self.view.mask_in == "observation" else ""
            reason = f"obs: expected {keys}{masked}, got {brief(observation)}"
            raise failed(copy, self.view.agent, reason) from error
        except (TypeError, ValueError) as error:
            raise failed(copy, self.view.agent, error) from error

    def _acting_mask(self, mask: Any) -> NDArray[Any] | bool:
        """Returns the mask of an agent that acts; True, which allows all actions, if its infos never hold masks."""
        if self._masks is None:
            self._masks = mask is not None
        if not self._masks and mask is not None:
            raise ValueError(EXPECTED_MASK + brief(mask))
        return self.view.mask(mask) if self._masks else True

    def _final_mask(self, mask: Any) -> NDArray[Any] | bool:
        """Returns the mask of a final observation, which no action follows; if it is missing, it allows all actions."""
        return True if mask is None else self.view.spaces.with_choices(self.view.mask(mask))


class _Turns(Adapter):
    """Gives the methods of ParallelRounds to a copy whose agents act one after another: a round is one agent's turn."""

    def __init__(self, env: Environment, copy: int) -> None:
        self.agents, self.observation_spaces, self.action_spaces = env.agents, env.observation_spaces, env.action_spaces
        self.reset = env.reset
        self._env = env
        self._copy = copy

    @property
    def infos(self) -> Mapping[str, Mapping[str, Any]]:
        """The info of the agent that acts, and all infos with a mask; many environments give masks only in turns."""
        agent = self._env.agent
        infos: Any = getattr(self._env, "infos", None)
        if not infos and agent is not None:
            return {agent: result_of("last", self._env.last())[4]}
        return {name: info for name, info in (infos or {}).items() if name == agent or MASK in info}

    def round(self) -> Mapping[str, Result]:
        agent = self._env.agent
        if agent is None:
            return {}
        try:
            return {agent: result_of("last", self._env.last())}
        except Exception as error:
            raise_in_copy(error, self._copy, agent)

    def act(self, agent: str, action: Any) -> None:
        try:
            self._env.step(action)
        except Exception as error:
            raise_in_copy(error, self._copy, agent)


Rounds: TypeAlias = GymnasiumEnvironment | ParallelRounds | _Turns


def _in_rounds(env: Any, copy: int) -> Rounds:
    if is_parallel(env):
        return ParallelRounds(env, copy)
    return env if type(env) is GymnasiumEnvironment else _Turns(env, copy)  # a subclass may override `step`


class _Buffers(dict[str, AgentBuffer]):
    def __missing__(self, agent: Any) -> AgentBuffer:
        raise ValueError(f"agent: expected one of the agents named at first, {list(self)}, got {agent!r}")


def raise_in_copy(error: Exception, copy: int, agent: str = "") -> NoReturn:
    """Raises `error` if it is an EnvironmentFailed, otherwise one that names the copy and, if given, the agent."""
    if isinstance(error, EnvironmentFailed):
        raise error
    where = f"{copy}, {agent}" if agent else copy
    raise EnvironmentFailed(f"environment copy {where}: {type(error).__name__}: {error}") from error


def masked_agents(env: Environment | Rounds) -> dict[str, bool]:
    """Returns, by agent, whether its infos hold action masks.

    Resets the environment to find out, unless no agent's spaces allow masks. An agent that has no info after the reset
    counts as masked if any other agent is.
    """
    may = {agent: may_mask(env.observation_spaces[agent], env.action_spaces[agent]) for agent in env.agents}
    if not any(may.values()):
        return may
    env.reset(0)
    infos = env.infos if isinstance(env, (ParallelRounds, _Turns)) else _Turns(env, 0).infos
    has = {agent: MASK in info for agent, info in infos.items()}
    return {agent: may[agent] and has.get(agent, any(has.values())) for agent in may}
