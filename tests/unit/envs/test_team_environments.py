"""Teams as agents, and joint observations beside agents' own: what is in them, and which environments have none."""

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
from crowd import Relay, Script
from gymnasium import spaces as gym
from refused import Refused, refusals

import marlcore as mc
from marlcore.algos.networks.teams import TeamSpaces
from marlcore.config import teams_of
from marlcore.envs import NamedEnvironment, joint, vectorize
from marlcore.envs import team as team_envs
from marlcore.observations import ALONE
from marlcore.spaces import ALIVE, JOINT, MASK

TWO, IMAGE = gym.Box(-99, 99, (2,), np.float32), gym.Box(0, 255, (2, 3), np.uint8)
FOUND = gym.Dict({"place": gym.Discrete(3, start=1), "speed": gym.Box(0, 99, (1,), np.float64)})
MASKED = gym.Dict({ALONE: TWO, MASK: gym.MultiBinary(3)})
CHOICE = gym.Discrete(3)
ALL = (TWO, CHOICE)


def made(spaces, rounds=(), teams=None, **options):
    """The environment, in which all agents are the team "team"."""
    return team_envs.TeamEnvironment(Script(spaces, rounds, **options), teams or {"team": tuple(spaces)})


def waiting(env):
    """An action of each agent that is there: the first one."""
    return {agent: np.zeros(env.action_space(agent).shape, env.action_space(agent).dtype) for agent in env.agents}


def test_members_with_equal_spaces_form_a_group():
    """The order of the groups is that of the observation, of "alive" and of the action."""
    one = gym.Box(-99, 99, (1,), np.float64), CHOICE
    env = made({"a": ALL, "b": one, "c": ALL})
    observed, _ = env.reset()
    assert env.observation_space("team").contains(observed["team"])
    np.testing.assert_array_equal(observed["team"]["members_0"], np.float32([[0, 0], [20, 20]]))
    np.testing.assert_array_equal(observed["team"]["members_1"], [[10.0]])
    assert observed["team"]["members_1"].dtype == np.float64 and observed["team"][ALIVE].tolist() == [1, 1, 1]
    env.step({"team": np.array([0, 1, 2])})
    assert env.acted == [{"a": 0, "b": 2, "c": 1}]


def test_members_that_act_alike_but_see_otherwise_are_apart():
    env = made({"a": ALL, "b": (TWO, gym.Discrete(4)), "c": (MASKED, CHOICE)})
    space = env.observation_space("team")[ALONE]
    assert [space[part].shape for part in ("members_0", "members_1")] == [(2, 2), (1, 2)], "a mask is no difference"
    assert env.action_space("team") == gym.MultiDiscrete([3, 3, 4])


def test_more_than_ten_groups_keep_their_order():
    """By their numbers: as texts, "members_10" would come before "members_2"."""
    agents = {f"agent_{i}": (gym.Box(-99, 999, (1 + i,), np.float32), gym.Discrete(2 + i)) for i in range(12)}
    vector = vectorize(team_envs.Teams(partial(Script, agents), {"team": tuple(agents)}), 1)
    team = TeamSpaces("QMIX", vector.spaces["team"])
    vector.close()
    assert [group.spaces.observation.shape[0] for group in team.groups] == [*range(1, 13)]
    assert team.choices == [*range(2, 14)]


def test_masks_are_those_of_the_members_one_after_another():
    """A member without one may do all, and one that is not there its first action."""
    rounds = [{}, {"terminated": "b"}, {"there": "ac"}]
    env = made({"a": ALL, "b": (MASKED, CHOICE), "c": (MASKED, CHOICE)}, rounds)
    observed, _ = env.reset()
    assert observed["team"][MASK].tolist() == [1, 1, 1, 0, 1, 1, 0, 1, 1]
    observed, *_ = env.step(waiting(env))
    assert observed["team"][MASK].tolist() == [1, 1, 1, 1, 0, 0, 1, 0, 1]
    vector = vectorize(team_envs.Teams(partial(Script, env.spaces), {"team": ("a", "b", "c")}), 2)
    vector.reset(0)
    (turn,) = vector.observe()[1]
    assert vector.spaces["team"].masked and turn.obs[MASK].tolist() == [[True] * 3 + [False, True, True] * 2] * 2
    vector.close()


def test_members_die_and_come_later():
    """Those that are not there observe zeros; the team earns what all earn, and lives until its last member ends."""
    env = team_envs.TeamEnvironment(Relay(), {"team": ("a", "b", "c")})
    observed, _ = env.reset()
    alive, rewards = [observed["team"][ALIVE].tolist()], []
    for _ in range(5):
        observed, reward, terminated, truncated, _ = env.step({"team": np.array([1, 1, -1])})
        alive.append(observed["team"][ALIVE].tolist())
        rewards.append(reward["team"])
        there = observed["team"]["members"].any(axis=1)
        assert there.tolist() == [len(alive) <= 4, True, len(alive) > 2], "a dead member's last observation is there"
    assert alive == [[1, 1, 0], [1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 1, 1], [0, 1, 1]], "cut members still count"
    assert rewards == [2, 2, 1, 0, 0] and env.agents == []
    assert (terminated, truncated) == ({"team": False}, {"team": True})


ENDS = {  # by name: rounds, whether the team's end was a truncation, and who is alive in its last observation
    "all terminate": ([{}, {"terminated": "ab"}], False, [0, 0]),
    "all are truncated": ([{}, {"truncated": "ab"}], True, [1, 1]),
    "one of each": ([{}, {"terminated": "a", "truncated": "b"}], True, [0, 1]),
    "both at once": ([{}, {"terminated": "ab", "truncated": "b"}], False, [0, 0]),
    "the last one terminates": ([{}, {"truncated": "a"}, {"there": "b", "terminated": "b"}], False, [0, 0]),
    "flags of the dead": ([{}, {"truncated": "a"}, {"there": "b", "terminated": "b", "truncated": "a"}], False, [0, 0]),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_team_ends_with_its_last_member(case):
    rounds, cut, alive = ENDS[case]
    env = made({"a": ALL, "b": ALL}, rounds)
    env.reset()
    for number in range(1, len(rounds)):
        assert env.agents == ["team"]
        observed, reward, terminated, truncated, _ = env.step(waiting(env))
        assert terminated["team"] == (number + 1 == len(rounds) and not cut)
    assert env.agents == [] and truncated["team"] == cut
    assert observed["team"][ALIVE].tolist() == alive and reward["team"] == (3 if len(rounds) == 2 else 2)


class Unpruned(Script):
    """Lists all agents in each round, tells of all what they see, and of all that have ended that they have."""

    def reset(self, seed=None, options=None):
        self.over = {"terminated": {}, "truncated": {}}
        _, infos = super().reset(seed, options)
        return self.observe(self.possible_agents), infos

    def step(self, actions):
        self.agents = list(actions)
        _, rewards, terminated, truncated, infos = super().step(actions)
        self.over["terminated"] |= terminated
        self.over["truncated"] |= truncated
        self.agents = list(self.possible_agents)
        return (
            self.observe(self.possible_agents),
            rewards,
            dict(self.over["terminated"]),
            dict(self.over["truncated"]),
            infos,
        )


def test_ends_count_once_where_an_environment_repeats_them():
    rounds = [{}, {}, {"truncated": "a"}, {}, {"terminated": "b"}]
    env = team_envs.TeamEnvironment(Unpruned({"a": ALL, "b": ALL}, rounds), {"team": ("a", "b")})
    env.reset()
    for number in range(1, 5):
        observed, _, terminated, truncated, _ = env.step(waiting(env))
        alive = [[1, 1], [0, 1], [0, 1], [0, 0]][number - 1]
        assert observed["team"][ALIVE].tolist() == alive and list(env._env.acted[-1]) == (
            ["a", "b"] if number < 3 else ["b"]
        )
        assert observed["team"]["members"].any(axis=1).tolist() == [number < 3, True]
    assert (terminated, truncated) == ({"team": True}, {"team": False})


def test_a_team_that_leaves_without_an_end_has_none():
    env = made({"a": ALL, "b": ALL, "c": ALL}, [{}, {"there": "c"}, {"there": "abc"}], {"team": ("a", "b")})
    env.reset()
    _, rewards, *_ = env.step(waiting(env))
    assert env.agents == ["c"] and rewards == {"team": 1.0 + 2.0, "c": 3.0}
    observed, rewards, *ends, _ = env.step(waiting(env))
    assert env.agents == ["team", "c"] and observed["team"][ALIVE].tolist() == [1, 1]
    assert rewards["team"] == 0.0 and ends == [{"team": False}] * 2, "it came back and has not acted"


def test_a_runs_rows_are_what_the_environment_told():
    """Two copies of `Relay`, whose actions begin at -1, by the vector environment that actors use."""
    vector = vectorize(team_envs.Teams(Relay, {"team": ("a", "b", "c")}), 2)
    vector.reset(0)
    earned, by_member = np.zeros(2), np.zeros((2, 3))
    for step in range(10):
        outcomes, (turn,) = vector.observe()
        for outcome in outcomes:
            earned += outcome.reward
            by_member += outcome.member_rewards
            ends = step == 5
            assert outcome.truncated.tolist() == [ends] * 2 and not outcome.terminated.any()
            assert not ends or outcome.final_obs["alive"].tolist() == [[0, 1, 1]] * 2
        assert turn.begins.all() == (step in (0, 5))
        vector.act(turn, np.array([[2, 2, 2]] * 2))
    assert earned.tolist() == [2 + 2 + 3 + 2 + 2 + 2 + 2 + 3 + 2] * 2 and vector.episodes == 2
    assert by_member.tolist() == [[3 + 3, 5 + 4, 3 + 2]] * 2
    vector.close()


def test_box_actions_of_several_shapes_are_joined():
    """Each member gets its own, in its shape and dtype."""
    square = gym.Box(np.zeros((2, 2), np.float32), np.arange(1, 5, dtype=np.float32).reshape(2, 2))
    env = made({"a": (TWO, square), "b": (TWO, gym.Box(-1, 1, (1,), np.float64))})
    space = env.action_space("team")
    assert space.low.tolist() == [0, 0, 0, 0, -1] and space.high.tolist() == [1, 2, 3, 4, 1]
    env.reset()
    env.step({"team": np.array([0.5, 1, 1.5, 2, -0.25], space.dtype)})
    assert env.acted[0]["a"].tolist() == [[0.5, 1], [1.5, 2]] and env.acted[0]["b"].tolist() == [-0.25]


def test_images_stay_and_other_spaces_are_flattened():
    env = made({"a": (IMAGE, CHOICE), "b": (FOUND, CHOICE), "c": (gym.Discrete(4), CHOICE)})
    observed = env.reset()[0]["team"]
    assert env.observation_space("team").contains(observed)
    assert observed["members_0"].dtype == np.uint8 and observed["members_0"].shape == (1, 2, 3)
    assert observed["members_1"].tolist() == [[0, 1, 0, 10]], "place 2 of 1 to 3, and the speed"
    assert observed["members_2"].tolist() == [[0, 0, 1, 0]]


def test_a_state_passes_to_the_joint_observation(monkeypatch):
    monkeypatch.setattr(Script, "state_space", gym.Box(0, 9, (1,), np.float32), raising=False)
    spaces = {"a": (MASKED, CHOICE), "b": ALL}
    vector = vectorize(
        joint.JointObservations(team_envs.Teams(partial(Script, spaces), {"team": ("a", "b")}), ("team",)), 1
    )
    vector.reset(0)
    for step in range(3):
        (turn,) = vector.observe()[1]
        assert turn.obs[JOINT].tolist() == [[step]] and TeamSpaces("QMIX", vector.spaces["team"]).state_size == 1
        vector.act(turn, np.array([[2, 2]]))
    vector.close()


def test_agents_outside_of_teams_stay_as_they_are():
    rounds = [{"there": "abc"}, {"terminated": "b"}, {"there": "ac", "truncated": "c"}, {"there": "a"}]
    env = made({"a": ALL, "b": (MASKED, CHOICE), "c": ALL}, rounds, {"pair": ("a", "c")}, infos={"tag": "x"})
    assert env.possible_agents == ["pair", "b"] and env.action_space("b") == CHOICE
    observed, infos = env.reset()
    assert observed["b"].keys() == {ALONE, MASK} and infos == {"pair": {"tag": "x"}, "b": {"tag": "x"}}
    _, rewards, terminated, *_ = env.step({"pair": np.array([1, 2]), "b": 1})
    assert env.acted == [{"a": 1, "b": 1, "c": 2}] and rewards == {"pair": 4, "b": 2}
    assert terminated == {"pair": False, "b": True} and env.agents == ["pair"]
    observed, _, _, truncated, _ = env.step({"pair": np.array([0, 0])})
    assert observed.keys() == {"pair"} and observed["pair"][ALIVE].tolist() == [1, 0] and not truncated["pair"]


@pytest.mark.parametrize("kind", ["pettingzoo", "pettingzoo-parallel"])
def test_a_real_environment_plays_on(kind):
    """One of turns, too, if its agents could act at once."""
    make = team_envs.Teams(
        NamedEnvironment(f"{kind}:mpe2.simple_spread_v3"), {"team": ("agent_0", "agent_1", "agent_2")}
    )
    vector = vectorize(pickle.loads(pickle.dumps(make)), 2)
    vector.reset(0)
    for _ in range(60):
        (turn,) = vector.observe()[1]
        assert turn.obs["members"].shape == (2, 3, 18) and turn.obs["alive"].all()
        vector.act(turn, np.ones((2, 3), np.int64))
    assert vector.episodes == 4
    vector.close()


def kept(**told: Any) -> Any:
    """An environment of two agents that tells something else at its second step."""
    env = made({"a": ALL, "b": ALL})
    env.reset()
    step = env._env.step

    def other(actions):
        names = "observations", "rewards", "terminated", "truncated", "infos"
        return tuple({**dict(zip(names, step(actions), strict=True)), **told}.values())

    env._env.step = other
    return env.step(waiting(env))


def values_of_moves() -> None:
    team = vectorize(team_envs.Teams(partial(Script, {"a": BOX}), {"t": ("a",)}), 1).spaces["t"]
    mc.VDN().transition(team)


BOX = TWO, gym.Box(-1, 1, (1,))
TWICE = gym.Dict({ALONE: TWO, MASK: gym.MultiBinary(2)}), CHOICE
AT_ONCE = "teams: expected a PettingZoo environment whose agents act at once, such as"
IN_INFOS = {"a": {}, "b": {MASK: np.ones(3)}}
SHORT, LONG = {"a": np.zeros(2, np.float32)}, dict.fromkeys("ab", np.zeros(3, np.float32))
REFUSED: dict[str, Refused] = {
    "mixed actions": (lambda: made({"a": ALL, "b": BOX}), "team team: expected only Discrete actions, or"),
    "bits": (lambda: made({"a": (TWO, gym.MultiBinary(2))}), "team team: expected only Discrete actions, or"),
    "a mask in an info": (lambda: kept(infos=IN_INFOS), "action_mask: expected masks in the observations of a team's"),
    "no observation": (lambda: kept(observations=SHORT), "obs of b: expected an observation, got obs of ['a']"),
    "another shape": (lambda: kept(observations=LONG), "obs of a: expected float32 (2,), got shape (3,)"),
    "no number": (lambda: kept(rewards={"a": "1"}), TypeError, "reward: expected a number, got '1'"),
    "another mask": (lambda: made({"a": TWICE}).reset(), "action_mask of a: expected int8 (3,), got shape (2,)"),
    "turns": (team_envs.Teams(NamedEnvironment("pettingzoo:classic.tictactoe_v3"), {"team": ("player_1",)}), AT_ONCE),
    "unknown": (lambda: teams_of(["ant", "bee"], {"aint": "x"}), "of the environment, ['ant', 'bee'], got 'aint'"),
    "another's name": (lambda: teams_of(["a", "b"], {"a": "b"}), "teams: expected names that no other agent has, got"),
    "no name": (lambda: teams_of(["a"], {"a": None}), TypeError, "teams: expected the name of a team for a, got None"),
    "a list": (lambda: teams_of(["a"], ["a"]), TypeError, "teams: expected the team of each member, got ['a']"),
    "values of continuous actions": (values_of_moves, "VDN: expected Discrete actions of a team's members, got Box"),
}
test_it_is_refused_in_one_line = refusals(REFUSED)


def test_all_agents_are_one_team_by_default():
    assert teams_of(["a", "b"], None) == {"team": ("a", "b")}
    assert teams_of(["a", "b", "c"], {"c": "x", "a": "x"}) == {"x": ("a", "c")}, "members in the environment's order"
    assert teams_of(["a1", "b1", "a2"], lambda agent: agent[0]) == {"a": ("a1", "a2"), "b": ("b1",)}


PLACED = gym.Dict({"place": gym.Discrete(3), MASK: gym.MultiBinary(2)})
BOTH = {"a": (TWO, gym.Discrete(2)), "b": (PLACED, gym.Discrete(2))}
Pair = partial(Script, BOTH, [{}, {}, {"terminated": "b"}, {}, {"terminated": "a"}])


class Stated(Script):
    state_space = gym.Box(0, 99, (1, 3), np.int64)

    def state(self):
        return np.full((1, 3), self.round)


def test_the_joint_observation_is_all_agents_one_after_another():
    env = joint.JointEnvironment(Pair(), ("a", "b"))
    observations, _ = env.reset()
    size = env.observation_space("a")[JOINT].shape[0]
    assert size == 2 + 3 + 2, "two numbers, one of three places, a mask of two"
    np.testing.assert_array_equal(observations["a"][JOINT][:2], observations["a"][ALONE])
    for step in range(1, 5):
        observations, *_ = env.step(dict.fromkeys(env.agents, 0))
        joined = observations["a"][JOINT]
        assert joined.dtype == np.float32 and env.observation_space("a").contains(observations["a"])
        of_b = [*np.eye(3)[(1 + step) % 3], step % 2, 1 - step % 2] if step <= 2 else [0] * 5
        assert sorted(joined.tolist()) == sorted([step, step, *of_b])


class Watching(Script):
    """Tells all agents what they see, those too that have left."""

    def step(self, actions):
        _, *others = super().step(actions)
        return self.observe(self.possible_agents), *others


def test_who_has_left_is_zero_in_the_joint_observation():
    env = joint.JointEnvironment(Watching({"a": ALL, "b": ALL}, [{}, {"terminated": "a"}, {"there": "b"}]), ("a", "b"))
    env.reset()
    seen = [env.step(waiting(env))[0]["b"][JOINT].tolist() for _ in range(2)]
    assert seen == [[1, 1, 11, 11], [0, 0, 12, 12]]


def test_masks_stay_where_they_are():
    env = joint.JointEnvironment(Pair(), ("b",))
    assert env.observation_space("a") == TWO, "only those agents that were named get one"
    observations, _ = env.reset()
    assert observations["b"].keys() == {ALONE, MASK} and observations["b"][ALONE].keys() == {ALONE, JOINT}
    assert env.observation_space("b").contains(observations["b"])
    vector = vectorize(pickle.loads(pickle.dumps(joint.JointObservations(Pair, ("b",)))), 2)
    parts = [part.name for part in vector.spaces["b"].parts]
    assert vector.spaces["b"].masked and parts == ["joint_observation", "observation__place"]
    vector.close()


def test_an_environments_state_is_its_joint_observation(monkeypatch):
    env = joint.JointEnvironment(Stated(BOTH), ("a",))
    for step in range(2):
        observations = env.step({"a": 0, "b": 0})[0] if step else env.reset()[0]
        np.testing.assert_array_equal(observations["a"][JOINT], np.full(3, step, np.float32))
    monkeypatch.setattr(Stated, "state", lambda self: np.full((1, 3), 1e39))
    with pytest.raises(ValueError, match=r"^state\(\): expected values in float32's range, got 1e\+39$"):
        env.reset()
