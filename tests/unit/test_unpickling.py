"""Unpickling leaves the classes of the program as they are."""

import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import marlcore as mc
from marlcore.planning import batches
from marlcore.unpickling import unpickled

SCRIPT = """
import enum
import numpy as np
from gymnasium import Env, spaces

GAIN = 1.0
class Game(Env):
    observation_space, action_space, size = spaces.Box(-1, 1, (1,)), spaces.Discrete(2), 10
    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}
    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), GAIN, False, self.t >= self.size, {}
class Colour(enum.Enum):
    RED = 1
class State:
    def __eq__(self, other):
        return type(other) is State and GAIN > 0
    def __hash__(self):
        return 1
"""


@pytest.fixture
def script() -> dict[str, Any]:
    """The names of a program whose classes cannot be imported."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(SCRIPT, names)
    return names


def test_a_loaded_run_has_classes_of_its_own(script: dict[str, Any], tmp_path: Path) -> None:
    """A loaded run plays its game as it was; the program's own class, changed meanwhile, stays changed."""
    config = mc.Config(total_steps=40, mode="serial", run_dir=str(tmp_path / "run"))
    run_dir = mc.train(script["Game"], "dqn", config, progress=False).run_dir
    script["Game"].size, script["GAIN"], step = 5, 3.0, script["Game"].step
    for _ in range(2):
        assert mc.evaluate(run_dir, episodes=2).mean["agent_0"] == 10.0
    assert (script["Game"].size, script["Game"].step) == (5, step) and step.__globals__ is script


def test_a_pickles_classes_are_those_of_the_program(script: dict[str, Any]) -> None:
    things = [script["Game"](), script["Colour"].RED, script["State"]()]
    pickled, step = cloudpickle.dumps(things), script["Game"].step
    script["Game"].size = 5
    here, there = unpickled(pickled), unpickled(pickled, apart=True)
    assert [*map(type, here)] == [*map(type, things)] and here[1] is script["Colour"].RED
    assert (script["Game"].size, script["Game"].step) == (5, step)
    assert there[0].size == 10 and type(there[0]) is not script["Game"] and there[1].name == "RED"
    assert batches.stays_equal(script["State"]()) and script["State"].__eq__.__globals__ is script


def test_names_of_earlier_run_directories_are_found() -> None:
    """Settings and spaces have moved since; protocol 2 writes a module and a class as one line."""
    gymnasium = pytest.importorskip("gymnasium")
    from marlcore.meta import against
    from marlcore.run import spec
    from marlcore.spaces import parts_of

    space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Box(0, 1, (2,))})
    for thing, now, before in (
        (mc.Config(), b"cmarlcore.config.config\nConfig\n", b"cmarlcore.training.config.config\nConfig\n"),
        (parts_of("observation", space), b"cmarlcore.spaces\nSpacePart\n", b"cmarlcore.spaces\nPart\n"),
        (spec.no_environment, b"cmarlcore.run.spec\n", b"cmarlcore.training.run_input\n"),
        (against.Against, b"cmarlcore.meta.against\n", b"cmarlcore.training.oracles.against\n"),
    ):
        data = pickle.dumps(thing, 2)
        assert now in data and unpickled(data.replace(now, before)) == thing
