"""Joint observations beside agents' own: what is in them, where masks stay, and which environments have none."""

import pickle
from functools import partial

import numpy as np
import pytest
from crowd import Script
from gymnasium import spaces as gym

from marlcore.envs import NamedEnvironment, vectorize
from marlcore.envs import joint as joint_envs
from marlcore.observations import ALONE
from marlcore.spaces import JOINT, MASK

OWN = gym.Box(-9, 9, (2,), np.float32)


MASKED = gym.Dict({"place": gym.Discrete(3), MASK: gym.MultiBinary(2)})
SPACES = {"a": (OWN, gym.Discrete(2)), "b": (MASKED, gym.Discrete(2))}
Pair = partial(Script, SPACES, [{}, {}, {"terminated": "b"}, {}, {"terminated": "a"}])


class Stated(Script):
    state_space = gym.Box(0, 99, (1, 3), np.int64)

    def state(self):
        return np.full((1, 3), self.round)


def test_the_joint_observation_is_all_agents_one_after_another():
    env = joint_envs.JointEnvironment(Pair(), ("a", "b"))
    observations, _ = env.reset()
    size = env.observation_space("a")[JOINT].shape[0]
    assert size == 2 + 3 + 2, "two numbers, one of three places, a mask of two"
    np.testing.assert_array_equal(observations["a"][JOINT][:2], observations["a"][ALONE])
    for step in range(1, 5):
        observations, *_ = env.step(dict.fromkeys(env.agents, 0))
        joint = observations["a"][JOINT]
        assert joint.dtype == np.float32 and env.observation_space("a").contains(observations["a"])
        of_b = [*np.eye(3)[(1 + step) % 3], step % 2, 1 - step % 2] if step <= 2 else [0] * 5
        assert sorted(joint.tolist()) == sorted([step, step, *of_b])


def test_masks_stay_where_they_are():
    env = joint_envs.JointEnvironment(Pair(), ("b",))
    assert env.observation_space("a") == OWN, "only those agents that were named get one"
    observations, _ = env.reset()
    assert observations["b"].keys() == {ALONE, MASK} and observations["b"][ALONE].keys() == {ALONE, JOINT}
    assert env.observation_space("b").contains(observations["b"])
    vector = vectorize(pickle.loads(pickle.dumps(joint_envs.JointObservations(Pair, ("b",)))), 2)
    parts = [part.name for part in vector.spaces["b"].parts]
    assert vector.spaces["b"].masked and parts == ["joint_observation", "observation__place"]
    vector.close()


def test_an_environments_state_is_its_joint_observation(monkeypatch):
    env = joint_envs.JointEnvironment(Stated(SPACES), ("a",))
    for step in range(2):
        observations = env.step({"a": 0, "b": 0})[0] if step else env.reset()[0]
        np.testing.assert_array_equal(observations["a"][JOINT], np.full(3, step, np.float32))
    monkeypatch.setattr(Stated, "state", lambda self: np.full((1, 3), 1e39))
    with pytest.raises(ValueError, match=r"^state\(\): expected values in float32's range, got 1e\+39$"):
        env.reset()


def test_other_environments_are_refused_in_one_line():
    for name in ("gymnasium:CartPole-v1", "treasure_hunt", "pettingzoo:mpe2.simple_spread_v3"):
        with pytest.raises(ValueError, match=r"^joint observations: expected a PettingZoo Parallel environment[^\n]+$"):
            joint_envs.JointObservations(NamedEnvironment(name), ("a",))()
