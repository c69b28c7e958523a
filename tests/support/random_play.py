"""Random play of a vector environment, of one copy, and of the raw environments beside them: the plain oracle."""

from collections import defaultdict, deque
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces as gym

from marlcore.interfaces import Environment, VectorEnvironment
from marlcore.spaces import Spaces

Events = dict[tuple[int, str], list[tuple[Any, ...]]]  # by copy and agent: what it saw and what came of its actions


def sample(spaces: Spaces, obs: Any, rng: np.random.Generator) -> np.ndarray:
    """Random allowed actions [k, ...] as rows hold them."""
    rows = len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)
    mask = obs["action_mask"] if spaces.masked else np.ones((rows, 0), bool)
    return np.stack([_sample_one(spaces, mask[row], rng) for row in range(rows)])


def _sample_one(spaces: Spaces, mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    space = spaces.action
    if isinstance(space, gym.Box):
        low, high = np.clip(space.low, -2, None), np.clip(space.high, None, 2)
        return rng.uniform(low, high).astype(space.dtype)
    if isinstance(space, gym.MultiBinary):
        return rng.integers(2, size=space.shape).astype(space.dtype)
    sizes = [space.n] if isinstance(space, gym.Discrete) else space.nvec.tolist()
    allowed = mask if len(mask) else np.ones(sum(map(int, sizes)), bool)
    parts = np.split(allowed, np.cumsum(sizes)[:-1])
    chosen = np.array([rng.choice(np.flatnonzero(part)) for part in parts], space.dtype)
    return chosen[0] if isinstance(space, gym.Discrete) else chosen


def _of_space(space: gym.Space, action: Any) -> Any:
    """The environment's action for a row's, which counts from 0."""
    if isinstance(space, gym.Discrete):
        return int(action) + int(space.start)
    return action + space.start if isinstance(space, gym.MultiDiscrete) else action.copy()


def rows(obs: Any, row: int) -> list[np.ndarray]:
    """The arrays of one copy's observation, in the order of its parts, a mask last."""
    return [array[row].copy() for array in (obs.values() if isinstance(obs, dict) else [obs])]


def play(env: VectorEnvironment, rounds: int, seed: int = 5) -> tuple[Events, dict[tuple[int, str], deque[Any]]]:
    """Plays random actions; returns what came, and the environment's actions by copy and agent.

    The last round's turns are seen, but not acted on.
    """
    rng = np.random.default_rng(seed)
    env.reset(seed)
    events: Events = defaultdict(list)
    actions: dict[tuple[int, str], deque[Any]] = defaultdict(deque)
    for number in range(rounds):
        outcomes, turns = env.observe()
        assert turns
        for outcome in (outcome for outcome in outcomes if outcome.acted):
            for row, copy in enumerate(outcome.copies.tolist()):
                ends = bool(outcome.terminated[row]), bool(outcome.truncated[row])
                final = rows(outcome.final_obs, row) if any(ends) else None
                events[copy, outcome.agent].append(("outcome", float(outcome.reward[row]), *ends, final))
        for turn in turns:
            spaces = env.spaces[turn.agent]
            chosen = sample(spaces, turn.obs, rng)
            for row, copy in enumerate(turn.copies.tolist()):
                events[copy, turn.agent].append(("turn", rows(turn.obs, row), bool(turn.begins[row])))
                if number == rounds - 1:
                    continue
                actions[copy, turn.agent].append(_of_space(spaces.action, chosen[row]))
            if number < rounds - 1:
                env.act(turn, chosen)
    return events, actions


class Turn(NamedTuple):
    agent: str
    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    action: Any


def take_turns(env: Environment, seed: int | None, actions: np.random.Generator) -> Iterator[Turn]:
    """One episode of random actions in one copy; each turn comes before its action is taken."""
    env.reset(seed)
    for _ in range(10_000):
        if (agent := env.agent) is None:
            return
        obs, reward, terminated, truncated, _ = env.last()
        over = terminated or truncated
        space = env.action_spaces[agent]
        action = None if over else int(space.start + actions.integers(space.n))
        yield Turn(agent, deepcopy(obs), float(reward), bool(terminated), bool(truncated), action)
        env.step(action)
    pytest.fail("the episode does not end")


def record(env: Environment, episodes: int, seed: int = 7) -> list[Turn]:
    actions = np.random.default_rng(seed)
    return [turn for i in range(episodes) for turn in take_turns(env, None if i else seed, actions)]


def child_seeds(seed: int, copies: int) -> list[int]:
    return [int(child.generate_state(1)[0]) for child in np.random.SeedSequence(seed).spawn(copies)]


def leaves(space: gym.Space, value: Any) -> Iterator[np.ndarray]:
    """The arrays of a value in the order of its space."""
    if isinstance(space, gym.Dict):
        for key, inside in space.spaces.items():
            yield from leaves(inside, value[key])
    elif isinstance(space, gym.Tuple):
        for inside, part in zip(space.spaces, value, strict=True):
            yield from leaves(inside, part)
    else:
        yield np.array(value, space.dtype)


def plain(space: gym.Space, value: Any, info: dict[str, Any], *, masked: bool, final: bool = False) -> list[np.ndarray]:
    if not masked:
        return list(leaves(space, value))
    if isinstance(space, gym.Dict) and "action_mask" in space.spaces:
        inside = gym.Dict({key: part for key, part in space.spaces.items() if key != "action_mask"})
        arrays, mask = list(leaves(inside, value)), value["action_mask"]
    else:
        arrays, mask = list(leaves(space, value)), info.get("action_mask")
        mask = np.concatenate(mask) if isinstance(mask, tuple) else mask
    if final and (mask is None or not np.any(mask)):
        mask = np.ones_like(arrays[0] if mask is None else mask)
    return [*arrays, np.array(mask, bool)]


def single(env: Any, seed: int, actions: deque[Any], *, masked: bool) -> list[tuple[Any, ...]]:
    space, events, begins = env.observation_space, [], True
    obs, info = env.reset(seed=seed)
    while True:
        events.append(("turn", plain(space, obs, info, masked=masked), begins))
        if not actions:
            return events
        obs, reward, terminated, truncated, info = env.step(actions.popleft())
        ended = bool(terminated or truncated)
        final = plain(space, obs, info, masked=masked, final=True) if ended else None
        events.append(("outcome", float(reward), bool(terminated), bool(truncated), final))
        begins = ended
        if ended:
            obs, info = env.reset()


def aec(env: Any, seed: int, actions: dict[str, deque[Any]], masked: dict[str, bool]) -> dict[str, list[Any]]:
    events: dict[str, list[Any]] = defaultdict(list)
    env.reset(seed=seed)
    while True:
        acted: set[str] = set()
        for agent in env.agent_iter():
            obs, reward, terminated, truncated, info = env.last()
            ended, space = bool(terminated or truncated), env.observation_space(agent)
            if agent in acted:
                final = plain(space, obs, info, masked=masked[agent], final=True) if ended else None
                events[agent].append(("outcome", float(reward), bool(terminated), bool(truncated), final))
            if ended:
                env.step(None)
                continue
            events[agent].append(("turn", plain(space, obs, info, masked=masked[agent]), agent not in acted))
            if not actions[agent]:
                return events
            env.step(actions[agent].popleft())
            acted.add(agent)
        env.reset()


def parallel(env: Any, seed: int, actions: dict[str, deque[Any]], masked: dict[str, bool]) -> dict[str, list[Any]]:
    events: dict[str, list[Any]] = defaultdict(list)
    obs, infos = env.reset(seed=seed)
    acted: set[str] = set()
    while True:
        alive = list(env.agents)
        for agent in alive:
            space = env.observation_space(agent)
            seen = plain(space, obs[agent], infos.get(agent, {}), masked=masked[agent])
            events[agent].append(("turn", seen, agent not in acted))
        if not all(actions[agent] for agent in alive):
            return events
        obs, reward, terminated, truncated, infos = env.step({agent: actions[agent].popleft() for agent in alive})
        for agent in alive:
            acted.add(agent)
            ends, space = (bool(terminated[agent]), bool(truncated[agent])), env.observation_space(agent)
            info = infos.get(agent, {})
            final = plain(space, obs[agent], info, masked=masked[agent], final=True) if any(ends) else None
            events[agent].append(("outcome", float(reward[agent]), *ends, final))
        if not env.agents:
            obs, infos = env.reset()
            acted = set()


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    for event, expected in zip(ours, theirs, strict=True):
        for value, wanted in zip(event, expected, strict=True):
            if isinstance(wanted, list):
                for array, other in zip(value, wanted, strict=True):
                    assert array.dtype == other.dtype
                    np.testing.assert_array_equal(array, other)
            else:
                np.testing.assert_array_equal(value, wanted)
