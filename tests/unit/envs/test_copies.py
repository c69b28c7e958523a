"""Several single copies as one: what each copy is told and asked, and how its errors are named."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym
from gymnasium.wrappers import RecordEpisodeStatistics
from odd_spaces import Counting
from pettingzoo.utils import parallel_to_aec
from random_play import aec, assert_same, child_seeds, parallel, play, single
from relay import Relay

from marlcore.envs import vectorize
from marlcore.envs.agent_view import AgentView
from marlcore.envs.agent_view import numbers as numbers_of
from marlcore.envs.pettingzoo import ParallelEnvironment
from marlcore.errors import EnvironmentFailed
from marlcore.interfaces import VectorEnvironment
from marlcore.testing.checked import CheckedEnvironment

COUNTING: dict[str, dict[str, Any]] = {
    "nested": {},
    "masked in the observation": {"mask_in": "observation"},
    "masked in the info": {"mask_in": "info"},
    "multi-discrete": {"action": gym.MultiDiscrete([3, 2], start=[4, -1])},
    "masked multi-discrete": {"action": gym.MultiDiscrete([3, 2], start=[4, -1]), "mask_in": "info"},
    "masked multi-discrete in the observation": {"action": gym.MultiDiscrete([3, 2]), "mask_in": "observation"},
    "multi-binary": {"action": gym.MultiBinary(3)},
    "box": {"action": gym.Box(-1, 1, (2, 2), np.float32)},
}


@pytest.mark.parametrize("name", COUNTING)
@pytest.mark.parametrize("copies", [1, 4])
def test_every_space_arrives_as_it_is(name: str, copies: int) -> None:
    env = vectorize(lambda: Counting(**COUNTING[name]), copies)
    masked = env.spaces["agent_0"].masked
    assert masked == name.startswith("masked")
    events, actions = play(env, 100)
    for copy, seed in enumerate(child_seeds(5, copies)):
        mine = events[copy, "agent_0"]
        assert_same(mine, single(Counting(**COUNTING[name]), seed, actions[copy, "agent_0"], masked=masked))
    assert env.episodes >= 10 * copies


@pytest.mark.parametrize("form", ["aec", "parallel"])
def test_agents_that_come_and_go(form: str) -> None:
    make = (lambda: parallel_to_aec(Relay())) if form == "aec" else Relay
    env = vectorize(make, 3)
    events, actions = play(env, 100)
    reference = aec if form == "aec" else parallel
    for copy, seed in enumerate(child_seeds(5, 3)):
        masked = dict.fromkeys("abc", False)
        mine = {agent: found for (number, agent), found in events.items() if number == copy}
        its = reference(make(), seed, defaultdict(list, {a: q for (n, a), q in actions.items() if n == copy}), masked)
        assert mine.keys() == its.keys() == set("abc")
        for agent in mine:
            assert_same(mine[agent], its[agent])


class Phoenix(Relay):
    """Relay, but "a" is back in round 4, after its end in round 3."""

    def step(self, actions: dict[str, int]) -> Any:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        if self.seen[0] == 4:
            self.agents.append("a")
            obs["a"], rewards["a"], terminated["a"], truncated["a"], infos["a"] = self.seen, 9.0, False, False, {}
        return obs, rewards, terminated, truncated, infos


@pytest.mark.parametrize("make", [Phoenix, lambda: ParallelEnvironment(Phoenix())])
def test_an_agent_that_comes_back_after_its_end_begins_again(make: Any) -> None:
    env = vectorize(make, 2)
    env.reset(0)
    told: list[Any] = []
    while not env.episodes:
        outcomes, turns = env.observe()
        told += [("outcome", *outcome.reward, *outcome.terminated) for outcome in outcomes if outcome.agent == "a"]
        told += [("turn", *turn.begins) for turn in turns if turn.agent == "a"]
        for turn in turns:
            env.act(turn, np.full(2, 2))
    first, later, ended = ("turn", True, True), ("turn", False, False), ("outcome", 1.0, 1.0, True, True)
    alive = ("outcome", 1.0, 1.0, False, False)
    assert told[:9] == [first, alive, later, alive, later, ended, first, alive, first]


class Abrupt:
    """An environment of two agents whose episode ends for both before they are told."""

    agents = ("a", "b")
    observation_spaces = dict.fromkeys(agents, gym.Box(0, 9, (1,), np.float32))
    action_spaces = dict.fromkeys(agents, gym.Box(-1, 1, (1,), np.float32))
    agent: str | None = None

    def reset(self, seed: int | None = None) -> None:
        self.agent, self.steps = "a", 0

    def last(self) -> Any:
        return np.full(1, self.steps, np.float32), 5.0, False, False, {}

    def step(self, action: Any) -> None:
        action[:] = 7  # it may: the action is its own
        self.steps += 1
        self.agent = "ab"[self.steps % 2] if self.steps < 4 else None

    def close(self) -> None:
        """Nothing to release."""


def test_actions_whose_outcome_never_comes_are_dropped() -> None:
    env = vectorize(Abrupt, 2)
    env.reset(0)
    told: list[Any] = []
    for _ in range(8):
        outcomes, [turn] = env.observe()
        told += [("outcome", outcome.agent) for outcome in outcomes]
        told.append((turn.agent, *turn.begins))
        action = np.zeros((2, 1), np.float32)
        env.act(turn, action)
        assert not action.any(), "the caller's action was changed"
    begin = [("a", True, True), ("b", True, True)]
    end = [("outcome", "a"), ("a", False, False), ("outcome", "b"), ("b", False, False)]
    assert told == (begin + end) * 2


def test_agents_that_act_at_once_share_an_observation() -> None:
    env = vectorize(Relay, 2)
    env.reset(0)
    turns = env.observe()[1]
    assert [turn.agent for turn in turns] == ["a", "b"]
    assert all(turn.copies.tolist() == [0, 1] for turn in turns)


def test_a_turn_keeps_its_observation_until_the_next() -> None:
    """Although the environment overwrites its buffer in every step."""
    for make in (Relay, lambda: parallel_to_aec(Relay())):
        env = vectorize(make, 2)
        env.reset(0)
        for _ in range(30):
            turns = env.observe()[1]
            before = [turn.obs.copy() for turn in turns]
            for turn in turns:
                env.act(turn, np.zeros(len(turn.copies), np.int64))
            for turn, obs in zip(turns, before, strict=True):
                np.testing.assert_array_equal(turn.obs, obs)


def test_when_all_copies_act_their_arrays_are_not_copied() -> None:
    env = vectorize(lambda: gymnasium.make("CartPole-v1"), 3)
    env.reset(0)
    found = []
    for _ in range(2):
        _, [turn] = env.observe()
        found.append(turn.obs)
        env.act(turn, np.zeros(3, np.int64))
    assert found[0] is found[1]


def test_the_seed_decides_and_a_reset_forgets() -> None:
    for make in (Counting, Relay, lambda: parallel_to_aec(Relay())):
        env, other = vectorize(make, 2), vectorize(make, 2)
        first, _ = play(env, 31, seed=3)
        play(other, 17, seed=4)
        again, _ = play(other, 31, seed=3)
        for key in first:
            assert_same(first[key], again[key])


def test_numbers_at_an_episodes_end_are_told() -> None:
    env = vectorize(lambda: RecordEpisodeStatistics(Counting()), 2)
    env.reset(0)
    told: list[Mapping[str, float]] = []
    for _ in range(40):
        outcomes, [turn] = env.observe()
        for outcome in outcomes:
            assert [copy for copy, _ in outcome.infos] == np.flatnonzero(
                outcome.terminated | outcome.truncated
            ).tolist()
            told += [numbers for _, numbers in outcome.infos]
        env.act(turn, np.zeros(len(turn.copies), np.int64))
    assert len(told) == env.episodes
    for numbers in told:
        assert numbers.keys() == {"steps", "episode_r", "episode_l", "episode_t"}
        assert numbers["steps"] == numbers["episode_l"] == numbers["episode_r"] / 3


class Wrong(gymnasium.Env[Any, Any]):
    """Returns one wrong thing, in the second step of one of its copies."""

    observation_space = gym.Dict({"place": gym.Box(-1, 1, (2,), np.float32), "room": gym.Discrete(3)})
    action_space = gym.Discrete(2)

    def __init__(self, what: str = "", *, bad: bool = False) -> None:
        self.what, self.bad = what if bad else "", bad
        self.masked = what.startswith("mask")

    def result(self) -> Any:
        obs: Any = {"place": np.zeros(2, np.float32), "room": 1}
        info: Any = {"action_mask": np.ones(2, np.int8)} if self.masked else {}
        late = self.steps == 2
        if late and self.what in FLOATS:
            obs["place"] = np.array([0, FLOATS[self.what]])
        if late and self.what in PARTS:
            obs |= PARTS[self.what]
        if late and self.what == "missing":
            del obs["room"]
        if late and self.what in MASKS:
            info = MASKS[self.what]
        return obs, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.steps = 0
        if self.what == "reset":
            raise RuntimeError("no reset")
        return self.result()

    def step(self, action: int) -> Any:
        self.steps += 1
        if self.steps == 2 and self.what == "raise":
            raise RuntimeError("no step")
        obs, info = self.result()
        if self.steps < 2:
            return obs, 1.0, False, False, info
        return obs, REWARDS.get(self.what, 1.0), ENDS.get(self.what, False), False, info


FLOATS = {"nan": np.nan, "inf": -np.inf, "beyond": 1e39}
PARTS: dict[str, dict[str, Any]] = {
    "shape": {"place": np.zeros(3, np.float32)},
    "dtype": {"room": 1.0},
    "range": {"room": 3},
    "none": {"place": None},
}
MASKS: dict[str, dict[str, Any]] = {
    "mask length": {"action_mask": np.ones(3, np.int8)},
    "mask missing": {},
    "mask of nothing": {"action_mask": np.zeros(2, np.int8)},
    "unexpected": {"action_mask": np.ones(2, np.int8)},
}
REWARDS: dict[str, Any] = {
    "infinite": float("inf"),
    "reward beyond": 1e39,
    "reward beyond float": 10**400,
    "no reward": None,
    "reward of text": "1",
    "reward of texts": np.array("1"),
    "complex reward": np.complex64(1),
    "two rewards": np.zeros(2),
}

ENDS: dict[str, Any] = {"text": "False", "no end": None, "number": 0.0}

LINES = {
    "nan": r", agent_0: obs\['place'\]: expected finite numbers, got nan in \[0\.0, nan\]$",
    "inf": r", agent_0: obs\['place'\]: expected finite numbers, got -inf in \[0\.0, -inf\]$",
    "beyond": r", agent_0: obs\['place'\]: expected values in float32's range, got 1e\+39$",
    "shape": r", agent_0: obs\['place'\]: expected float32 \(2,\), got shape \(3,\)$",
    "dtype": r", agent_0: obs\['room'\]: expected int64 \(\), got dtype float64$",
    "range": r", agent_0: obs\['room'\]: expected Discrete\(3\), got 3$",
    "none": r", agent_0: obs\['place'\]: expected float32 \(2,\), got shape \(\)$",
    "missing": r", agent_0: obs: expected obs\['place'\], obs\['room'\], got \{'place': ",
    "mask length": r", agent_0: action_mask: expected bool \(2,\), got array\(\[1, 1, 1\]",
    "mask missing": r", agent_0: action_mask: expected bool \(2,\), got None$",
    "mask of nothing": r", agent_0: action_mask: expected an allowed action, got \[False, False\]$",
    "unexpected": r", agent_0: action_mask: expected one in every info or in none, got array",
    "infinite": r", agent_0: reward: expected a finite number of float32, got inf$",
    "reward beyond": r", agent_0: reward: expected a finite number of float32, got 1e\+39$",
    "reward beyond float": r", agent_0: reward: expected a number, got 1000",
    "no reward": r", agent_0: reward: expected a number, got None$",
    "reward of text": r", agent_0: reward: expected a number, got '1'$",
    "reward of texts": r", agent_0: reward: expected a number, got array\('1', dtype='<U1'\)$",
    "complex reward": r", agent_0: reward: expected a number, got .*1\+0j",
    "two rewards": r", agent_0: reward: expected a number, got array\(\[0\., 0\.\]\)$",
    "text": r", agent_0: terminated: expected a bool, got 'False'$",
    "no end": r", agent_0: terminated: expected a bool, got None$",
    "number": r", agent_0: terminated: expected a bool, got 0\.0$",
    "raise": r", agent_0: RuntimeError: no step$",
    "reset": r": RuntimeError: no reset$",
}


def rounds(env: VectorEnvironment, count: int = 4) -> None:
    env.reset(0)
    for _ in range(count):
        for turn in env.observe()[1]:
            env.act(turn, np.zeros(len(turn.copies), np.int64))


@pytest.mark.parametrize("what", LINES)
def test_a_wrong_value_is_named_with_copy_and_agent(what: str) -> None:
    made = iter(range(5))
    env = vectorize(lambda: Wrong(what, bad=next(made) == 2), 4)
    with pytest.raises(EnvironmentFailed, match=f"^environment copy 2{LINES[what]}") as error:
        rounds(env)
    assert "\n" not in str(error.value)


def test_an_integer_beyond_floats_is_an_infinite_number_of_an_info() -> None:
    assert numbers_of({"big": 10**400, "small": -(10**400), "half": 0.5}) == {
        "big": np.inf,
        "small": -np.inf,
        "half": 0.5,
    }


def test_a_box_that_says_so_may_hold_infinities_but_no_nan() -> None:
    """Its bounds do not tell: most environments have infinite ones."""
    space = gym.Dict({name: gym.Box(0, np.inf, (1,), np.float32) for name in ("near", "far")})
    space["far"].allow_inf = True  # type: ignore[attr-defined]
    refused = partial(pytest.raises, EnvironmentFailed)
    view, copies = AgentView.of("a", pickle.loads(pickle.dumps(space)), gym.Discrete(2)), np.arange(3)
    values = {name: np.zeros((3, 1), np.float32) for name in ("near", "far")}
    values["far"][1] = np.inf
    view.check(copies, values, acting=True)
    values["near"][2] = np.inf
    with refused(match=r"^environment copy 2, a: obs\['near'\]: expected finite numbers, got inf"):
        view.check(copies, values, acting=True)
    values["near"][2], values["far"][0] = 0, np.nan
    with refused(match=r"^environment copy 0, a: obs\['far'\]: expected finite numbers, got nan"):
        view.check(copies, values, acting=True)


class Stuck(Counting):
    """Its mask allows nothing of the action's second component."""

    def __init__(self) -> None:
        super().__init__(gym.MultiDiscrete([3, 2]), "info")

    def look(self) -> Any:
        obs, info = super().look()
        return obs, info | {"action_mask": (np.ones(3, bool), np.zeros(2, bool))}


def test_each_component_of_an_action_must_be_allowed_something() -> None:
    with pytest.raises(EnvironmentFailed, match=r"agent_0: action_mask: expected an allowed action, got \[True, .*\]$"):
        rounds(vectorize(Stuck, 2))


class FromParallel(Relay):
    """Relay, but one copy returns something wrong in its second round."""

    def __init__(self, what: str) -> None:
        self.what = what

    def step(self, actions: dict[str, int]) -> Any:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        if self.seen[0] == 2:
            if self.what == "stranger":
                self.agents.append("z")
                obs["z"] = self.seen
            if self.what == "inf":
                obs["b"] = np.full(4, np.inf, np.float32)
            if self.what == "missing":
                del obs["b"]
            if self.what == "raise":
                raise RuntimeError("no step")
        return obs, rewards, terminated, truncated, infos


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("stranger", r": ValueError: agent: expected one of \['a', 'b', 'c'\], which .*, got 'z'$"),
        ("inf", r", b: obs: expected finite numbers, got inf in"),
        ("missing", r", b: obs: expected an observation, got those of \['a', 'c'\]$"),
        ("raise", ": RuntimeError: no step$"),
    ],
)
@pytest.mark.parametrize("form", ["aec", "parallel"])
def test_a_wrong_value_among_several_agents(form: str, what: str, line: str) -> None:
    wrap = parallel_to_aec if form == "aec" else lambda env: env
    made = iter(range(4))
    env = vectorize(lambda: wrap(FromParallel(what if next(made) == 1 else "")), 3)
    if form == "aec" and what != "inf":  # PettingZoo's conversion fails, when its last agent has acted
        line = ", [bc]: " if what != "raise" else ", b" + line
    with pytest.raises(EnvironmentFailed, match=f"^environment copy 1{line}"):
        rounds(env, 12)


class Deserted(Relay):
    """Nobody is there."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed)
        self.agents = []
        return {}, {}


@pytest.mark.parametrize("form", [Deserted, lambda: ParallelEnvironment(Deserted())])
def test_an_environment_in_which_no_agent_ever_acts_is_named(form: Any) -> None:
    env = vectorize(form, 2)
    with pytest.raises(EnvironmentFailed, match=r"^environment copy 0: .* that acts, got 1000 episodes without one$"):
        rounds(env)


class Vanishing(Relay):
    """Agent "b" leaves in round 1 without an end, and is there again in round 3."""

    def step(self, actions: dict[str, int]) -> Any:
        self.agents = list(actions)
        obs, rewards, terminated, truncated, infos = super().step(actions)
        if self.seen[0] == 1:
            self.agents.remove("b")
            del terminated["b"], truncated["b"], obs["b"], rewards["b"]
        if self.seen[0] == 3:
            self.agents.append("b")
            obs["b"], rewards["b"], terminated["b"], truncated["b"] = self.seen, 7.0, False, False
        return obs, rewards, terminated, truncated, infos


def test_an_agent_that_vanished_begins_again_without_an_outcome() -> None:
    env = vectorize(Vanishing, 2)
    env.reset(0)
    told, begins = [], []
    for _ in range(5):
        outcomes, turns = env.observe()
        told.append([outcome.reward.tolist() for outcome in outcomes if outcome.agent == "b"])
        begins += [turn.begins.tolist() for turn in turns if turn.agent == "b"]
        for turn in turns:
            env.act(turn, np.zeros(2, np.int64))
    assert told == [[], [], [], [], [[-1.0, -1.0]]]
    assert begins == [[True, True], [True, True], [False, False]]


@pytest.mark.parametrize("form", ["aec", "parallel"])
def test_actions_of_another_shape_or_dtype_are_the_callers_error(form: str) -> None:
    env = vectorize(lambda: parallel_to_aec(Relay()) if form == "aec" else Relay(), 2)
    env.reset(0)
    turn = env.observe()[1][0]
    with pytest.raises(ValueError, match=r"^action: expected int64 \(2,\), got shape \(3,\)$"):
        env.act(turn, np.zeros(3, np.int64))
    with pytest.raises(TypeError, match=r"^action: expected int64 \(2,\), got dtype float64$"):
        env.act(turn, np.zeros(2))


def test_the_agents_keep_the_order_in_which_their_environment_names_them() -> None:
    """That of its spaces may be another, and infos that may hold masks are looked at in that order."""
    one = CheckedEnvironment()
    one.agents = one.agents[::-1]
    assert tuple(vectorize(lambda: one, 1).agents) == ("agent_1", "agent_0")
