"""Several single copies as a VectorEnvironment, which advances them one by one."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import EnvironmentFailed
from ..interfaces import Environment, Outcome, Turn
from ..spaces import MASK, Spaces
from .agent_buffer import AgentBuffer
from .agent_view import Absent, Adapter, AgentView, Result, may_mask, result_of
from .gymnasium import GymnasiumEnvironment
from .lockstep import child_seeds
from .pettingzoo import ParallelRounds, is_parallel

EMPTY_EPISODES = 1000  # after so many episodes in a row without an action, the environment counts as broken


class Copies:
    """A VectorEnvironment over copies, each an `Environment` or a PettingZoo Parallel environment.

    Copy i begins with the i-th child of the seed's SeedSequence. Agents that act simultaneously get their turns from
    the same `observe`; when all have acted, the next `observe` steps their copy. If infos may hold action masks, the
    constructor resets the first copy once to find out. Raises: ValueError: marlcore does not support a space, or the
    agents are not known in advance.
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
        """Plays until an agent acts or two episodes have ended; after that, the next `observe` begins an episode."""
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


class _Turns(Adapter):
    """Plays a copy whose agents act one after another, with ParallelRounds' methods; a round is one agent's turn."""

    def __init__(self, env: Environment, copy: int) -> None:
        self.agents, self.observation_spaces, self.action_spaces = env.agents, env.observation_spaces, env.action_spaces
        self.reset = env.reset
        self._env = env
        self._copy = copy

    @property
    def infos(self) -> Mapping[str, Mapping[str, Any]]:
        """The acting agent's info, and every info with a mask; many environments give a mask only during a turn."""
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
    return env if isinstance(env, GymnasiumEnvironment) else _Turns(env, copy)


class _Buffers(dict[str, AgentBuffer]):
    def __missing__(self, agent: Any) -> AgentBuffer:
        raise ValueError(f"agent: expected one of {list(self)}, which the environment named at first, got {agent!r}")


def raise_in_copy(error: Exception, copy: int, agent: str = "") -> NoReturn:
    """Raises EnvironmentFailed with the number of the copy that raised, and the agent if known."""
    if isinstance(error, EnvironmentFailed):
        raise error
    where = f"{copy}, {agent}" if agent else copy
    raise EnvironmentFailed(f"environment copy {where}: {type(error).__name__}: {error}") from error


def masked_agents(env: Environment | Rounds) -> dict[str, bool]:
    """Tells for each agent whether its infos hold masks; if any agent's infos may, resets the environment to find out.

    An agent without an info after the reset counts as masked if another agent is.
    """
    may = {agent: may_mask(env.observation_spaces[agent], env.action_spaces[agent]) for agent in env.agents}
    if not any(may.values()):
        return may
    env.reset(0)
    infos = env.infos if isinstance(env, (ParallelRounds, _Turns)) else _Turns(env, 0).infos
    has = {agent: MASK in info for agent, info in infos.items()}
    return {agent: may[agent] and has.get(agent, any(has.values())) for agent in may}
