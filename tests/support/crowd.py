"""Cheap environments: many agents that act at once, some that come and go, and one that errs at a chosen step."""

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import pettingzoo


class Rounds:
    """A PettingZoo Parallel environment by its methods, whose agents all have the spaces `see` and `do`."""

    metadata: dict[str, Any] = {"name": "rounds_v0"}  # noqa: RUF012 - PettingZoo's own form
    render_mode = None
    see: gymnasium.Space[Any]
    do: gymnasium.Space[Any]

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return self.see

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return self.do

    def close(self) -> None:
        pass


class Crowd(Rounds):
    """Each agent sees a number and is paid for naming its sign; 20 rounds."""

    see, do = gymnasium.spaces.Box(-1, 1, (1,), np.float32), gymnasium.spaces.Discrete(2)

    def __init__(self, agents: int = 100) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(agents)]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._rng = np.random.default_rng(seed) if seed is not None or not hasattr(self, "_rng") else self._rng
        self.agents, self._round = list(self.possible_agents), 0
        return self._look(), {}

    def _look(self) -> dict[str, Any]:
        self._numbers = self._rng.uniform(-1, 1, (len(self.possible_agents), 1)).astype(np.float32)
        return dict(zip(self.possible_agents, self._numbers, strict=True))

    def step(self, actions: dict[str, int]) -> Any:
        signs = (self._numbers[:, 0] > 0).tolist()
        rewards = {
            agent: float(actions[agent] == sign) for agent, sign in zip(self.possible_agents, signs, strict=True)
        }
        self._round += 1
        over = dict.fromkeys(self.possible_agents, self._round == 20)
        if self._round == 20:
            self.agents = []
        return self._look(), rewards, dict.fromkeys(self.possible_agents, False), over, {}


class Contest(Crowd):
    """A crowd's game whose rewards sum to 0: each agent's less the mean of the others'."""

    def step(self, actions: dict[str, int]) -> Any:
        looked, earned, *rest = super().step(actions)
        total, others = sum(earned.values()), len(earned) - 1
        return looked, {agent: own - (total - own) / others for agent, own in earned.items()}, *rest


class Matching(Rounds):
    """Two agents see a cue each; the team earns 1 where both choose their own cue's number.

    With `moves`, an agent moves in [-1, 1], and the team earns minus the squared distances from the cues' places. With
    `opposed`, an agent earns 1 for its own right choice and loses 1 for the other's, so that their sum is always 0.
    """

    CUES, STEPS = 3, 5
    see, possible_agents = gymnasium.spaces.Box(0, 1, (CUES,), np.float32), ("a", "b")

    def __init__(self, moves: bool = False, opposed: bool = False) -> None:
        self._moves, self._opposed, self._rng = moves, opposed, np.random.default_rng(0)
        box, choice = gymnasium.spaces.Box(-1, 1, (1,), np.float32), gymnasium.spaces.Discrete(self.CUES)
        self.do = box if moves else choice

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._rng = self._rng if seed is None else np.random.default_rng(seed)
        self.agents, self._step = [*self.possible_agents], 0
        return self._look(), {}

    def _look(self) -> dict[str, Any]:
        self._cues = {agent: int(self._rng.integers(self.CUES)) for agent in self.possible_agents}
        return {agent: np.eye(self.CUES, dtype=np.float32)[cue] for agent, cue in self._cues.items()}

    def step(self, actions: dict[str, Any]) -> Any:
        if self._moves:
            earned = -sum((float(actions[each][0]) - (cue - 1) * 0.7) ** 2 for each, cue in self._cues.items()), 0.0
        else:
            first, second = (actions[agent] == cue for agent, cue in self._cues.items())
            lead = float(first) - float(second)
            earned = (lead, -lead) if self._opposed else (float(first and second), 0.0)
        self._step += 1
        acted, over = self.agents, self._step == self.STEPS
        self.agents = [] if over else acted
        ends = dict.fromkeys(acted, False), dict.fromkeys(acted, over)
        return self._look(), dict(zip(acted, earned, strict=True)), *ends, {}


class RockPaperScissors(Rounds):
    """One round; each move beats the one before it."""

    see, do = gymnasium.spaces.Box(0, 1, (1,), np.float32), gymnasium.spaces.Discrete(3)

    def __init__(self) -> None:
        self.possible_agents = ["row", "column"]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = [*self.possible_agents]
        return dict.fromkeys(self.agents, np.zeros(1, np.float32)), {}

    def step(self, actions: dict[str, int]) -> Any:
        won = ((actions["row"] - actions["column"] + 1) % 3) - 1  # 1, 0 or -1
        looked, self.agents = dict.fromkeys(self.agents, np.zeros(1, np.float32)), []
        ends = dict.fromkeys(looked, True), dict.fromkeys(looked, False)
        return looked, {"row": float(won), "column": float(-won)}, *ends, {}


class Naming(Crowd):
    """Each agent sees a number in [-1, 1] and is paid minus its distance to the second half of its action."""

    do = gymnasium.spaces.Box(np.float32([0, -1]), np.float32([5, 1]))

    def __init__(self, agents: int = 1) -> None:
        super().__init__(agents)

    def step(self, actions: dict[str, Any]) -> Any:
        assert all(self.do.contains(action) for action in actions.values())
        numbers = dict(zip(self.possible_agents, self._numbers[:, 0].tolist(), strict=True))
        result = super().step(dict.fromkeys(actions, 0))
        rewards = {agent: -abs(float(action[1]) - numbers[agent]) for agent, action in actions.items()}
        return result[0], rewards, *result[2:]


class Relay(Rounds, pettingzoo.ParallelEnv):
    """Agents that come and go: "a" dies in round 3, "c" joins in round 2, all are truncated in round 5.

    Everybody sees [round, last action of a, b, c] in ONE buffer that each step overwrites; an action is its
    own reward.
    """

    see, do = gymnasium.spaces.Box(-100, 100, (4,), np.float32), gymnasium.spaces.Discrete(3, start=-1)
    possible_agents = ["a", "b", "c"]  # noqa: RUF012

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.agents = ["a", "b"]
        self.seen = np.zeros(4, np.float32)
        return dict.fromkeys(self.agents, self.seen), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        assert sorted(actions) == sorted(self.agents), "every live agent acts, and no other"
        self.seen[0] += 1
        for agent, action in actions.items():
            assert self.do.contains(action)
            self.seen[1 + self.possible_agents.index(agent)] = action
        acted, now = list(actions), int(self.seen[0])
        terminated = {agent: agent == "a" and now == 3 for agent in acted}
        truncated = dict.fromkeys(acted, now == 5)
        self.agents = [agent for agent in acted if not (terminated[agent] or truncated[agent])]
        if now == 2:
            self.agents.append("c")
            acted.append("c")
            terminated["c"] = truncated["c"] = False
        rewards = {agent: float(actions.get(agent, 0)) for agent in acted}
        return dict.fromkeys(acted, self.seen), rewards, terminated, truncated, {agent: {} for agent in acted}


class Corridor(gymnasium.Env[Any, Any]):
    """Five steps to the end. Step `errs_at` of all calls `error`, or returns a wrong `obs` or `reward`."""

    observation_space = gymnasium.spaces.Box(0, 5, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, errs_at: int = 0, error: Callable[[], object] | None = None, **wrong: Any) -> None:
        self.errs_at, self.error, self.wrong = errs_at, error, wrong
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.place = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        self.steps += 1
        self.place += 1
        wrong = self.wrong if self.steps == self.errs_at else {}
        if self.error is not None and self.steps == self.errs_at:
            self.error()
        obs = wrong.get("obs", np.full(2, self.place, np.float32))
        return obs, wrong.get("reward", 1.0), self.place == 5, False, {}


def collapse() -> None:
    raise RuntimeError("the floor gave way")


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Battle(Rounds):
    """Each agent lives for its number of rounds, or to the episode's end with round `rounds`; an action is a reward."""

    see, do = gymnasium.spaces.Box(-1, 1, (1,), np.float32), gymnasium.spaces.Discrete(2)

    def __init__(self, lives: Sequence[int], rounds: int = 40) -> None:
        self._lives = {f"agent_{i}": life for i, life in enumerate(lives)}
        self.possible_agents, self._rounds = [*self._lives], rounds

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._round = list(self.possible_agents), 0
        return dict.fromkeys(self.agents, np.zeros(1, np.float32)), {}

    def step(self, actions: dict[str, int]) -> Any:
        self._round += 1
        over, acted = self._round == self._rounds, self.agents
        dead = {agent: self._lives[agent] == self._round for agent in acted}
        self.agents = [agent for agent in acted if not (over or dead[agent])]
        truncated = {agent: over and not dead[agent] for agent in acted}
        rewards = {agent: float(actions[agent]) for agent in acted}
        return dict.fromkeys(acted, np.zeros(1, np.float32)), rewards, dead, truncated, {}


class Script(Rounds):
    """Agents of any spaces, by name, that come and go by a script: of each round who is there, who ended and how.

    Agent number i observes 10 * i + the round in each number, may do all but the action of the round's number, and is
    paid 1 + i.
    """

    def __init__(self, spaces, rounds=(), infos=None):
        self.spaces, self.possible_agents = spaces, list(spaces)
        self.rounds, self.infos = rounds or [{}] * 9, infos or {}
        self.acted = []

    def observation_space(self, agent):
        return self.spaces[agent][0]

    def action_space(self, agent):
        return self.spaces[agent][1]

    def state(self):
        return np.array([self.round], np.float32)

    def look(self, space, number):
        if isinstance(space, gymnasium.spaces.Dict):
            parts = {key: self.look(part, number) for key, part in space.items()}
            return parts | {key: self.mask(part) for key, part in space.items() if key == "action_mask"}
        if isinstance(space, gymnasium.spaces.Discrete):
            return space.start + (number + self.round) % space.n
        return np.full(space.shape, 10 * number + self.round, space.dtype)

    def mask(self, space):
        return (np.arange(space.n) != self.round % space.n).astype(np.int8)

    def observe(self, agents):
        return {agent: self.look(self.spaces[agent][0], self.possible_agents.index(agent)) for agent in agents}

    def reset(self, seed=None, options=None):
        self.round, self.agents = 0, list(self.rounds[0].get("there", self.possible_agents))
        return self.observe(self.agents), dict.fromkeys(self.agents, self.infos)

    def step(self, actions):
        assert all(self.spaces[agent][1].contains(action) for agent, action in actions.items()), actions
        assert list(actions) == self.agents
        self.acted.append(actions)
        self.round += 1
        now = self.rounds[self.round]
        told = {name: dict.fromkeys(now.get(name, ()), True) for name in ("terminated", "truncated")}
        ended = {**told["terminated"], **told["truncated"]}
        self.agents = [agent for agent in now.get("there", self.agents) if agent not in ended]
        seen = list(dict.fromkeys((*actions, *self.agents)))
        rewards = {agent: 1.0 + self.possible_agents.index(agent) for agent in actions}
        return self.observe(seen), rewards, told["terminated"], told["truncated"], dict.fromkeys(seen, self.infos)
