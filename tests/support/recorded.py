"""Environments that record every transition as they tell it, and what a run's replay holds of them."""

import itertools
import os
import pickle
from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from arena import Stateless
from random_play import plain, sample
from seams import without_limits

import marlcore as mc
from marlcore.envs import by_agents
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

    def __init__(self, folder: Path, space_of: Callable[[str], gymnasium.Space]) -> None:
        folder.mkdir(exist_ok=True)
        self._path = folder / f"{os.getpid():010}-{next(_numbers):06}.pickle"
        self._space_of = space_of
        self._transitions: dict[tuple[int, str], list[Transition]] = defaultdict(list)
        self._seen: dict[tuple[int, str], list[np.ndarray]] = {}
        self._acted: dict[tuple[int, str], tuple[Any, Any]] = {}  # whose outcome is still to come

    def begin(self) -> None:
        """Begins an episode: an action without an outcome is forgotten."""
        self._acted = {}

    def see(self, agent: str, obs: Any, info: Any, copy: int = 0) -> None:
        self._seen[copy, agent] = self._plain(agent, obs, info)

    def act(self, agent: str, action: Any, copy: int = 0) -> None:
        self._acted[copy, agent] = (self._seen[copy, agent], deepcopy(action))

    def tell(
        self, agent: str, reward: Any, terminated: Any, truncated: Any, obs: Any, info: Any, copy: int = 0
    ) -> None:
        if (copy, agent) in self._acted:
            ends = bool(terminated), bool(truncated)
            seen, action = self._acted.pop((copy, agent))
            after = self._plain(agent, obs, info, any(ends))
            self._transitions[copy, agent].append(Transition(seen, action, float(reward), *ends, after))

    def _plain(self, agent: str, obs: Any, info: Any, final: bool = False) -> list[np.ndarray]:
        space = self._space_of(agent)
        masked = "action_mask" in info or (isinstance(space, gymnasium.spaces.Dict) and "action_mask" in space.spaces)
        return deepcopy(plain(space, obs, info, masked=masked, final=final))

    def write(self) -> None:
        if self._transitions:
            self._path.write_bytes(pickle.dumps(dict(self._transitions)))


def _watch_rounds(env: Any, recorder: Recorder, by_agent: Callable[[Any], dict[str, Any]]) -> None:
    reset, step = env.reset, env.step

    def watched_reset(**options: Any) -> Any:
        obs, infos = result = reset(**options)
        recorder.begin()
        for agent, value in by_agent(obs).items():
            recorder.see(agent, value, by_agent(infos).get(agent, {}))
        return result

    def watched_step(actions: Any) -> Any:
        for agent, action in by_agent(actions).items():
            recorder.act(agent, action)
        result = step(actions)
        obs, rewards, terminated, truncated, infos = map(by_agent, result)
        for agent, value in obs.items():
            ends, info = (terminated[agent], truncated[agent]), infos.get(agent, {})
            recorder.tell(agent, rewards[agent], *ends, value, info)
            if not any(ends):
                recorder.see(agent, value, info)
        return result

    env.reset, env.step = watched_reset, watched_step


def _watch_turns(env: Any, recorder: Recorder) -> None:
    reset, step = env.reset, env.step

    def watched_reset(seed: int | None = None, options: Any = None) -> None:
        reset(seed=seed, options=options)
        recorder.begin()

    def watched_step(action: Any) -> None:
        agent = env.agent_selection
        obs, reward, terminated, truncated, info = env.last()
        recorder.tell(agent, reward, terminated, truncated, obs, info)
        if action is not None:
            recorder.see(agent, obs, info)
            recorder.act(agent, action)
        step(action)

    env.reset, env.step = watched_reset, watched_step


def _watch_copies(env: Any, recorder: Recorder) -> None:
    """For a Gymnasium vector environment in NEXT_STEP mode, without masks."""
    reset, step, copies = env.reset, env.step, range(env.num_envs)
    ended = np.zeros(env.num_envs, bool)

    def watched_reset(**options: Any) -> Any:
        obs, _ = result = reset(**options)
        ended[:] = False
        for copy in copies:
            recorder.see("agent_0", obs[copy], {}, copy)
        return result

    def watched_step(actions: Any) -> Any:
        acting = ~ended
        for copy in np.flatnonzero(acting).tolist():
            recorder.act("agent_0", actions[copy], copy)
        obs, reward, terminated, truncated, _ = result = step(actions)
        ended[:] = (terminated | truncated) & acting
        for copy in copies:
            if acting[copy]:
                recorder.tell("agent_0", reward[copy], terminated[copy], truncated[copy], obs[copy], {}, copy)
            recorder.see("agent_0", obs[copy], {}, copy)
        return result

    env.reset, env.step = watched_reset, watched_step


def recorded(env: Any, folder: Path) -> Any:
    env = by_agents(env)
    if hasattr(env, "num_envs"):
        recorder = Recorder(folder, lambda agent: env.single_observation_space)
        _watch_copies(env, recorder)
    elif not hasattr(env, "possible_agents"):
        recorder = Recorder(folder, lambda agent: env.observation_space)
        _watch_rounds(env, recorder, lambda value: {"agent_0": value})
    else:
        recorder = Recorder(folder, env.observation_space)
        if hasattr(env, "last"):
            _watch_turns(env, recorder)
        else:
            _watch_rounds(env, recorder, dict)
    env.close = partial(_write_and_close, recorder, env.close)
    return env


def _write_and_close(recorder: Recorder, close: Callable[..., None], **options: Any) -> None:
    recorder.write()
    close(**options)


def read_records(folder: Path) -> dict[tuple[int, str], list[Transition]]:
    """What the environments of a run with one actor told, by (copy, agent)."""
    records: dict[tuple[int, str], list[Transition]] = {}
    first = 0
    for path in sorted(folder.iterdir()):
        recorded = pickle.loads(path.read_bytes())
        records |= {(first + copy, agent): told for (copy, agent), told in recorded.items()}
        first += 1 + max(copy for copy, _ in recorded)
    return records


def read_replay(path: Path, spaces: mc.Spaces, batch: int = 512) -> dict[int, list[Transition]]:
    """Every transition that can be drawn from a saved replay, by lane, in order."""
    transitions: dict[int, tuple[Any, ...]] = {}
    start = getattr(spaces.action, "start", 0)
    with mc.ReplayBuffer.load(path) as replay, without_limits():
        sampler = replay.sampler(batch, n_step=1, gamma=0.5, seed=0, min_size=1)
        lanes, fresh = replay.lanes, 0
        while fresh < 60:  # batches in a row without a new transition
            drawn = sampler.sample()
            before = len(transitions)
            for row, index in enumerate(drawn.index.tolist()):
                if index in transitions:
                    continue
                ends = bool(drawn.terminated[row]), bool(drawn.truncated[row])
                assert drawn.discount[row] == (0.0 if ends[0] else 0.5)
                action = drawn.action[row] + start if np.any(start) else drawn.action[row].copy()
                obs, next_obs = _rows(spaces, drawn.obs, row), _rows(spaces, drawn.next_obs, row)
                transitions[index] = Transition(obs, action, float(drawn.reward[row]), *ends, next_obs)
            fresh = 0 if len(transitions) > before else fresh + 1
    by_lane: dict[int, list[Transition]] = defaultdict(list)
    for index in sorted(transitions):
        by_lane[index % lanes].append(transitions[index])
    return by_lane


def _rows(spaces: mc.Spaces, obs: Any, row: int) -> list[np.ndarray]:
    return [obs[name][row].copy() for name in spaces.obs] if isinstance(obs, dict) else [obs[row].copy()]


def check_rows(stored: list[Transition], told: list[Transition]) -> int:
    """Asserts that a lane holds what its environment told, bit for bit; returns the transitions compared.

    An outcome whose next observation was not acted on need not be there. The run's end cuts an episode, whose last
    transition is truncated; what comes of the last action is not told where no action follows.
    """
    assert len(told) - 2 <= len(stored) <= len(told) + 1, (len(stored), len(told))
    for number, (row, it) in enumerate(zip(stored, told, strict=False)):
        where = f"transition {number}"
        _same(f"{where}: obs", row.obs, it.obs)
        np.testing.assert_array_equal(row.action, it.action, f"{where}: action")
        assert np.float32(row.reward) == np.float32(it.reward), where
        cut = number == len(stored) - 1 and not it.terminated
        assert (row.terminated, row.truncated or cut) == (it.terminated, it.truncated or cut), where
        if not it.terminated:
            _same(f"{where}: next_obs", row.next_obs, it.next_obs)
    return min(len(stored), len(told))


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

    def make_trainer(self, model: Any) -> Any:
        return MeanReward(model)


class MeanReward(Stateless):
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
