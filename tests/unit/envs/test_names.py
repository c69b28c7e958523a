"""Names of environments, and the spaces and kinds that are refused in one line."""

import pickle
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium
import gymnasium.wrappers
import numpy as np
import pytest
from crowd import Relay
from gymnasium import spaces as gym
from pettingzoo.utils import parallel_to_aec
from random_play import assert_same, child_seeds, play, single
from refused import Refused, refusals

from marlcore import algos, envs
from marlcore.errors import EnvironmentFailed
from marlcore.spec import Field


class Lone(gymnasium.Env[Any, Any]):
    """An environment of which only the spaces matter."""

    def __init__(self, observation, action):
        self.observation_space, self.action_space = observation, action


class Closing(Relay):
    """Relay with other parts, which knows whether it was closed."""

    closed = False

    def __init__(self, **parts):
        vars(self).update(parts)

    def close(self):
        self.closed = True


UNKNOWN = (
    "tresure_hunt", "", "gymnasium:", "gymnasium:NoSuch-v1", "gymnasium:CartPole-v99", "gymnasium:not an id",
    "pettingzoo:", "pettingzoo:no_such_package.env_v0", "pettingzoo:mpe2.no_such_v0", "pettingzoo:.relative",
    "pettingzoo:mpe2", "pettingzoo-parallel:classic.tictactoe_v3", "vizdoom:basic",
)  # fmt: skip
BOX, DISCRETE = gym.Box(0, 1, (2,)), gym.Discrete(3)
KINDS = "a Box, Discrete, MultiBinary, MultiDiscrete, or a Dict or Tuple of these"
NESTED = gym.Dict({"a": BOX, "b": gym.Tuple([gym.Graph(BOX, None)])})
MASKED = gym.Dict({"observation": BOX, "action_mask": gym.MultiBinary(4)})
TWINS = gym.Dict({"a": gym.Dict({"b": BOX}), "a__b": BOX})
SPACES = [
    (gym.Text(5), DISCRETE, f"observation space: expected {KINDS}, got Text("),
    (NESTED, DISCRETE, f"observation space['b'][0]: expected {KINDS}, got Graph("),
    (BOX, gym.Dict({"a": DISCRETE}), "action space: expected a Box, Discrete, MultiBinary or MultiDiscrete, got D"),
    (BOX, gym.Sequence(DISCRETE), f"action space: expected {KINDS}, got Sequence("),
    (MASKED, DISCRETE, "action_mask: expected 3 values"),
    (TWINS, DISCRETE, "observation space: expected parts with different names"),
    (gym.MultiDiscrete([[2, 2]]), DISCRETE, "observation space: expected a MultiDiscrete with one axis"),
    (MASKED, BOX, f"action_mask: expected none for the action space {BOX}"),
    (MASKED, gym.MultiBinary(4), "action_mask: expected none for the action space MultiBinary(4)"),
]
A_FUNCTION = "env_fn: expected a function that makes an environment, such as "
NUMBERED = partial(Closing, possible_agents=[0, 1])
NO_WRAPPER = partial(envs.make, "gymnasium:CartPole-v1", wrappers=["no_such:wrapper"])
REFUSED: dict[str, Refused] = {
    **{f"{spaces}": (lambda spaces=spaces: envs.adapt(Lone(*spaces)), f"agent_0: {says}") for *spaces, says in SPACES},
    "misspelt environment": (partial(envs.make, "treasure_hutn"), "got 'treasure_hutn'; did you mean treasure_h"),
    "misspelt algorithm": (partial(algos.find, "IQNN"), "got 'IQNN'; did you mean iqn?"),
    "wrapper": (NO_WRAPPER, "wrappers: expected something that can be imported, got 'no_such:wrapper'"),
    "a Parallel": (lambda: envs.AECEnvironment(Relay()), "AECEnvironment: expected a PettingZoo AEC environment, got "),
    "an AEC": (
        lambda: envs.ParallelEnvironment(parallel_to_aec(Relay())),
        "expected a PettingZoo Parallel environment",
    ),
    "an AEC for joint observations": (
        partial(envs.JointObservations(parallel_to_aec, ("a",)).around, parallel_to_aec(Relay())),
        "such as pettingzoo-parallel:mpe2.simple_spread_v3, got an AEC environment",
    ),
    "agents without names": (partial(envs.vectorize, NUMBERED, 1), ": expected a list of names, got [0, 1]"),
    "no copies": (partial(envs.vectorize, Relay, 0), "copies: expected an integer of at least 1, got 0"),
    "a number": (partial(envs.factory, 5), TypeError, f"{A_FUNCTION}lambda: gymnasium.make('CartPole-v1'), or a name"),
    "a Relay": (lambda: envs.factory(Relay()), TypeError, "such as 'gymnasium:CartPole-v1', got an environment, Relay"),
}
test_refuses = refusals(REFUSED)


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_name_is_answered_in_one_line(name):
    with pytest.raises(ValueError) as error:
        envs.make(name)
    message = str(error.value)
    assert message.startswith("environment: expected ") and f"got {name!r}" in message and "\n" not in message
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__ or error.value.__context__ is None


def halved(env):
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward / 2)


def cut(env):
    return gymnasium.wrappers.TimeLimit(env, 3)


def test_wrappers_are_applied_in_their_order():
    named = envs.NamedEnvironment("gymnasium:CartPole-v1", wrappers=[f"{__name__}:halved", f"{__name__}:cut"])
    for env in (named(), pickle.loads(pickle.dumps(named))()):
        assert isinstance(env, gymnasium.wrappers.TimeLimit)
        assert isinstance(env.env, gymnasium.wrappers.TransformReward)
    env = envs.vectorize(named, 2)
    assert isinstance(env, envs.Copies), "CartPole's vector form would be without the wrappers"
    events, _ = play(env, 2)
    assert [events[copy, "agent_0"][1][1] for copy in range(2)] == [0.5, 0.5]
    assert isinstance(envs.make("treasure_hunt", wrappers=[f"{__name__}:same"]), envs.TreasureHunt)


def same(env):
    return env


@pytest.mark.long
@pytest.mark.parametrize("name", ["atari:Pong", "gymnasium:ALE/Pong-v5"])
def test_atari_games_come_preprocessed(name):
    pytest.importorskip("ale_py", reason="needs ale-py")
    pytest.importorskip("cv2", reason="needs opencv-python")
    env = envs.vectorize(envs.NamedEnvironment(name, {"full_action_space": True}), 1)
    assert isinstance(env, envs.Copies)
    assert env.spaces["agent_0"].obs == Field((84, 84), "uint8")
    assert env.spaces["agent_0"].choices == 18
    events, actions = play(env, 10)
    env.close()
    raw = gymnasium.make("ALE/Pong-v5", frameskip=1, full_action_space=True)
    assert raw.unwrapped.ale.getFloat("repeat_action_probability") == 0.25
    raw = gymnasium.wrappers.AtariPreprocessing(raw)
    assert_same(events[0, "agent_0"], single(raw, child_seeds(5, 1)[0], actions[0, "agent_0"], masked=False))
    raw.close()


def test_a_missing_emulator_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    for id in [id for id in gymnasium.registry if id.startswith("ALE/")]:
        monkeypatch.delitem(gymnasium.registry, id)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"comes with ale-py; try: pip install 'marlcore\[atari\]'$"):
        envs.make("atari:Pong")


EXTRA = "a package that it needs is not installed; try: pip install 'marlcore[{}]'"


@pytest.mark.parametrize(
    ("name", "reason", "says"),
    [
        ("gymnasium:LunarLander-v3", "Box2D is not installed, run `pip install swig`", EXTRA.format("box2d")),
        ("gymnasium:HalfCheetah-v5", "MuJoCo is not installed, run `pip install mujoco`", EXTRA.format("mujoco")),
        ("gymnasium:ALE/Pong-v5", "opencv-python package not installed", EXTRA.format("atari")),
        ("gymnasium:CartPole-v1", "pygame is not installed,\nrun `pip install pygame`",
         "pygame is not installed, run `pip install pygame`"),
    ],
)  # fmt: skip
def test_a_missing_package_names_the_extra_that_brings_it(monkeypatch, name, reason, says):
    monkeypatch.setattr(gymnasium, "make", Mock(side_effect=gymnasium.error.DependencyNotInstalled(reason)))
    with pytest.raises(ImportError) as caught:
        envs.make(name)
    assert str(caught.value) == f"environment: {name!r}: {says}"


def test_a_missing_pettingzoo_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ImportError, match=r"^environment: 'pettingzoo:nowhere_v1' comes .*'marlcore\[envs\]'$"):
        envs.make("pettingzoo:nowhere_v1")


def test_each_extra_that_is_named_exists():
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in ("atari", "box2d", "envs", "mujoco"))


def test_texts_are_left_out_of_observations():
    """MiniGrid tells its mission in words."""
    space = gym.Dict({"image": BOX, "mission": Mission(dtype=str), "more": gym.Tuple([gym.Text(3), DISCRETE])})
    env = envs.vectorize(lambda: Talking(space, DISCRETE), 2)
    spaces = env.spaces["agent_0"]
    assert list(spaces.obs) == ["image", "more__1"] and spaces.left_out == ("mission", "more__0")
    env.reset(0)
    _, [turn] = env.observe()
    assert {name: len(rows) for name, rows in turn.obs.items()} == {"image": 2, "more__1": 2}


class Mission(gym.Space[str]):
    """A space of strings that is no Text."""


class Talking(Lone):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"image": np.zeros(2, np.float32), "mission": "go", "more": ("on", 1)}, {}


def test_atari_games_are_stacked_by_default():
    stacks = {name: envs.NamedEnvironment(name).stack for name in ("atari:Pong", "gymnasium:ALE/Pong-v5", "recall")}
    assert stacks == {"atari:Pong": 4, "gymnasium:ALE/Pong-v5": 4, "recall": 1}


def test_a_function_that_raises_is_named_and_closed():
    made = [Closing(), Closing()]
    with pytest.raises(EnvironmentFailed, match=r"^env_fn: RuntimeError: no third one$"):
        envs.vectorize(Mock(side_effect=[*made, RuntimeError("no third one")]), 3)
    assert [env.closed for env in made] == [True, True]


def test_an_environment_that_is_refused_is_closed():
    vector = {"num_envs": 2, "single_observation_space": DISCRETE, "single_action_space": gym.Text(5)}
    for refused in (Closing(action_space=lambda agent: gym.Text(5)), Closing(**vector)):
        with pytest.raises(ValueError, match="Text"):
            envs.vectorize(lambda refused=refused: refused, 1)
        assert refused.closed


def test_each_kind_has_its_vector_form():
    kinds = {
        "Copies": Relay,
        "TreasureHunts": envs.TreasureHunt,
        "GymnasiumVector": lambda: gymnasium.make_vec("CartPole-v1", num_envs=2),
    }
    for kind, env_fn in kinds.items():
        env = envs.vectorize(env_fn, 2)
        assert type(env).__name__ == kind
        assert env.copies == 2
        assert envs.vectorize(lambda env=env: env, 5) is env, "a VectorEnvironment stays as it is"
        env.close()


def test_a_module_whose_own_import_fails_is_not_called_unknown(tmp_path, monkeypatch):
    (tmp_path / "needy_env_v0.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        envs.make("pettingzoo:needy_env_v0")


def test_third_party_packages_wait_until_they_are_needed():
    check = "import sys, marlcore.envs; print(*{'pettingzoo', 'mpe2', 'torch', 'numba'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize("checked", [True, False])
def test_options_of_gymnasium_make_go_with_the_vector_form_too(checked):
    for limit, form in {7: "GymnasiumVector", -1: "Copies"}.items():
        options = {"disable_env_checker": not checked, "max_episode_steps": limit}
        env = envs.vectorize(envs.NamedEnvironment("gymnasium:CartPole-v1", options), 2)
        assert type(env).__name__ == form
        env.close()
