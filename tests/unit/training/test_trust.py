"""A run's directory is code: one that others could have changed is refused, and weights alone execute nothing."""

import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium.spaces as gym
import numpy as np
import pytest
from odd_spaces import Counting

import marlcore as mc
from marlcore.__main__ import main
from marlcore.spaces import Spaces
from marlcore.training import ExplorationConfig, MetricsConfig
from marlcore.training.after.loaded_policy import SavedRun, save_policies
from marlcore.training.config.policies import AssignedPolicy
from marlcore.training.loops import build_model
from marlcore.training.record.checkpoints import save_checkpoint
from marlcore.training.record.descriptions import POLICIES, describe, described_policies, write_policies
from marlcore.training.record.files import read_json, write_json, write_sealed
from marlcore.training.record.run_directory import RunDirectory, checkpoint_path

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
    model = build_model(policy, config, 0)
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


CHANGES = {  # what it does to which files of a run, and what is said
    writable: (["", "checkpoints"], "has mode 0775; chmod -R go-w repairs that"),
    everybodys: (["config.json", "checkpoints/run.pickle"], "has mode 0646; chmod -R go-w repairs that"),
    linked: (["config.json", "checkpoints", "checkpoints/run.pickle"], "is a link"),
}


@pytest.mark.parametrize(("change", "name"), [(change, name) for change in CHANGES for name in CHANGES[change][0]])
def test_a_run_that_others_may_write_is_refused_unless_trusted(run, change, name):
    assert mc.load_policy(run, "agent_0").act(OBS) in (4, 5)
    change(run, name)
    with pytest.raises(ValueError, match=r"^trust: expected a run that only this user can write") as caught:
        mc.load_policy(run, "agent_0")
    says = f"got {str(run / name)!r}, which {CHANGES[change][1]}; trust=True or --trust loads it all the same"
    assert str(caught.value).endswith(says)
    assert mc.load_policy(run, "agent_0", trust=True).act(OBS) in (4, 5)


def test_a_run_of_another_user_is_refused(run, monkeypatch):
    if os.geteuid() == 0:
        os.chown(run / "checkpoints/run.pickle", 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ValueError, match="which belongs to user"):
        mc.load_policy(run, "agent_0")


def test_a_link_to_a_run_is_followed(run, tmp_path):
    (tmp_path / "newest").symlink_to(run)
    assert mc.load_policy(tmp_path / "newest", "agent_0").act(OBS) in (4, 5)
    assert SavedRun.of(tmp_path / "newest").path == run.resolve(), "what is read is what was checked"


def test_a_refused_run_executes_nothing_at_any_door(run, capsys):
    mark = with_bomb(run)
    writable(run, "")
    for door in (partial(mc.load_policy, run, "agent_0"), partial(mc.evaluate, run, 1)):
        with pytest.raises(ValueError, match="trust=True or --trust loads it"):
            door()
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


def described(algorithm: mc.Algorithm, folder: Path, spaces: Spaces = SPACES) -> dict[str, Any]:
    """The description of a policy "a" of two agents, which is written into the folder."""
    (folder / "checkpoints").mkdir(exist_ok=True)
    write_policies(folder, (AssignedPolicy("a", ("x", "y"), spaces, algorithm),), mc.Config())
    return read_json(folder / POLICIES)


@pytest.mark.parametrize("masked", [False, True])
def test_all_kinds_of_spaces_are_described(tmp_path, masked):
    boxes = {
        "int": gym.Box(-(2**62) - 1, 2**62 + 1, (1,), np.int64),
        "two": gym.Box(np.zeros(2), np.array([1.0, 2.0]), dtype=np.float64),
        "texts": gym.Tuple([gym.Text(1), gym.Discrete(2)]),
    }
    observation = gym.Dict({"counting": Counting().observation_space, **boxes})
    spaces = Spaces(observation, gym.MultiDiscrete([3, 2], start=[1, 0]), masked, 3)
    described(mc.IQN(), tmp_path, spaces)
    assert described_policies(tmp_path)[0] == (AssignedPolicy("a", ("x", "y"), spaces, mc.IQN()),)


def test_an_algorithm_of_other_code_is_refused(tmp_path):
    described(Custom(), tmp_path)
    with pytest.raises(ValueError, match=r"^weights_only: expected .*a is of the algorithm test_trust:Custom, whose"):
        mc.load_policy(tmp_path, "a", weights_only=True)


@pytest.mark.parametrize("value", ["os:system", {"repr": "<function>"}, ["antigravity:x"]])
def test_a_hyperparameter_that_names_code_is_refused(tmp_path, value):
    plain = described(mc.DQN(), tmp_path)
    plain["policies"][0]["hyperparameters"]["hidden"] = value
    write_json(tmp_path / POLICIES, plain)
    with pytest.raises(ValueError, match="weights_only: expected policies of built-in algorithms, got "):
        mc.load_policy(tmp_path, "a", weights_only=True)


@pytest.mark.parametrize("change", [{"hidden": [10**12]}, {"hidden": [5]}, {"dueling": "x"}])
def test_a_policy_that_its_weights_do_not_fit_is_refused(run, change):
    plain = read_json(run / POLICIES)
    plain["policies"][0]["hyperparameters"] |= change
    write_json(run / POLICIES, plain)
    with pytest.raises(ValueError, match=r"^weights_only: expected ") as refusal:
        mc.load_policy(run, "agent_0", weights_only=True)
    assert "\n" not in str(refusal.value)


def test_a_schedule_that_names_code_is_left_out(tmp_path):
    plain = described(mc.DQN(), tmp_path)
    schedules = {"x": "custom(os:system)", "y": 2}
    plain["config"]["exploration"] |= {"epsilon": " Custom (os:system)", "schedules": schedules}
    write_json(tmp_path / POLICIES, plain)
    saved = SavedRun.of(tmp_path, weights_only=True)
    assert list(saved.config.exploration.numbers) == ["y"]
