"""Several single copies as one: what each copy is told and asked, and how its errors are named."""

import pickle
from collections import defaultdict
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from crowd import Relay
from gymnasium import spaces as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics
from odd_spaces import VARIANTS, Counting
from pettingzoo.utils import parallel_to_aec
from random_play import aec, assert_same, child_seeds, parallel, play, single
from refused import check_refused, refusals
from rooms import WRONG, Room

from marlcore.envs import AgentView, ParallelEnvironment, vectorize
from marlcore.envs.agent_view import numbers as numbers_of
from marlcore.envs.gymnasium_vector import GymnasiumVector
from marlcore.errors import EnvironmentFailed
from marlcore.testing import checked

FORMS = {"aec": (lambda env: parallel_to_aec(env), aec), "parallel": (lambda env: env, parallel)}
FORM = pytest.mark.parametrize("form", FORMS)


def rounds(env, count=4, value=0):
    """Plays the same action everywhere; yields the outcomes and turns of each round."""
    env.reset(0)
    for _ in range(count):
        outcomes, turns = env.observe()
        yield outcomes, turns
        for turn in turns:
            env.act(turn, np.full(len(turn.copies), value))


def told_to(env, agent, count):
    """What an agent is told and asked: the rewards and terminations of outcomes, whether turns begin episodes."""
    for outcomes, turns in rounds(env, count, value=2):
        yield from (("outcome", *one.reward, *one.terminated) for one in outcomes if one.agent == agent)
        yield from (("turn", *turn.begins) for turn in turns if turn.agent == agent)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("copies", [1, 3])
def test_every_space_arrives_as_it_is(name, copies):
    env = vectorize(lambda: Counting(**VARIANTS[name]), copies)
    masked = env.spaces["agent_0"].masked
    assert masked == name.startswith("masked")
    events, actions = play(env, 50)
    for copy, seed in enumerate(child_seeds(5, copies)):
        expected = single(Counting(**VARIANTS[name]), seed, actions[copy, "agent_0"], masked=masked)
        assert_same(events[copy, "agent_0"], expected)
    assert env.episodes >= 5 * copies


@FORM
def test_agents_that_come_and_go(form):
    wrap, reference = FORMS[form]
    events, actions = play(vectorize(lambda: wrap(Relay()), 3), 50)
    for copy, seed in enumerate(child_seeds(5, 3)):
        of_copy = defaultdict(list, {agent: queue for (number, agent), queue in actions.items() if number == copy})
        expected = reference(wrap(Relay()), seed, of_copy, dict.fromkeys("abc", False))
        assert {agent for number, agent in events if number == copy} == expected.keys() == set("abc")
        for agent in "abc":
            assert_same(events[copy, agent], expected[agent])


class Changed(Relay):
    """Relay, but a function changes what a step returns."""

    def __init__(self, change):
        self.change = change

    def step(self, actions):
        result = super().step(actions)
        self.change(self, *result)
        return result


def phoenix(env, obs, rewards, terminated, truncated, infos):
    """Agent "a" is back in round 4, after its end in round 3."""
    if env.seen[0] == 4:
        env.agents.append("a")
        obs["a"], rewards["a"], terminated["a"], truncated["a"], infos["a"] = env.seen, 9.0, False, False, {}


@pytest.mark.parametrize("make", [lambda: Changed(phoenix), lambda: ParallelEnvironment(Changed(phoenix))])
def test_an_agent_that_comes_back_after_its_end_begins_again(make):
    """What came with its return counts when the episode is over; an agent's turn cannot tell of it."""
    first, later, ended = ("turn", True, True), ("turn", False, False), ("outcome", 1.0, 1.0, True, True)
    alive, aside = (("outcome", reward, reward, False, False) for reward in (1.0, 9.0))
    told = list(told_to(vectorize(make, 2), "a", 40))
    assert told[:10] == [first, alive, later, alive, later, ended, first, alive, aside, first]


def vanishing(env, obs, rewards, terminated, truncated, infos):
    """Agent "b" leaves in round 1 without an end, and is there again in round 3."""
    if env.seen[0] == 1:
        env.agents.remove("b")
        del terminated["b"], truncated["b"], obs["b"], rewards["b"]
    if env.seen[0] == 3:
        env.agents.append("b")
        obs["b"], rewards["b"], terminated["b"], truncated["b"] = env.seen, 7.0, False, False


def test_an_agent_that_vanished_begins_again_without_an_outcome():
    first, later = ("turn", True, True), ("turn", False, False)
    expected = [first, first, ("outcome", 1.0, 1.0, False, False), later]
    assert list(told_to(vectorize(lambda: Changed(vanishing), 2), "b", 5)) == expected


class Abrupt:
    """An environment of two agents whose episode ends for both before they are told."""

    agents = ("a", "b")
    observation_spaces = dict.fromkeys(agents, gym.Box(0, 9, (1,), np.float32))
    action_spaces = dict.fromkeys(agents, gym.Box(-1, 1, (1,), np.float32))
    agent: str | None = None

    def reset(self, seed=None):
        self.agent, self.steps = "a", 0

    def last(self):
        return np.full(1, self.steps, np.float32), 5.0, False, False, {}

    def step(self, action):
        action[:] = 7  # it may: the action is its own
        self.steps += 1
        self.agent = "ab"[self.steps % 2] if self.steps < 4 else None

    def close(self):
        """Nothing to release."""


def test_actions_whose_outcome_never_comes_are_dropped():
    """What came before the first action is told at the end."""
    env, told, action = vectorize(Abrupt, 2), [], np.zeros((2, 1), np.float32)
    env.reset(0)
    for _ in range(8):
        outcomes, [turn] = env.observe()
        told += [("outcome", outcome.agent, *outcome.reward) for outcome in outcomes if outcome.acted]
        told += [("aside", outcome.agent, *outcome.reward) for outcome in outcomes if not outcome.acted]
        told.append((turn.agent, *turn.begins))
        env.act(turn, action)
    assert not action.any(), "the caller's action was changed"
    begin = [("a", True, True), ("b", True, True)]
    end = [("outcome", "a", 5.0, 5.0), ("a", False, False), ("outcome", "b", 5.0, 5.0), ("b", False, False)]
    assert told == begin + end + [("aside", "a", 5.0, 5.0), ("aside", "b", 5.0, 5.0)] + begin + end


def test_agents_that_act_at_once_share_an_observation():
    [(_, turns)] = rounds(vectorize(Relay, 2), 1)
    assert [(turn.agent, turn.copies.tolist()) for turn in turns] == [("a", [0, 1]), ("b", [0, 1])]


@FORM
def test_a_turn_keeps_its_observation_until_the_next(form):
    """Although the environment overwrites its buffer in every step."""
    env, before = vectorize(lambda: FORMS[form][0](Relay()), 2), []
    env.reset(0)
    for _ in range(30):
        turns = env.observe()[1]
        before = [turn.obs.copy() for turn in turns]
        for turn in turns:
            env.act(turn, np.zeros(len(turn.copies), np.int64))
        for turn, obs in zip(turns, before, strict=True):
            np.testing.assert_array_equal(turn.obs, obs)


def test_when_all_copies_act_their_arrays_are_not_copied():
    env = vectorize(lambda: gymnasium.make("CartPole-v1"), 3)
    first, second = (turn.obs for _, [turn] in rounds(env, 2))
    assert first is second


@pytest.mark.parametrize("make", [Counting, Relay, lambda: parallel_to_aec(Relay())])
def test_the_seed_decides_and_a_reset_forgets(make):
    env, other = vectorize(make, 2), vectorize(make, 2)
    first, _ = play(env, 31, seed=3)
    play(other, 17, seed=4)
    again, _ = play(other, 31, seed=3)
    for key in first:
        assert_same(first[key], again[key])


def test_numbers_at_an_episodes_end_are_told():
    env, told = vectorize(lambda: RecordEpisodeStatistics(Counting()), 2), []
    for outcomes, _ in rounds(env, 40):
        for outcome in outcomes:
            ended = np.flatnonzero(outcome.terminated | outcome.truncated).tolist()
            assert [copy for copy, _ in outcome.infos] == ended
            told += [numbers for _, numbers in outcome.infos]
    assert len(told) == env.episodes
    for numbers in told:
        assert numbers.keys() == {"steps", "episode_r", "episode_l", "episode_t"}
        assert numbers["steps"] == numbers["episode_l"] == numbers["episode_r"] / 3


def plays_wrong(field, value):
    """Four copies, of which the third is wrong."""
    made = iter(range(5))
    play(vectorize(lambda: Room(*((field, value) if next(made) == 2 else ())), 4), 8)


test_a_wrong_value_is_named_with_copy_and_agent = refusals(
    {
        case: (partial(plays_wrong, field, value), EnvironmentFailed, f"environment copy 2{says}")
        for case, (field, value, says) in {
            **{case: (field, value, f", {says}") for case, (field, value, says, _) in WRONG.items() if says},
            "reset": ("reset", RuntimeError("no reset"), ": RuntimeError: no reset"),
        }.items()
    }
)


@pytest.mark.parametrize("end", [np.False_, np.array([False]), 0], ids=repr)
def test_an_end_may_be_a_number_or_an_array_of_one(end):
    plays_wrong("terminated", end)


def test_an_integer_beyond_floats_becomes_infinite():
    info = {"big": 10**400, "small": -(10**400), "half": 0.5}
    assert numbers_of(info) == {"big": np.inf, "small": -np.inf, "half": 0.5}


def test_a_box_that_says_so_may_hold_infinities_but_no_nan():
    """Its bounds do not tell: most environments have infinite ones."""
    space = gym.Dict({name: gym.Box(0, np.inf, (1,), np.float32) for name in ("near", "far")})
    space["far"].allow_inf = True
    view, copies = AgentView.of("a", pickle.loads(pickle.dumps(space)), gym.Discrete(2)), np.arange(3)
    values = {name: np.zeros((3, 1), np.float32) for name in ("near", "far")}
    values["far"][1] = np.inf
    view.check(copies, values, acting=True)
    for name, row, value in (("near", 2, np.inf), ("far", 0, np.nan)):
        wrong = {part: rows.copy() for part, rows in values.items()}
        wrong[name][row] = value
        says = f"environment copy {row}, a: obs['{name}']: expected finite numbers, got {value}"
        check_refused(lambda wrong=wrong: view.check(copies, wrong, acting=True), EnvironmentFailed, says)


class Stuck(Counting):
    """Its mask allows nothing of the action's second component."""

    def __init__(self):
        super().__init__(gym.MultiDiscrete([3, 2]), "info")

    def look(self):
        obs, info = super().look()
        return obs, info | {"action_mask": (np.ones(3, bool), np.zeros(2, bool))}


def test_a_mask_allows_something_of_each_component():
    says = "environment copy 0, agent_0: action_mask: expected an allowed action, got ["
    check_refused(lambda: list(rounds(vectorize(Stuck, 2))), EnvironmentFailed, says)


class Leaving(Counting):
    """At its end, its mask allows nothing of the action's second component alone."""

    def __init__(self):
        super().__init__(gym.MultiDiscrete([3, 2]), "info")

    def look(self):
        obs, info = super().look()
        left = {"action_mask": (np.array([True, False, False]), np.zeros(2, bool))}
        return obs, info | (left if self.steps == self.length else {})


@pytest.mark.parametrize("mode", [None, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=str)
def test_a_final_mask_allows_all_of_a_component_of_which_it_allowed_nothing(mode):
    """No action follows it, but targets take the best or a drawn action there."""
    env = vectorize(Leaving, 2) if mode is None else GymnasiumVector(SyncVectorEnv([Leaving] * 2, autoreset_mode=mode))
    events, _ = play(env, 50)
    finals = [
        event[-1][-1].tolist()
        for each in events.values()
        for event in each
        if event[0] == "outcome" and any(event[2:4])
    ]
    assert finals and all(final == [True, False, False, True, True] for final in finals)


def stranger(env, obs):
    env.agents.append("z")
    obs["z"] = env.seen


def broken(env, obs):
    raise RuntimeError("no step")


INFINITE = np.full(4, np.inf, np.float32)
NAMED = ": ValueError: agent: expected one of the agents named at first, ['a', 'b', 'c'], got"
AMONG_SEVERAL: dict[str, tuple[Any, str]] = {  # by case: what happens in the second round, and what is said
    "stranger": (stranger, NAMED),
    "inf": (lambda env, obs: obs.update(b=INFINITE), ", b: obs: expected finite numbers, got inf in"),
    "missing": (lambda env, obs: obs.pop("b"), ", b: obs: expected an observation, got observations of ['a', 'c']"),
    "raise": (broken, ": RuntimeError: no step"),
}


@pytest.mark.parametrize("wrong", AMONG_SEVERAL)
@FORM
def test_a_wrong_value_among_several_agents(form, wrong):
    change, says = AMONG_SEVERAL[wrong]
    changed = Changed(lambda env, obs, *_: change(env, obs) if env.seen[0] == 2 else None)
    copies = iter([Relay(), changed, Relay()])
    env = vectorize(lambda: FORMS[form][0](next(copies)), 3)
    if form == "aec" and wrong in ("stranger", "missing"):  # PettingZoo's conversion fails, in its own words
        with pytest.raises(EnvironmentFailed, match=r"^environment copy 1, [bc]: "):
            list(rounds(env, 12))
        return
    says = f"environment copy 1{', b' * (form == 'aec' and wrong == 'raise')}{says}"
    check_refused(lambda: list(rounds(env, 12)), EnvironmentFailed, says)


class Deserted(Relay):
    """Nobody is there."""

    def reset(self, seed=None, options=None):
        super().reset(seed)
        self.agents = []
        return {}, {}


@pytest.mark.parametrize("make", [Deserted, lambda: ParallelEnvironment(Deserted())])
def test_an_environment_in_which_no_agent_ever_acts_is_named(make):
    says = "environment copy 0: RuntimeError: expected an agent that acts, got 1000 episodes without one"
    env = vectorize(make, 2)
    assert [len([*rounds(env, 1000)]) for _ in range(2)] == [1000, 1000], "a reset forgets them"
    check_refused(lambda: list(rounds(env, 1001)), EnvironmentFailed, says)


@FORM
def test_actions_of_another_shape_or_dtype_are_the_callers_error(form):
    env = vectorize(lambda: FORMS[form][0](Relay()), 2)
    env.reset(0)
    turn = env.observe()[1][0]
    says = "action: expected int64 (2,), got "
    check_refused(lambda: env.act(turn, np.zeros(3, np.int64)), ValueError, f"{says}shape (3,)")
    check_refused(lambda: env.act(turn, np.zeros(2)), TypeError, f"{says}dtype float64")


def test_agents_keep_their_environments_order():
    """That of its spaces may be another, and infos that may hold masks are looked at in that order."""
    env = checked.CheckedEnvironment()
    env.agents = env.agents[::-1]
    assert tuple(vectorize(lambda: env, 1).agents) == ("agent_1", "agent_0")
