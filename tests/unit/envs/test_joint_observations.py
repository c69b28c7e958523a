"""Joint observations beside agents' own: what is in them, where masks stay, and which environments have none."""

import pickle

import numpy as np
import pytest
from gymnasium import spaces as gym

from marlcore.envs import NamedEnvironment, vectorize
from marlcore.envs.joint import JointEnvironment, JointObservations
from marlcore.observations import ALONE
from marlcore.spaces import JOINT, MASK

OWN = gym.Box(-9, 9, (2,), np.float32)


class Pair:
    """Two agents whose observations are numbers of their own; "b" leaves in the second step, and has a mask."""

    possible_agents = ("a", "b")

    def __init__(self):
        self.agents: list[str] = []

    def observation_space(self, agent):
        masked = {"place": gym.Discrete(3), MASK: gym.Box(0, 1, (2,), np.int8)}
        return OWN if agent == "a" else gym.Dict(masked)

    def action_space(self, agent):
        return gym.Discrete(2)

    def observe(self):
        return {
            "a": np.array([self.steps, -self.steps], np.float32),
            "b": {"place": self.steps % 3, MASK: np.array([1, self.steps % 2], np.int8)},
        }

    def reset(self, seed=None, options=None):
        self.agents, self.steps = ["a", "b"], 0
        return self.observe(), {"a": {}, "b": {}}

    def step(self, actions):
        self.steps += 1
        acted = list(actions)
        ended = {agent: (agent == "b" and self.steps == 2) or self.steps == 4 for agent in acted}
        self.agents = [agent for agent in acted if not ended[agent]]
        each = {agent: self.observe()[agent] for agent in acted}
        zeros = dict.fromkeys(acted, 0.0)
        return each, zeros, ended, dict.fromkeys(acted, False), {agent: {} for agent in acted}

    def close(self):
        """Holds nothing."""


class Stated(Pair):
    state_space = gym.Box(0, 99, (1, 3), np.int64)

    def state(self):
        return np.full((1, 3), self.steps)


def test_the_joint_observation_is_all_agents_one_after_another():
    env = JointEnvironment(Pair(), ("a", "b"))
    observations, _ = env.reset()
    size = env.observation_space("a")[JOINT].shape[0]
    assert size == 2 + 3 + 2, "two numbers, one of three places, a mask of two"
    np.testing.assert_array_equal(observations["a"][JOINT][:2], observations["a"][ALONE])
    for _ in range(4):
        observations, *_ = env.step(dict.fromkeys(env.agents, 0))
        joint = observations["a"][JOINT]
        assert joint.dtype == np.float32 and env.observation_space("a").contains(observations["a"])
        place = np.eye(3)[env.steps % 3] if "b" in observations else np.zeros(3)
        assert sorted(joint.tolist()) == sorted(
            [env.steps, -env.steps, *place, *([1, env.steps % 2] if "b" in observations else [0, 0])]
        )


def test_a_state_beyond_float32_is_named(monkeypatch):
    monkeypatch.setattr(Stated, "state", lambda self: np.full((1, 3), 1e39))
    with pytest.raises(ValueError, match=r"^state\(\): expected values in float32's range, got 1e\+39$"):
        JointEnvironment(Stated(), ("a",)).reset()


def test_masks_stay_where_they_are():
    env = JointEnvironment(Pair(), ("b",))
    assert env.observation_space("a") == OWN, "only those agents that were named get one"
    observations, _ = env.reset()
    assert observations["b"].keys() == {ALONE, MASK} and observations["b"][ALONE].keys() == {ALONE, JOINT}
    assert env.observation_space("b").contains(observations["b"])
    vector = vectorize(pickle.loads(pickle.dumps(JointObservations(Pair, ("b",)))), 2)
    parts = [part.name for part in vector.spaces["b"].parts]
    assert vector.spaces["b"].masked and parts == ["joint_observation", "observation__place"]
    vector.close()


def test_an_environments_state_is_its_joint_observation():
    env = JointEnvironment(Stated(), ("a",))
    observations, _ = env.reset()
    np.testing.assert_array_equal(observations["a"][JOINT], np.zeros(3, np.float32))
    observations, *_ = env.step({"a": 0, "b": 0})
    np.testing.assert_array_equal(observations["a"][JOINT], np.ones(3, np.float32))


def test_other_environments_are_refused_in_one_line():
    for name in ("gymnasium:CartPole-v1", "treasure_hunt", "pettingzoo:mpe2.simple_spread_v3"):
        with pytest.raises(ValueError, match=r"^joint observations: expected a PettingZoo Parallel environment[^\n]+$"):
            JointObservations(NamedEnvironment(name), ("a",))()
