"""The actor's loop: observe, act, write the transition; it never waits for the learner.

An actor steps several environment copies in turn: one call of an agent's network chooses the actions of all copies in
which that agent acts next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ..checks import as_field
from ..errors import EnvironmentFailed
from ..interfaces import Algorithm, Environment

__all__ = ["Actor", "Policy"]

T = TypeVar("T")

Report = Callable[[str, str, float], None]

FIRST_PULL_S = 0.1


class Subscriber(Protocol):
    """A source of an agent's newest weights; see weights/store.py."""

    version: int
    extras: Mapping[str, Any]

    def pull(self, timeout: float = 1.0) -> bool: ...


class RowWriter(Protocol):
    """A destination of transitions; see transitions/writer.py."""

    policy_version: int

    def add(self, obs: Any, action: Any, reward: float, terminated: bool, truncated: bool, final_obs: Any) -> int: ...

    def new_episode(self) -> None: ...


class Policy:
    """One agent's network, kept up to date with its learner's publications."""

    def __init__(
        self,
        algorithm: Algorithm,
        network: torch.nn.Module,
        subscriber: Subscriber,
        rng: np.random.Generator,
        device: torch.device,
    ) -> None:
        self._algorithm = algorithm
        self._network = network
        self._subscriber = subscriber
        self._rng = rng
        self._device = device

    @property
    def version(self) -> int:
        """The version of the acting weights, 0 before the first pull."""
        return self._subscriber.version

    def pull(self) -> bool:
        """Takes newer weights, if any; it waits for them only while it has none."""
        try:
            return self._subscriber.pull(timeout=0.0 if self.version else FIRST_PULL_S)
        except TimeoutError:
            return False  # their learner is overwriting them, or died doing so: the next pull gets them

    def act(self, obs: NDArray[Any]) -> NDArray[np.int64]:
        """Chooses actions [B] for observations [B, ...]."""
        tensor = torch.from_numpy(obs).to(self._device)
        return self._algorithm.act(self._network, tensor, float(self._subscriber.extras["epsilon"]), self._rng)


class _Player:
    """One agent in one environment copy: its frame stack, and its incomplete transition."""

    def __init__(self, writer: RowWriter, stack: int, pad: Literal["repeat", "zero"]) -> None:
        self.writer = writer
        self._stack = stack
        self._pad = pad
        self._frames: NDArray[Any] | None = None
        self._obs: NDArray[Any] | None = None
        self._action = 0
        self.episode_return = 0.0
        self.episode_length = 0

    def begin(self) -> bool:
        """Begins an episode; returns whether a transition of the last one is lost, because its outcome never came."""
        lost = self._obs is not None
        if lost:
            self.writer.new_episode()
        self._frames = self._obs = None
        self.episode_return, self.episode_length = 0.0, 0
        return lost

    def observe(self, obs: NDArray[Any], reward: float, terminated: bool, truncated: bool) -> None:
        """Completes the last action's transition with its outcome."""
        if self._obs is None:
            return
        final_obs = obs if truncated else None
        self.writer.add(self._obs, self._action, reward, terminated, truncated, final_obs)
        self._obs = None
        self.episode_return += reward
        self.episode_length += 1

    def stacked(self, obs: NDArray[Any]) -> NDArray[Any]:
        """The network's input for an observation."""
        if self._stack == 1:
            return obs
        if self._frames is None:
            first = obs if self._pad == "repeat" else np.zeros_like(obs)
            self._frames = np.stack([first] * self._stack)
        self._frames = np.concatenate([self._frames[1:], obs[None]])
        return self._frames

    def act(self, obs: NDArray[Any], action: int) -> None:
        self._obs, self._action = obs, action


class _Copy:
    """An environment copy; it marks the environment's errors, to distinguish them from the actor's."""

    def __init__(self, env: Environment, index: int) -> None:
        self._env = env
        self._index = index

    @property
    def agent(self) -> str | None:
        return self._run(lambda: self._env.agent)

    def reset(self, seed: int | None = None) -> None:
        self._run(self._env.reset, seed)

    def last(self) -> tuple[NDArray[Any], float, bool, bool]:
        return self._run(self._env.last)

    def step(self, action: int | None) -> None:
        self._run(self._env.step, action)

    def check(self, agent: str, obs: NDArray[Any]) -> None:
        """Raises EnvironmentFailed: the observation does not match the environment's declared Field."""
        try:
            as_field("obs", self._env.observations[agent], obs)
        except (ValueError, TypeError) as error:
            raise self.failed(agent, error) from error

    def failed(self, agent: str, error: Exception) -> EnvironmentFailed:
        """The error for an agent's values that the replay refused."""
        return EnvironmentFailed(f"environment copy {self._index}, {agent}: {error}")

    def _run(self, method: Callable[..., T], *args: Any) -> T:
        try:
            return method(*args)
        except Exception as error:
            raise EnvironmentFailed(f"environment copy {self._index}: {type(error).__name__}: {error}") from error


class Actor:
    """Steps environment copies and writes the transitions into each agent's replay.

    Args:
        envs: the copies.
        policies: by agent, each with its first weights.
        writers: by agent, one for each copy.
        stack, pad: the stacking of observations; the same as in the learners' samplers.
        sync_interval: rounds between pulls.
        seed: of the environments.
        report: called with (agent, name, value) at the end of an agent's episode.

    Attributes:
        episodes: the number of episodes ended.

    Raises: EnvironmentFailed, here and from `step`: an environment raised, or returned values that the replay refuses.
    """

    def __init__(
        self,
        envs: Sequence[Environment],
        policies: Mapping[str, Policy],
        writers: Mapping[str, Sequence[RowWriter]],
        *,
        stack: int,
        pad: Literal["repeat", "zero"],
        sync_interval: int,
        seed: int,
        report: Report,
    ) -> None:
        self._envs = [_Copy(env, copy) for copy, env in enumerate(envs)]
        self._policies = policies
        self._players = [
            {agent: _Player(writers[agent][copy], stack, pad) for agent in policies} for copy in range(len(envs))
        ]
        self._sync_interval = sync_interval
        self._report = report
        self._rounds = 0
        self.episodes = 0
        for env, child in zip(self._envs, np.random.SeedSequence(seed).spawn(len(envs)), strict=True):
            env.reset(int(child.generate_state(1)[0]))

    def step(self) -> int:
        """Takes one action in each environment copy; returns the number of actions."""
        if self._rounds % self._sync_interval == 0:
            self._pull()
        self._rounds += 1
        turns: dict[str, list[tuple[int, NDArray[Any]]]] = {}
        for copy in range(len(self._envs)):
            agent, obs = self._next_turn(copy)
            turns.setdefault(agent, []).append((copy, obs))
        for agent, members in turns.items():
            actions = self._choose(agent, members)
            for (copy, obs), action in zip(members, actions, strict=True):
                self._players[copy][agent].act(obs, action)
                self._envs[copy].step(action)
        return len(self._envs)

    def _choose(self, agent: str, members: list[tuple[int, NDArray[Any]]]) -> list[int]:
        """Chooses an agent's actions, one for each (copy, observation)."""
        try:
            stacked = np.stack([self._players[copy][agent].stacked(obs) for copy, obs in members])
            actions: list[int] = self._policies[agent].act(stacked).tolist()
            return actions
        except Exception:
            for copy, obs in members:
                self._envs[copy].check(agent, obs)
            raise

    def _next_turn(self, copy: int) -> tuple[str, NDArray[Any]]:
        """Advances a copy to the next turn of a live agent, across ends and starts of episodes."""
        env, players = self._envs[copy], self._players[copy]
        while True:
            agent = env.agent
            if agent is None:
                self._begin(copy)
                continue
            obs, reward, terminated, truncated = env.last()
            player = players[agent]
            try:
                player.observe(obs, reward, terminated, truncated)
            except (ValueError, TypeError) as error:
                raise env.failed(agent, error) from error
            if not (terminated or truncated):
                return agent, obs
            self._report(agent, "episode_return", player.episode_return)
            self._report(agent, "episode_length", float(player.episode_length))
            env.step(None)

    def _begin(self, copy: int) -> None:
        self.episodes += 1
        for agent, player in self._players[copy].items():
            if player.begin():
                self._report(agent, "transitions_lost", 1.0)
        self._envs[copy].reset()

    def _pull(self) -> None:
        for agent, policy in self._policies.items():
            policy.pull()
            for players in self._players:
                players[agent].writer.policy_version = policy.version
