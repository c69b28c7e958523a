"""Environments that record every transition as they tell it, and what a run's replay holds of them."""

from __future__ import annotations

import itertools
import os
import pickle
from collections import defaultdict
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from random_play import plain, sample
from seams import without_limits

import marlcore as mc
from marlcore.observations import by_name

_numbers = itertools.count()


class Transition(NamedTuple):
    """An observation as arrays, the mask last; an action as the environment takes it; and what came of it."""

    obs: list[np.ndarray]
    action: Any
    reward: float
    terminated: bool
    truncated: bool
    next_obs: list[np.ndarray]


class Recorder:
    """The transitions of one environment, by (copy inside it, agent), written to a folder when it closes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{os.getpid():010}-{next(_numbers):06}.pickle"
        self._transitions: dict[tuple[int, str], list[Transition]] = defaultdict(list)
        self._acted: dict[tuple[int, str], tuple[Any, Any]] = {}  # whose outcome is still to come

    def begin(self, copy: int = 0) -> None:
        """Begins an episode: an action without an outcome is forgotten."""
        self._acted = {key: acted for key, acted in self._acted.items() if key[0] != copy}

    def acted(self, agent: str, obs: list[np.ndarray], action: Any, copy: int = 0) -> None:
        self._acted[copy, agent] = (obs, deepcopy(action))

    def told(self, agent: str, reward: Any, terminated: Any, truncated: Any, obs: Any, copy: int = 0) -> None:
        """`obs`: a function of whether it is an episode's final one."""
        if (copy, agent) in self._acted:
            ends = bool(terminated), bool(truncated)
            seen, action = self._acted.pop((copy, agent))
            self._transitions[copy, agent].append(Transition(seen, action, float(reward), *ends, obs(any(ends))))

    def write(self) -> None:
        if self._transitions:
            self._path.write_bytes(pickle.dumps(dict(self._transitions)))


def _masked(space: gymnasium.Space, info: dict[str, Any]) -> bool:
    return "action_mask" in info or (isinstance(space, gymnasium.spaces.Dict) and "action_mask" in space.spaces)


class RecordedGymnasium(gymnasium.Wrapper):
    """A Gymnasium environment that records."""

    def __init__(self, env: Any, folder: Path) -> None:
        super().__init__(env)
        self._recorder = Recorder(folder)

    def reset(self, **options: Any) -> Any:
        obs, info = self.env.reset(**options)
        self._recorder.begin()
        self._masked = _masked(self.env.observation_space, info)
        self._seen = self._plain(obs, info, False)
        return obs, info

    def step(self, action: Any) -> Any:
        self._recorder.acted("agent_0", self._seen, action)
        obs, reward, terminated, truncated, info = told = self.env.step(action)
        self._seen = self._plain(obs, info, False) if not (terminated or truncated) else []
        self._recorder.told("agent_0", reward, terminated, truncated, lambda final: self._plain(obs, info, final))
        return told

    def _plain(self, obs: Any, info: Any, final: bool) -> list[np.ndarray]:
        return plain(self.env.observation_space, obs, info, masked=self._masked, final=final)

    def close(self) -> None:
        self._recorder.write()
        super().close()


class _Recorded:
    """Hands everything on to the environment inside."""

    def __init__(self, env: Any, folder: Path) -> None:
        self._env = env
        self._recorder = Recorder(folder)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._env, name)

    def _plain(self, agent: str, obs: Any, info: Any, final: bool) -> list[np.ndarray]:
        space = self._env.observation_space(agent)
        return plain(space, obs, info, masked=_masked(space, info), final=final)

    def close(self) -> None:
        self._recorder.write()
        self._env.close()


class RecordedAEC(_Recorded):
    """A PettingZoo AEC environment that records."""

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self._env.reset(seed=seed, options=options)
        self._recorder.begin()

    def step(self, action: Any) -> None:
        agent = self._env.agent_selection
        obs, reward, terminated, truncated, info = self._env.last()
        self._recorder.told(agent, reward, terminated, truncated, lambda final: self._plain(agent, obs, info, final))
        if action is not None:
            self._recorder.acted(agent, self._plain(agent, obs, info, False), action)
        self._env.step(action)

    def last(self, observe: bool = True) -> Any:
        return self._env.last(observe)


class RecordedParallel(_Recorded):
    """A PettingZoo Parallel environment that records."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        obs, infos = self._env.reset(seed=seed, options=options)
        self._recorder.begin()
        self._see(obs, infos)
        return obs, infos

    def step(self, actions: dict[str, Any]) -> Any:
        for agent, action in actions.items():
            self._recorder.acted(agent, self._seen[agent], action)
        obs, rewards, terminated, truncated, infos = told = self._env.step(actions)
        for agent in actions:
            self._recorder.told(
                agent, rewards[agent], terminated[agent], truncated[agent],
                lambda final, agent=agent: self._plain(agent, obs[agent], infos.get(agent, {}), final),
            )  # fmt: skip
        self._see(obs, infos)
        return told

    def _see(self, obs: Any, infos: Any) -> None:
        self._seen = {agent: self._plain(agent, obs[agent], infos.get(agent, {}), False) for agent in self._env.agents}


class RecordedVector(gymnasium.vector.VectorWrapper):
    """A Gymnasium vector environment in NEXT_STEP mode that records; without masks."""

    def __init__(self, env: Any, folder: Path) -> None:
        super().__init__(env)
        self._recorder = Recorder(folder)
        self._ended = np.zeros(env.num_envs, bool)

    def reset(self, **options: Any) -> Any:
        obs, info = self.env.reset(**options)
        self._seen, self._ended = deepcopy(obs), np.zeros(self.num_envs, bool)
        return obs, info

    def step(self, actions: Any) -> Any:
        before, idle = self._seen, self._ended
        for copy in np.flatnonzero(~idle).tolist():
            self._recorder.acted("agent_0", [before[copy]], actions[copy], copy)
        obs, reward, terminated, truncated, _ = told = self.env.step(actions)
        self._seen, self._ended = deepcopy(obs), (terminated | truncated) & ~idle
        for copy in np.flatnonzero(~idle).tolist():
            self._recorder.told(
                "agent_0", reward[copy], terminated[copy], truncated[copy],
                lambda final, copy=copy: [self._seen[copy]], copy,
            )  # fmt: skip
        return told

    def close(self, **options: Any) -> None:
        self._recorder.write()
        super().close(**options)


def recorded(env: Any, folder: Path) -> Any:
    """The environment, recording into `folder`."""
    if hasattr(env, "num_envs"):
        return RecordedVector(env, folder)
    if hasattr(env, "possible_agents"):
        return RecordedAEC(env, folder) if hasattr(env, "last") else RecordedParallel(env, folder)
    return RecordedGymnasium(env, folder)


def read_records(folder: Path) -> dict[tuple[int, str], list[Transition]]:
    """What the environments of a run with one actor told, by (copy, agent)."""
    found: dict[tuple[int, str], list[Transition]] = {}
    first = 0
    for path in sorted(folder.iterdir()):
        mine = pickle.loads(path.read_bytes())
        found |= {(first + copy, agent): told for (copy, agent), told in mine.items()}
        first += 1 + max(copy for copy, _ in mine)
    return found


def read_replay(path: Path, spaces: mc.Spaces, batch: int = 512) -> dict[int, list[Transition]]:
    """Every transition that can be drawn from a saved replay, by lane, in order."""
    found: dict[int, tuple[Any, ...]] = {}
    start = getattr(spaces.action, "start", 0)
    with mc.ReplayBuffer.load(path) as replay, without_limits():
        sampler = replay.sampler(batch, n_step=1, gamma=0.5, seed=0, min_size=1)
        lanes, fresh = replay.lanes, 0
        while fresh < 60:  # batches in a row without a new transition
            drawn = sampler.sample()
            before = len(found)
            for row, index in enumerate(drawn.index.tolist()):
                if index in found:
                    continue
                ends = bool(drawn.terminated[row]), bool(drawn.truncated[row])
                assert drawn.discount[row] == (0.0 if ends[0] else 0.5)
                action = drawn.action[row] + start if np.any(start) else drawn.action[row].copy()
                obs, next_obs = _rows(spaces, drawn.obs, row), _rows(spaces, drawn.next_obs, row)
                found[index] = Transition(obs, action, float(drawn.reward[row]), *ends, next_obs)
            fresh = 0 if len(found) > before else fresh + 1
    by_lane: dict[int, list[Transition]] = defaultdict(list)
    for index in sorted(found):
        by_lane[index % lanes].append(found[index])
    return by_lane


def _rows(spaces: mc.Spaces, obs: Any, row: int) -> list[np.ndarray]:
    """The arrays of an observation in the order of its space, a mask last."""
    return [obs[name][row].copy() for name in spaces.obs] if isinstance(obs, dict) else [obs[row].copy()]


def check_rows(stored: list[Transition], told: list[Transition]) -> int:
    """Asserts that a lane holds what its environment told, bit for bit; returns the transitions compared.

    The last action's outcome, and an outcome whose next observation was not acted on, need not be there.
    """
    assert len(told) - 2 <= len(stored) <= len(told), (len(stored), len(told))
    for number, (row, it) in enumerate(zip(stored, told, strict=False)):
        where = f"transition {number}"
        _same(f"{where}: obs", row.obs, it.obs)
        np.testing.assert_array_equal(row.action, it.action, f"{where}: action")
        assert np.float32(row.reward) == np.float32(it.reward), where
        assert (row.terminated, row.truncated) == (it.terminated, it.truncated), where
        if not it.terminated:
            _same(f"{where}: next_obs", row.next_obs, it.next_obs)
    return len(stored)


def _same(where: str, ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    assert [array.dtype for array in ours] == [array.dtype for array in theirs], where
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other, where)


class RandomActing(mc.Algorithm):
    """Draws allowed actions of any space uniformly, and learns the mean reward; checks what it is given."""

    def make_model(self, spaces: mc.Spaces) -> torch.nn.Module:
        model = torch.nn.Linear(1, 1)
        model.spaces = spaces
        return model

    def act(self, model: Any, obs: Any, *, explore: Any, state: Any, mask: Any, generator: Any) -> mc.Action:
        spaces = model.spaces
        assert (mask is not None) == spaces.masked
        arrays = {name: one.numpy() for name, one in obs.items()} if isinstance(obs, dict) else obs.numpy()
        return mc.Action(sample(spaces, arrays, generator))

    def make_trainer(self, model: Any) -> MeanReward:
        return MeanReward(model)


class MeanReward:
    """Moves a bias to the mean reward."""

    def __init__(self, model: Any) -> None:
        self.model, self.spaces = model, model.spaces

    def update(self, batch: Any) -> mc.Update:
        assert batch.action.shape[1:] == self.spaces.action.shape
        for values in (batch.obs, batch.next_obs):
            arrays = by_name(values)
            for name, field in by_name(self.spaces.obs).items():
                assert tuple(arrays[name].shape[1:]) == field.shape, name
        loss = (batch.reward.mean() - self.model.bias.detach()).abs().mean()
        with torch.no_grad():
            self.model.bias.lerp_(batch.reward.mean(), 0.1)
        return mc.Update({"loss": loss})

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
