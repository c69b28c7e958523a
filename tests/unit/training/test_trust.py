"""A run's directory is code: one that others could have changed is refused, and weights alone execute nothing."""

import os
import pickle
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium.spaces as gym
import numpy as np
import pytest
from odd_spaces import Counting
from refused import check_refused

import marlcore as mc
from marlcore.__main__ import main
from marlcore.algos import name_of
from marlcore.spaces import Spaces
from marlcore.training import ExplorationConfig, MetricsConfig
from marlcore.training.config import AssignedPolicy
from marlcore.training.evaluation import SavedRun, save_policies
from marlcore.training.loops import build_model
from marlcore.training.record import (
    RunDirectory,
    checkpoint_path,
    describe,
    described_policies,
    read_json,
    save_checkpoint,
    write_json,
    write_policies,
    write_sealed,
)
from marlcore.training.record.descriptions import POLICIES, hyperparameters

SPACES = Spaces(gym.Box(-np.inf, 1, (3,)), gym.Discrete(2, start=4))
OBS = np.array([0.1, -2.0, 0.5], np.float32)


class Custom(mc.DQN):
    """An algorithm whose code is not the package's."""


class Bomb:
    """Its unpickling writes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


called: list[bool] = []


def environment() -> Any:
    """What a configuration may name."""
    called.append(True)
    raise ValueError("it was made")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one policy with weights, as `mc.train` leaves it."""
    policy = AssignedPolicy("agent_0", ("agent_0",), SPACES, mc.DQN(hidden=(4,)))
    config = mc.Config(metrics=MetricsConfig(sinks=("csv",)), exploration=ExplorationConfig(epsilon="linear(1, 0, 10)"))
    with RunDirectory.create(tmp_path / "run", describe("os:system", (policy,), config)) as made:
        made.keep()
    save_policies(made.path, partial(print, "made"), (policy,), config)
    model = build_model(policy, config)
    state = {"acting": model.acting.state_dict(), "version": 1, "updates": 0, "step": 5}
    save_checkpoint(checkpoint_path(made.path, "agent_0"), state)
    return made.path


def with_bomb(run: Path) -> Path:
    mark = run.parent / "exploded"
    write_sealed(run / "checkpoints/run.pickle", pickle.dumps(Bomb(mark)))
    return mark


def writable(run: Path, name: str, mode: int = 0o775) -> None:
    (run / name).chmod(mode)


everybodys = partial(writable, mode=0o646)


def linked(run: Path, name: str) -> None:
    (run / name).rename(run.parent / "elsewhere")
    (run / name).symlink_to(run.parent / "elsewhere")


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        (writable, "", "which has mode 0775; chmod -R go-w repairs that"),
        (writable, "checkpoints", "which has mode 0775"),
        (everybodys, "config.json", "which has mode 0646"),
        (everybodys, "checkpoints/run.pickle", "which has mode 0646"),
        (linked, "config.json", "which is a link"),
        (linked, "checkpoints", "which is a link"),
        (linked, "checkpoints/run.pickle", "which is a link"),
    ],
)
def test_a_run_that_others_may_write_is_refused_unless_trusted(run, change, name, words):
    assert mc.load_policy(run, "agent_0").act(OBS) in (4, 5)
    change(run, name)
    with pytest.raises(ValueError, match="trust: expected a run that only this user can write") as caught:
        mc.load_policy(run, "agent_0")
    assert str(run / name) in str(caught.value) and words in str(caught.value) and "\n" not in str(caught.value)
    assert mc.load_policy(run, "agent_0", trust=True).act(OBS) in (4, 5)


def test_a_run_of_another_user_is_refused(run, monkeypatch):
    if os.geteuid() == 0:
        os.chown(run / "checkpoints/run.pickle", 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    check_refused(lambda: mc.load_policy(run, "agent_0"), ValueError, "which belongs to user")


def test_a_link_to_a_run_is_followed(run, tmp_path):
    (tmp_path / "newest").symlink_to(run)
    assert mc.load_policy(tmp_path / "newest", "agent_0").act(OBS) in (4, 5)
    assert SavedRun.of(tmp_path / "newest").path == run.resolve(), "what is read is what was checked"


def test_a_refused_run_executes_nothing_at_any_door(run, capsys):
    mark = with_bomb(run)
    writable(run, "")
    doors = [partial(mc.load_policy, run, "agent_0"), partial(mc.evaluate, run, 1)]
    for door in doors:
        check_refused(door, ValueError, "trust=True or --trust loads it")
    for arguments in (["eval", str(run)], ["train", "--resume", str(run)]):
        assert main(arguments) == 2
        assert "trust=True or --trust loads it" in capsys.readouterr().err
    assert not mark.exists()
    for arguments in (["eval", str(run), "--trust"], ["train", "--resume", str(run), "--trust"]):
        assert main(arguments) == 2
        assert "trust" not in capsys.readouterr().err
    assert mark.exists()


def test_nothing_that_a_refused_configuration_names_is_called(run):
    config = read_json(run / "config.json") | {"env": "test_trust:environment"}
    write_json(run / "config.json", config)
    everybodys(run, "config.json")
    assert main(["train", "--resume", str(run)]) == 2
    assert not called
    assert main(["train", "--resume", str(run), "--trust"]) == 2
    assert called.pop()


def test_weights_alone_execute_nothing_and_act_alike(run):
    usual = mc.load_policy(run, "agent_0")
    mark = with_bomb(run)
    writable(run, "")
    policy = mc.load_policy(run, "agent_0", weights_only=True)
    assert policy.spaces == usual.spaces and not mark.exists()
    for obs in np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32):
        assert policy.act(obs) == usual.act(obs)
    assert policy._numbers == usual._numbers == {"epsilon": 0.5}


def described(policy: AssignedPolicy, config: mc.Config, folder: Path) -> dict[str, Any]:
    (folder / "checkpoints").mkdir(exist_ok=True)
    write_policies(folder, (policy,), config)
    return read_json(folder / POLICIES)


def test_a_function_among_the_hyperparameters_is_described_alike_in_every_process() -> None:
    algorithms = [SimpleNamespace(shape=lambda reward: reward) for _ in range(2)]
    assert hyperparameters(algorithms[0]) == hyperparameters(algorithms[1])


@pytest.mark.parametrize("masked", [False, True])
def test_all_kinds_of_spaces_are_described(tmp_path, masked):
    boxes = {
        "int": gym.Box(-(2**62) - 1, 2**62 + 1, (1,), np.int64),
        "two": gym.Box(np.zeros(2), np.array([1.0, 2.0]), dtype=np.float64),
        "texts": gym.Tuple([gym.Text(1), gym.Discrete(2)]),
    }
    observation = gym.Dict({"counting": Counting().observation_space, **boxes})
    spaces = Spaces(observation, gym.MultiDiscrete([3, 2], start=[1, 0]), masked, 3)
    policy = AssignedPolicy("a", ("x", "y"), spaces, mc.IQN())
    described(policy, mc.Config(), tmp_path)
    ((again,), _) = described_policies(tmp_path)
    assert again == policy


IS_CODE = "agent_0 has the hyperparameter hidden="
UNFIT = "weights_only: expected a policy and weights that fit it, got "
CHANGED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "code": ({"algorithm": name_of(Custom())}, {}, "agent_0 is of the algorithm test_trust:Custom, whose"),
    "reference": ({}, {"hidden": "os:system"}, IS_CODE),
    "function": ({}, {"hidden": {"repr": "<function>"}}, IS_CODE),
    "reference in a list": ({}, {"hidden": ["antigravity:x"]}, IS_CODE),
    "huge": ({}, {"hidden": [10**12]}, "weights_only: expected "),
    "other size": ({}, {"hidden": [5]}, UNFIT),
    "no choice": ({}, {"dueling": "x"}, "weights_only: expected "),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_changed_policy_is_refused_without_its_code(run: Path, case: str) -> None:
    changes, hyperparameters, says = CHANGED[case]
    plain = read_json(run / POLICIES)
    plain["policies"][0] |= changes
    plain["policies"][0]["hyperparameters"] |= hyperparameters
    write_json(run / POLICIES, plain)
    check_refused(lambda: mc.load_policy(run, "agent_0", weights_only=True), ValueError, says)


def test_a_schedule_that_names_code_is_left_out(tmp_path):
    plain = described(AssignedPolicy("a", ("a",), SPACES, mc.DQN()), mc.Config(), tmp_path)
    plain["config"]["exploration"] |= {
        "epsilon": " Custom (os:system)",
        "schedules": {"x": "custom(os:system)", "y": 2},
    }
    write_json(tmp_path / POLICIES, plain)
    saved = SavedRun.of(tmp_path, weights_only=True)
    assert list(saved.config.schedules) == ["y"]
