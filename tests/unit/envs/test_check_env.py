"""`check_env` passes environments that keep the interface, and names each violation in one line."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym
from gymnasium.vector import SyncVectorEnv
from odd_spaces import Counting
from pettingzoo.utils import parallel_to_aec
from relay import Relay

from marlcore.envs import NamedEnvironment, TreasureHunt, vectorize
from marlcore.errors import EnvironmentFailed
from marlcore.interfaces import Outcome, Turn
from marlcore.testing import check_env
from marlcore.testing.checked import CheckedEnvironment

FINE: dict[str, Any] = {
    "treasure hunt": lambda: TreasureHunt(horizon=9),
    "treasure hunts": lambda: TreasureHunt(horizon=9).vectorized(3),
    "checked": CheckedEnvironment,
    "by name": NamedEnvironment("gymnasium:CartPole-v1"),
    "acrobot": lambda: gymnasium.make("Acrobot-v1", max_episode_steps=20),
    "nested, masked": lambda: Counting(mask_in="observation"),
    "nested, masked in the info": lambda: Counting(mask_in="info"),
    "multi-discrete": lambda: Counting(action=gym.MultiDiscrete([3, 2], start=[4, -1])),
    "relay": Relay,
    "relay in turns": lambda: parallel_to_aec(Relay()),
    "vector": lambda: SyncVectorEnv([Counting] * 3),
    "vector, same step": lambda: SyncVectorEnv([Counting] * 3, autoreset_mode="SameStep"),
    "copies": lambda: vectorize(lambda: parallel_to_aec(Relay()), 2),
    "parallel copies": lambda: vectorize(Relay, 2),
}


@pytest.mark.parametrize("name", FINE)
def test_a_right_environment_passes(name: str) -> None:
    assert check_env(FINE[name], steps=300) is None
    assert check_env(FINE[name](), steps=300) is None


class Room:
    """An environment of two agents, which a test breaks in one place: by the name of what is wrong."""

    numbers = count()

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.agents: Any = ("a", "a") if wrong == "agents" else ("a", "b")
        space = gym.Dict({"place": gym.Box(-1, 1, (2,), np.float32), "room": gym.Discrete(3)})
        self.observation_spaces: Any = {"a": space, "b": space}
        if wrong == "spaces":
            del self.observation_spaces["b"]
        self.action_spaces: Any = {"a": gym.Discrete(3), "b": gym.Box(-1, 1, (2,), np.float32)}
        self.agent: str | None = None
        self.rng = np.random.default_rng(0)
        self.turn = 0

    def reset(self, seed: int | None = None) -> None:
        if seed is not None and self.wrong != "seed":
            self.rng = np.random.default_rng(seed)
        if self.wrong != "reset" or self.turn == 0:
            self.turn = 0
        self.agent = "a"
        self.look()

    def look(self) -> None:
        self.obs: Any = {"place": self.rng.uniform(-1, 1, 2).astype(np.float32), "room": 2}
        if self.turn == 3 and self.wrong in OBSERVATIONS:
            self.obs |= OBSERVATIONS[self.wrong]
        if self.turn == 3 and self.wrong == "missing":
            del self.obs["room"]

    def last(self) -> Any:
        over = self.turn >= 6
        reward: Any = np.nan if self.turn == 3 and self.wrong == "reward" else float(self.turn)
        info: Any = {"action_mask": np.ones(3, np.int8)} if self.agent == "a" else {}
        if self.turn == 4 and self.wrong in MASKS:
            info = MASKS[self.wrong]
        if self.wrong == "short":
            return self.obs, reward, over, False
        return self.obs, reward, int(over) if self.wrong == "terminated" else over, False, info

    def step(self, action: Any) -> None:
        if self.wrong != "after the end" and ((action is None) != (self.turn >= 6) or self.agent is None):
            raise ValueError("step: expected another action")
        if self.agent is None and self.wrong != "after the episode":
            raise ValueError("step: expected a reset")
        self.turn += 1
        self.agent = None if self.turn == 8 else "ab"[self.turn % 2]
        if self.turn == 3 and self.wrong == "stranger":
            self.agent = "z"
        if self.agent is not None:
            self.look()

    def close(self) -> None:
        """Nothing to release."""


OBSERVATIONS: dict[str, dict[str, Any]] = {
    "shape": {"place": np.zeros(3, np.float32)},
    "dtype": {"place": np.zeros(2)},
    "inf": {"place": np.array([0, np.inf], np.float32)},
    "bounds": {"place": np.full(2, 5, np.float32)},
    "range": {"room": 3},
}
MASKS: dict[str, Mapping[str, Any]] = {
    "mask length": {"action_mask": np.ones(4, np.int8)},
    "mask of nothing": {"action_mask": np.zeros(3, np.int8)},
    "mask missing": {},
}

LINES = {
    "agents": r"agents: expected different names, got \('a', 'a'\)",
    "spaces": r"observation_spaces: expected those of \('a', 'b'\), got those of \['a'\]",
    "shape": r"b: obs\['place'\]: expected float32 \(2,\), got float32 \(3,\)",
    "dtype": r"b: obs\['place'\]: expected float32 \(2,\), got float64 \(2,\)",
    "inf": r"b: obs\['place'\]: expected finite numbers, got inf in \[0\.0, inf\]",
    "bounds": r"b: obs\['place'\]: expected a member of Box\(.*\), got \[5\.0, 5\.0\]",
    "range": r"b: obs\['room'\]: expected a member of Discrete\(3\), got 3",
    "missing": r"b: obs: expected Dict\(.*\), got \{'place': ",
    "mask length": r"a: action_mask: expected bool \(3,\), got array\(\[1, 1, 1, 1\]",
    "mask of nothing": r"a: action_mask: expected an allowed action, got array\(\[0, 0, 0\]",
    "mask missing": r"a: action_mask: expected one in every info or in none, got \{\}",
    "reward": r"b: reward: expected a finite number of float32, got nan",
    "terminated": r"a: terminated: expected a bool, got 0",
    "short": r"last of a: expected \(observation, reward, terminated, truncated, info\), got \(\{",
    "after the end": r"step: expected an error for an action of a, whose episode has ended, got none",
    "stranger": r"agent: expected one of \('a', 'b'\), got 'z'",
    "reset": r"reset: expected an episode that begins, got the end of a's",
}


def test_the_room_is_right_when_nothing_is_wrong() -> None:
    check_env(Room, steps=100)


@pytest.mark.parametrize("wrong", LINES)
def test_a_violation_is_named_in_one_line(wrong: str) -> None:
    with pytest.raises(EnvironmentFailed, match=f"^{LINES[wrong]}") as error:
        check_env(lambda: Room(wrong), steps=100)
    assert "\n" not in str(error.value)


class Rigid(Room):
    """Its seed is that of its making, as some environments' are."""

    def __init__(self) -> None:
        super().__init__()
        self.made = next(self.numbers)

    def reset(self, seed: int | None = None) -> None:
        super().reset(seed if seed is None else seed + self.made)


def test_another_environment_with_the_same_seed_should_repeat() -> None:
    check_env(Rigid(), steps=100)
    with pytest.warns(UserWarning, match=r"^reset: expected another environment, reset with the same seed"):
        check_env(Rigid, steps=100)


def test_a_reset_that_does_not_repeat_is_a_warning_with_its_cost() -> None:
    """Some games alternate who begins, whatever the seed; they can be trained on."""
    says = (
        r"^reset: expected the same environment, .* to repeat event 0, a: array\(.*, got array.*; training works, but"
    )
    with pytest.warns(UserWarning, match=says) as warned:
        check_env(lambda: Room("seed"), steps=100)
    assert len(warned) == 1 and "\n" not in str(warned[0].message)


def test_what_a_check_made_is_closed_whatever_it_finds() -> None:
    closed: list[Any] = []

    class Closing(Room):
        def close(self) -> None:
            closed.append(self)

    with pytest.raises(EnvironmentFailed):
        check_env(lambda: Closing("inf"), steps=100)
    assert len(closed) == 1
    check_env(Closing, steps=100)
    assert len(closed) == 3
    check_env(Closing(), steps=100)
    assert len(closed) == 3, "the caller closes what the caller made"


def test_a_space_that_is_not_supported_is_a_value_error() -> None:
    room = Room()
    room.action_spaces["a"] = gym.Text(3)
    with pytest.raises(ValueError, match=r"^a: action space: expected a Box, .*, got Text\("):
        check_env(room)
    with pytest.raises(TypeError, match=r"^env_fn: expected it to make a marlcore, PettingZoo or"):
        check_env(lambda: 5)


class Rooms:
    """A right VectorEnvironment in front of one that a test breaks."""

    def __init__(self, wrong: str) -> None:
        self.inner = TreasureHunt(horizon=4, agents=2).vectorized(3)
        self.copies, self.agents, self.spaces = self.inner.copies, self.inner.agents, self.inner.spaces
        self.wrong, self.round = wrong, 0

    @property
    def episodes(self) -> int:
        return self.inner.episodes

    @property
    def ended(self) -> np.ndarray:
        wrong = {"ended": min(self.round, 1), "ended before": 1, "kind of ended": 0.0}
        return self.inner.ended + wrong.get(self.wrong, 0)

    def reset(self, seed: int) -> None:
        self.inner.reset(seed)
        self.round = 0

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        outcomes, turns = self.inner.observe()
        self.round += 1
        if self.round < 4 and self.wrong != "begins":
            return outcomes, turns
        if self.wrong == "no turn":
            return outcomes, []
        if self.wrong == "lost outcome":
            return [], turns
        if self.wrong == "two outcomes":
            return outcomes * 2, turns
        if self.wrong in OUTCOMES:
            outcomes = [outcome._replace(**OUTCOMES[self.wrong](outcome)) for outcome in outcomes]
        if self.wrong in TURNS:
            turns = [turn._replace(**TURNS[self.wrong](turn)) for turn in turns]
        return outcomes, turns

    def act(self, turn: Turn, action: Any) -> None:
        self.inner.act(turn, action)

    def close(self) -> None:
        """Nothing to release."""


OUTCOMES: dict[str, Any] = {
    "reward": lambda outcome: {"reward": np.full(3, np.inf)},
    "ends": lambda outcome: {"truncated": np.zeros(3)},
    "final": lambda outcome: {"truncated": np.ones(3, bool), "final_obs": None},
}
TURNS: dict[str, Any] = {
    "agent": lambda turn: {"agent": "z"},
    "copies": lambda turn: {"copies": np.array([0, 2, 1])},
    "rows": lambda turn: {"obs": turn.obs[:2]},
    "kind": lambda turn: {"obs": turn.obs.astype(np.float64)},
    "infinite": lambda turn: {"obs": np.full_like(turn.obs, np.inf)},
    "fields": lambda turn: {"obs": {"place": turn.obs}},
    "begins": lambda turn: {"begins": np.zeros(3, bool)},
}
SEVERAL = {
    "ended": r"ended: expected 0 episodes in all copies, got \[1 1 1\]",
    "ended before": r"ended: expected no episodes after a reset, got \[1 1 1\]",
    "kind of ended": r"ended: expected integers \(3,\), got array\(\[0\., 0\., 0\.\]\)",
    "no turn": "observe: expected at least one turn, got none",
    "lost outcome": "turn of agent_1: copy 0: expected an outcome of its last action before this turn",
    "two outcomes": "outcome of agent_1: copy 0: expected none, since the agent has not acted there",
    "reward": r"outcome of agent_1: reward: expected finite numbers of float32, got \[inf",
    "ends": r"outcome of agent_1: truncated: expected bools \(3,\), got array\(\[0\., 0\., 0\.\]\)",
    "final": "outcome of agent_1: final_obs: expected observations, since an episode ended, got None",
    "agent": r"turn of z: expected one of \('agent_0', 'agent_1'\)",
    "copies": r"turn of agent_1: copies: expected ascending numbers below 3, got array\(\[0, 2, 1\]\)",
    "rows": r"turn of agent_1: obs: expected float32 \(3, 5, 5, 5\), got array",
    "kind": r"turn of agent_1: obs: expected float32 \(3, 5, 5, 5\), got array",
    "infinite": "turn of agent_1: obs: expected finite numbers, got inf in",
    "fields": r"turn of agent_1: obs: expected the fields \['observation'\], got \['place'\]",
    "begins": "turn of agent_0: copy 0: expected begins to be True in an episode's first turn",
}


@pytest.mark.parametrize("wrong", SEVERAL)
def test_a_violation_of_several_copies_is_named_in_one_line(wrong: str) -> None:
    with pytest.raises(EnvironmentFailed, match=f"^{SEVERAL[wrong]}") as error:
        check_env(lambda: Rooms(wrong), steps=100)
    assert "\n" not in str(error.value)
