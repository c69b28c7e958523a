"""Games that reward whom they like, when they like, and the plain loops of PettingZoo that say what each agent got."""

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from crowd import Rounds
from gymnasium import spaces as gym
from pettingzoo import AECEnv

AGENTS = ("a", "b", "c")


class Cycle(Rounds, AECEnv):  # type: ignore[misc]
    """An AEC game by PettingZoo's own means; `play` says what an action does. Observations count the turns."""

    see, do = gym.Box(0, 1e6, (1,), np.float32), gym.Discrete(3)
    possible_agents: Any = AGENTS
    rng = np.random.default_rng(0)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.rng = self.rng if seed is None else np.random.default_rng(seed)
        self.agents, self.turns, self._skip_agent_selection = [*self.possible_agents], 0, None
        self.begin()
        self.rewards, self._cumulative_rewards = (dict.fromkeys(self.agents, 0.0) for _ in range(2))
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos: Any = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]

    def begin(self) -> None:
        pass

    def observe(self, agent: str) -> Any:
        return np.full(1, self.turns, np.float32)

    def step(self, action: Any) -> None:
        me = self.agent_selection
        self.turns += 1
        if self.terminations[me] or self.truncations[me]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[me] = 0
        self._clear_rewards()
        self.play(me, action)
        self._accumulate_rewards()

    def play(self, me: str, action: Any) -> None:
        raise NotImplementedError


class OneShot(Cycle):
    """A game of pure chance: "a" wins half of the games by its first move, and "b" the others. A judge may reverse.

    A judge that is not a number names nobody.
    """

    possible_agents = ("a", "b")
    games: list[str] = []  # noqa: RUF012 - of all copies: who won

    def __init__(self, judge: float = False) -> None:
        self.judge = judge

    def play(self, me: str, action: Any) -> None:
        self.agent_selection = "b" if me == "a" else "a"
        if me == "b" or self.rng.random() < 0.5:
            self.games.append(me)
            self.rewards = {me: 1.0, self.agent_selection: -1.0}
            self.infos = {
                agent: {"winner": -won * self.judge} if self.judge else {} for agent, won in self.rewards.items()
            }
            self.terminations = dict.fromkeys(self.agents, True)


class Masked(Cycle):
    """Agents "a" and "b" act in turn; `when` says, by agent, when its infos hold a mask that forbids an action:

    at each time, on its own turns, never, or on its own from the second one on.
    """

    possible_agents = ("a", "b")
    HOLDS = {"always": 0, "acting": 0, "never": 99, "late": 2}  # noqa: RUF012 - from which turn on

    def __init__(self, **when: str) -> None:
        self.when = when

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed)
        self._show()

    def play(self, me: str, action: Any) -> None:
        assert "action_mask" not in self.infos[me] or self.infos[me]["action_mask"][int(action)], "a masked action"
        self.agent_selection = "b" if me == "a" else "a"
        self.terminations = dict.fromkeys(self.agents, self.turns == 6)
        self._show()

    def _show(self) -> None:
        mask = np.arange(3) != self.turns % 3
        shown = {
            agent: self.turns >= self.HOLDS[when] and (when == "always" or agent == self.agent_selection)
            for agent, when in self.when.items()
        }
        self.infos = {agent: {"action_mask": mask} if shown[agent] else {} for agent in self.agents}


class Chances(Cycle):
    """Any order of turns; rewards to anybody at any time, also after a reset; deaths that are told at once or later.

    Some agents are not there, some never act, and in some episodes none does.
    """

    def begin(self) -> None:
        self.agents = [agent for agent in AGENTS if self.rng.random() < 0.8] or ["b"]

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed)
        self._happen(self.rng.choice([0.0, 1.0], p=[0.7, 0.3]))

    def play(self, me: str, action: Any) -> None:
        self.rewards[me] += int(action)
        self._happen(0.1)

    def _happen(self, death: float) -> None:
        for agent in self.agents:
            self.rewards[agent] += int(self.rng.integers(-8, 9)) / 4 * (self.rng.random() < 0.5)
            for ends in (self.terminations, self.truncations):
                ends[agent] |= bool(self.rng.random() < death)
        if not self.turns:
            self._accumulate_rewards()
        live = [agent for agent in self.agents if not (self.terminations[agent] or self.truncations[agent])]
        self.agent_selection = str(self.rng.choice(live or self.agents))
        if not live or self.rng.random() < 0.5:
            self._deads_step_first()


class AtOnce(Rounds):
    """A Parallel game of `Chances`' kind, whose agents join late, and may leave without an end."""

    see, do = gym.Box(0, 1e6, (1,), np.float32), gym.Discrete(3)
    possible_agents = AGENTS
    rng = np.random.default_rng(0)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.rng = self.rng if seed is None else np.random.default_rng(seed)
        self.agents = [agent for agent in AGENTS if self.rng.random() < 0.7] or ["b"]
        self.waiting, self.turns = [agent for agent in AGENTS if agent not in self.agents], 0
        return self._look(self.agents), {}

    def _look(self, agents: list[str]) -> Any:
        return dict.fromkeys(agents, np.full(1, self.turns, np.float32))

    def step(self, actions: dict[str, Any]) -> Any:
        assert list(actions) == self.agents, actions
        self.turns += 1
        rewards = {agent: int(self.rng.integers(-8, 9)) / 4 for agent in AGENTS if self.rng.random() < 0.6}
        for agent, action in actions.items():
            rewards[agent] = rewards.get(agent, 0.0) + int(action)
        ends = [{agent: bool(self.rng.random() < 0.1) for agent in actions} for _ in range(2)]
        gone = [agent for agent in actions if ends[0][agent] or ends[1][agent] or self.rng.random() < 0.05]
        new = [agent for agent in self.waiting if self.rng.random() < 0.3]
        self.waiting = [agent for agent in self.waiting if agent not in new]
        self.agents = [agent for agent in AGENTS if (agent in actions and agent not in gone) or agent in new]
        return self._look([*actions, *new]), rewards, *ends, {}


def script(obs: Any) -> Any:
    """An allowed action that the observation decides; of a team, each member's."""
    if isinstance(obs, dict) and "members" in obs:
        return np.array([script(own) for own in obs["members"]])
    seen, mask = (obs["observation"], obs["action_mask"]) if isinstance(obs, dict) else (obs, np.ones(3))
    allowed = np.flatnonzero(mask)
    return int(allowed[zlib.crc32(np.asarray(seen, np.float64).tobytes()) % len(allowed)])


class Told(NamedTuple):
    """An episode, by agent: all that it got, its actions, and the reward of each action whose result came."""

    returns: dict[str, float]
    lengths: dict[str, int]
    rows: dict[str, list[float]]


def told_by_turns(env: Any, seed: int) -> Iterator[Told]:
    env.reset(seed=seed)
    while True:
        told, acted = {agent: [] for agent in env.possible_agents}, Counter(dict.fromkeys(env.possible_agents, 0))
        for agent in env.agent_iter():
            obs, reward, terminated, truncated, _ = env.last()
            told[agent].append(float(reward))
            action = None if terminated or truncated else script(obs)
            acted[agent] += action is not None
            env.step(action)
        yield Told({agent: sum(got) for agent, got in told.items()}, acted, {a: got[1:] for a, got in told.items()})
        env.reset()


def told_at_once(env: Any, seed: int) -> Iterator[Told]:
    """Episodes of the loop over a Parallel environment, with the rewards of agents that are not there."""
    seen, _ = env.reset(seed=seed)
    while True:
        got, acted = dict.fromkeys(env.possible_agents, 0.0), Counter(dict.fromkeys(env.possible_agents, 0))
        rows: dict[str, list[float]] = defaultdict(list)
        while env.agents:
            actions = {agent: script(seen[agent]) for agent in env.agents}
            acted.update(actions.keys())
            seen, rewards, *ends, _ = env.step(actions)
            for agent, reward in rewards.items():
                got[agent] += reward
            for agent in actions:
                if agent in env.agents or any(end[agent] for end in ends):
                    rows[agent].append(rewards.get(agent, 0.0))
        yield Told(got, acted, rows)
        seen, _ = env.reset()
