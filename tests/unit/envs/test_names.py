"""Names of environments, and the spaces and kinds that are refused in one line."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium.wrappers
import numpy as np
import pytest
from gymnasium import spaces as gym
from pettingzoo.utils import parallel_to_aec
from random_play import assert_same, child_seeds, play, single
from relay import Relay

from marlcore import algos
from marlcore.envs import NamedEnvironment, TreasureHunt, adapt, factory, make, vectorize
from marlcore.envs.copies import Copies
from marlcore.envs.pettingzoo import AECEnvironment, ParallelEnvironment
from marlcore.errors import EnvironmentFailed
from marlcore.spec import Field


@pytest.mark.parametrize(
    "name",
    [
        "tresure_hunt",
        "",
        "gymnasium:",
        "gymnasium:NoSuch-v1",
        "gymnasium:CartPole-v99",
        "gymnasium:not an id",
        "pettingzoo:",
        "pettingzoo:no_such_package.env_v0",
        "pettingzoo:mpe2.no_such_v0",
        "pettingzoo:.relative",
        "pettingzoo:mpe2",
        "pettingzoo-parallel:classic.tictactoe_v3",
        "vizdoom:basic",
    ],
)
def test_an_unknown_name_is_answered_in_one_line(name: str) -> None:
    """An unknown name is answered in one line with what is expected."""
    with pytest.raises(ValueError) as error:
        make(name)
    message = str(error.value)
    assert message.startswith("environment: expected ")
    assert f"got {name!r}" in message
    assert "\n" not in message
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__ or error.value.__context__ is None


@pytest.mark.parametrize(
    ("find", "name", "known"), [(make, "treasure_hutn", "treasure_hunt"), (algos.find, "IQNN", "iqn")]
)
def test_a_misspelt_name_is_answered_with_the_nearest(find: Callable[[str], Any], name: str, known: str) -> None:
    with pytest.raises(ValueError, match=f"got '{name}'; did you mean {known}\\?$"):
        find(name)


class Lone(gymnasium.Env[Any, Any]):
    """An environment of which only the spaces matter."""

    def __init__(self, observation: gym.Space, action: gym.Space) -> None:
        self.observation_space, self.action_space = observation, action


BOX, DISCRETE = gym.Box(0, 1, (2,)), gym.Discrete(3)


@pytest.mark.parametrize(
    ("observation", "action", "line"),
    [
        (gym.Text(5), DISCRETE, r"observation space: expected a Box, .*, got Text\("),
        (
            gym.Dict({"a": BOX, "b": gym.Tuple([gym.Graph(BOX, None)])}),
            DISCRETE,
            r"observation space\['b'\]\[0\]: .*Gr",
        ),
        (BOX, gym.Dict({"a": DISCRETE}), "action space: expected a Box, Discrete, MultiBinary or MultiDiscrete, got D"),
        (BOX, gym.Sequence(DISCRETE), r"action space: expected a Box, .*, got Sequence\("),
        (gym.Dict({"observation": BOX, "action_mask": gym.MultiBinary(4)}), DISCRETE, "action_mask: expected 3 values"),
    ],
)
def test_a_space_that_is_not_supported_is_named_with_its_agent(
    observation: gym.Space, action: gym.Space, line: str
) -> None:
    with pytest.raises(ValueError, match=f"^agent_0: {line}") as error:
        adapt(Lone(observation, action))
    assert "\n" not in str(error.value)


def test_each_adapter_refuses_other_kinds_of_environment() -> None:
    """Each adapter wants its own kind of environment with agents known beforehand."""
    with pytest.raises(ValueError, match=r"^AECEnvironment: expected a PettingZoo AEC environment, got "):
        AECEnvironment(Relay())
    with pytest.raises(ValueError, match=r"^ParallelEnvironment: expected a PettingZoo Parallel environment, got "):
        ParallelEnvironment(parallel_to_aec(Relay()))
    nameless = Relay()
    nameless.possible_agents = [0, 1]
    with pytest.raises(ValueError, match=r"^possible_agents of .*: expected a list of names, got \[0, 1\]$"):
        ParallelEnvironment(nameless)


def halved(env: Any) -> Any:
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward / 2)


def cut(env: Any) -> Any:
    return gymnasium.wrappers.TimeLimit(env, 3)


def test_wrappers_are_applied_in_their_order() -> None:
    named = NamedEnvironment("gymnasium:CartPole-v1", wrappers=[f"{__name__}:halved", f"{__name__}:cut"])
    for env in (named(), pickle.loads(pickle.dumps(named))()):
        assert isinstance(env, gymnasium.wrappers.TimeLimit)
        assert isinstance(env.env, gymnasium.wrappers.TransformReward)
    env = vectorize(named, 2)
    assert isinstance(env, Copies), "CartPole's vector form would be without the wrappers"
    env.reset(0)
    _, [turn] = env.observe()
    env.act(turn, np.zeros(2, np.int64))
    [outcome], _ = env.observe()
    assert outcome.reward.tolist() == [0.5, 0.5]
    assert isinstance(make("treasure_hunt", wrappers=[f"{__name__}:same"]), TreasureHunt)


def same(env: Any) -> Any:
    return env


def test_an_unknown_wrapper_is_named() -> None:
    with pytest.raises(ValueError, match=r"^wrappers: expected something that can be imported, got 'no_such:wrapper'"):
        make("gymnasium:CartPole-v1", wrappers=["no_such:wrapper"])


def test_options_travel_with_the_name() -> None:
    named = pickle.loads(pickle.dumps(NamedEnvironment("treasure_hunt", {"agents": 2})))
    assert vectorize(named, 3).agents == ("agent_0", "agent_1")


@pytest.mark.parametrize("name", ["atari:Pong", pytest.param("gymnasium:ALE/Pong-v5", marks=pytest.mark.long)])
def test_atari_games_come_preprocessed(name: str) -> None:
    pytest.importorskip("ale_py", reason="needs ale-py")
    pytest.importorskip("cv2", reason="needs opencv-python")
    env = vectorize(NamedEnvironment(name, {"full_action_space": True}), 2)
    assert isinstance(env, Copies)
    assert env.spaces["agent_0"].obs == Field((84, 84), "uint8")
    assert env.spaces["agent_0"].choices == 18
    events, actions = play(env, 30)
    env.close()
    for copy, seed in enumerate(child_seeds(5, 2)):
        raw = gymnasium.make("ALE/Pong-v5", frameskip=1, full_action_space=True)
        assert raw.unwrapped.ale.getFloat("repeat_action_probability") == 0.25
        raw = gymnasium.wrappers.AtariPreprocessing(raw)
        assert_same(events[copy, "agent_0"], single(raw, seed, actions[copy, "agent_0"], masked=False))
        raw.close()


def test_a_missing_emulator_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    for id in [id for id in gymnasium.registry if id.startswith("ALE/")]:
        monkeypatch.delitem(gymnasium.registry, id)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"comes with ale-py; try: pip install 'marlcore\[atari\]'$"):
        make("atari:Pong")


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
def test_a_missing_package_names_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, name: str, reason: str, says: str
) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise gymnasium.error.DependencyNotInstalled(reason)

    monkeypatch.setattr(gymnasium, "make", missing)
    with pytest.raises(ImportError) as caught:
        make(name)
    assert str(caught.value) == f"environment: {name!r}: {says}"


@pytest.mark.parametrize("extra", ["atari", "box2d", "mujoco"])
def test_an_extra_that_is_named_exists(extra: str) -> None:
    project = Path(__file__).parents[3] / "pyproject.toml"
    assert re.search(rf"^{extra} = \[", project.read_text(), re.MULTILINE)


def test_texts_are_left_out_of_observations() -> None:
    """MiniGrid tells its mission in words."""
    space = gym.Dict({"image": BOX, "mission": Mission(dtype=str), "more": gym.Tuple([gym.Text(3), DISCRETE])})
    env = vectorize(lambda: Talking(space, DISCRETE), 2)
    spaces = env.spaces["agent_0"]
    assert list(spaces.obs) == ["image", "more__1"] and spaces.texts == ("mission", "more__0")
    env.reset(0)
    _, [turn] = env.observe()
    assert {name: len(rows) for name, rows in turn.obs.items()} == {"image": 2, "more__1": 2}


class Mission(gym.Space[str]):
    """A space of strings that is no Text."""


class Talking(Lone):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return {"image": np.zeros(2, np.float32), "mission": "go", "more": ("on", 1)}, {}


def test_atari_games_are_stacked_by_default() -> None:
    stacks = {name: NamedEnvironment(name).stack for name in ("atari:Pong", "gymnasium:ALE/Pong-v5", "recall")}
    assert stacks == {"atari:Pong": 4, "gymnasium:ALE/Pong-v5": 4, "recall": 1}


# What `vectorize` makes


class Broken:
    """A function that fails at its third call."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def __call__(self) -> Any:
        if len(self.made) == 2:
            raise RuntimeError("no third one")
        self.made.append(Closing())
        return self.made[-1]


class Closing(Relay):
    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_function_that_raises_is_named_and_what_it_made_is_closed() -> None:
    broken = Broken()
    with pytest.raises(EnvironmentFailed, match=r"^env_fn: RuntimeError: no third one$"):
        vectorize(broken, 3)
    assert [env.closed for env in broken.made] == [True, True]


class OddSpace(Closing):
    def action_space(self, agent: str) -> Any:
        return gym.Text(5)


class OddVector(Closing):
    num_envs = 2
    single_observation_space, single_action_space = gym.Discrete(3), gym.Text(5)


def test_an_environment_that_is_refused_is_closed() -> None:
    for refused in (OddSpace(), OddVector()):
        with pytest.raises(ValueError, match="Text"):
            vectorize(lambda refused=refused: refused, 1)
        assert refused.closed


def test_each_kind_has_its_vector_form() -> None:
    kinds = {
        "Copies": Relay,
        "TreasureHunts": TreasureHunt,
        "GymnasiumVector": lambda: gymnasium.make_vec("CartPole-v1", num_envs=2),
    }
    for kind, env_fn in kinds.items():
        env = vectorize(env_fn, 2)
        assert type(env).__name__ == kind
        assert env.copies == 2
        assert vectorize(lambda env=env: env, 5) is env, "a VectorEnvironment stays as it is"
        env.close()


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^env_fn: expected it to make a marlcore, PettingZoo or Gymnasium .*, got 5$"):
        vectorize(lambda: 5, 2)
    with pytest.raises(ValueError, match=r"^copies: expected an integer of at least 1, got 0$"):
        vectorize(Relay, 0)
    with pytest.raises(TypeError, match=r"^env_fn: expected a function that makes an environment.* got an environment"):
        factory(Relay())


def test_a_module_whose_own_import_fails_is_not_called_unknown(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needy_env_v0.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        make("pettingzoo:needy_env_v0")


def test_third_party_packages_wait_until_they_are_needed() -> None:
    check = "import sys, marlcore.envs; print(*{'pettingzoo', 'mpe2', 'torch', 'numba'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize("checked", [True, False])
def test_options_of_gymnasium_make_go_with_the_vector_form_too(checked: bool) -> None:
    for limit, form in {7: "GymnasiumVector", -1: "Copies"}.items():
        options = {"disable_env_checker": not checked, "max_episode_steps": limit}
        env = vectorize(NamedEnvironment("gymnasium:CartPole-v1", options), 2)
        assert type(env).__name__ == form
        env.close()
