"""A run's directory is code: one that others could have changed is refused, and weights alone execute nothing."""

import io
import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from inspect import isclass, isfunction, signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium.spaces as gym
import numpy as np
import pytest
from odd_spaces import Counting
from refused import check_refused

import marlcore as mc
from marlcore import record
from marlcore.__main__ import COMMANDS, main
from marlcore.algos import name_of
from marlcore.config import SINKS, AssignedPolicy, ExplorationConfig, MetricsConfig, SelfPlayConfig
from marlcore.evaluation import SavedRun, save_policies
from marlcore.loops import build_model
from marlcore.record import open_run
from marlcore.record.descriptions import POLICIES, hyperparameters
from marlcore.spaces import Spaces

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


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one policy with weights, as `mc.train` leaves it."""
    policy = AssignedPolicy("agent_0", ("agent_0",), SPACES, mc.DQN(hidden=(4,)))
    config = mc.Config(metrics=MetricsConfig(sinks=("csv",)), exploration=ExplorationConfig(epsilon="linear(1, 0, 10)"))
    with record.RunDirectory.create(tmp_path / "run", record.describe("os:system", (policy,), config)) as made:
        made.keep()
    save_policies(made.path, partial(print, "made"), (policy,), config)
    model = build_model(policy, config)
    state = {"acting": model.acting.state_dict(), "version": 1, "updates": 0, "step": 5}
    record.save_checkpoint(record.checkpoint_path(made.path, "agent_0"), state)
    return made.path


def with_bomb(run: Path) -> Path:
    mark = run.parent / "exploded"
    record.write_sealed(run / "checkpoints/run.pickle", pickle.dumps(Bomb(mark)))
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


@pytest.mark.parametrize("folder", ["checkpoints", "logs", *SINKS])
def test_nothing_is_written_through_another_users_link(run, folder, monkeypatch):
    (run / folder).exists() or (run / folder).mkdir()
    linked(run, folder)
    assert open_run(run) == run
    if os.geteuid() == 0:
        os.chown(run / folder, 12345, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    check_refused(lambda: open_run(run), ValueError, f"not another user's links, got '{run / folder}'")


def test_a_link_to_a_run_is_followed(run, tmp_path):
    (tmp_path / "newest").symlink_to(run)
    assert mc.load_policy(tmp_path / "newest", "agent_0").act(OBS) in (4, 5)
    assert SavedRun.of(tmp_path / "newest").path == run.resolve(), "what is read is what was checked"


def command(*words: object) -> None:
    """Runs the command line; its error is raised."""
    with redirect_stderr(io.StringIO()) as said:
        failed = main([*map(str, words)])
    if failed:
        raise ValueError(said.getvalue().strip())


def offline(run: Path) -> None:
    with mc.ReplayBuffer.create(mc.BC().transition(SPACES), 16) as replay:
        with replay.writer(0) as writer:
            writer.add(OBS, 0, 0.0, terminated=True)
        mc.train_offline(replay, mc.BC(), 1, SPACES, resume=run, progress=False)


SERIAL = mc.Config(mode="serial", total_steps=100, actor=mc.ActorConfig(envs=1))
SEARCH = mc.PopulationConfig(settings={"learner.gamma": mc.Uniform(0.9, 0.99)}, size=2, interval=50, parallel=1)
QUIET: Any = {"progress": False}
ASKED: Any = "gymnasium:CartPole-v1", mc.DQN(), SERIAL


def exported(run: Path, *options: str) -> None:
    command("export", run, "--policy", "agent_0", "--file", run.parent / "p.pt", *options)


DOORS: dict[str, Callable[[Path], object]] = {
    "load_policy": lambda run: mc.load_policy(run, "agent_0"),
    "evaluate": lambda run: mc.evaluate(run, 1),
    "psro(resume=)": lambda run: mc.psro(*ASKED, iterations=1, meta_solver="uniform", resume=run, **QUIET),
    "marlcore eval": lambda run: command("eval", run),
    "marlcore export": exported,
    "marlcore train --resume": lambda run: command("train", "--resume", run),
    "train_population(resume=)": lambda run: mc.train_population(*ASKED, SEARCH, resume=run, **QUIET),
    "train(resume=)": lambda run: mc.train(*ASKED, resume=run, **QUIET),
    "start(resume=)": lambda run: mc.start(*ASKED, resume=run),
    "train_offline(resume=)": offline,
    "load_policy(weights_only=True)": lambda run: mc.load_policy(run, "agent_0", weights_only=True),
    "marlcore export --weights-only": lambda run: exported(run, "--weights-only"),
    "init_from=": lambda run: mc.train(*ASKED, init_from=run, **QUIET),
    "self_play.anchors": lambda run: mc.train(
        "pettingzoo:classic.tictactoe_v3", mc.DQN(),
        replace(SERIAL, self_play=SelfPlayConfig(pool=1, anchors={str(run / "checkpoints/agent_0.pt"): 0.5})), **QUIET
    ),
    "best_run": lambda run: mc.best_run([run]),
    "marlcore top": lambda run: command("top", run),
}  # fmt: skip
PAGE = (Path(__file__).parents[3] / "docs/security.md").read_text()
ROWS = re.findall(r"^\| (`.*?) \|.*\| (refused|opened) \|$", PAGE, re.M)
REFUSES = {door: says == "refused" for doors, says in ROWS for door in re.findall("`(.*?)`", doors)}
VARIANTS = {"load_policy(weights_only=True)", "marlcore export --weights-only", "self_play.anchors"}


def public_doors() -> Iterator[str]:
    """The parameters of public functions, and the options of commands, that name a directory."""
    for name in dir(mc):
        if isfunction(function := getattr(mc, name)):
            for place, (label, parameter) in enumerate(signature(function).parameters.items()):
                if "init_from" in label:
                    yield "init_from="
                elif "Path" in str(parameter.annotation) and label != "path":
                    yield name if place == 0 else f"{name}({label}=)"
    for name in COMMANDS:
        kinds = filter(isclass, vars(import_module(f"marlcore.cli.{name}")).values())
        labels = {field.name for kind in kinds if kind.__name__.endswith("Options") for field in fields(kind)}
        yield from ([f"marlcore {name}"] if "run_dir" in labels else [])
        yield from ([f"marlcore {name} --resume"] if "resume" in labels else [])


def test_every_door_has_a_way_and_a_call_here() -> None:
    """The ways are the rows of the page's table."""
    assert {*public_doors()} == REFUSES.keys() - VARIANTS and DOORS.keys() == REFUSES.keys()


def test_few_files_of_training_unpickle() -> None:
    """Only loaded_policy.py unpickles a run's directory; the other files unpickle messages of their parent process."""
    package = Path(mc.__file__).parent
    files = [
        path
        for room in ("record", "evaluation", "self_play", "run", "meta", "cluster")
        for path in (package / room).rglob("*.py")
    ]
    unpickle = {path.name for path in files if re.search(r"pickle\.loads?\(|unpickled\(", path.read_text())}
    assert unpickle == {"loaded_policy.py", "agent.py", "program.py", "__main__.py"}


@pytest.fixture
def hostile(run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that another user could have changed, each of whose files names code that leaves a mark."""
    (run.parent / "planted.py").write_text(f"import os\nos.mkdir({str(run.parent / 'exploded')!r})\n")
    monkeypatch.syspath_prepend(run.parent)
    with_bomb(run)
    named = {"network": "planted:net"}
    config = record.read_json(run / "config.json") | {"env": "planted:env", "hyperparameters": named}
    record.write_json(run / "config.json", config)
    member = {"settings": {"learner.gamma": 0.95, "algorithm.network": "planted:net"}, "target": 50, "score": "nan"}
    kept = {"rungs": [], "size": 2, "method": "pbt", "interval": 50, "settings": ["learner.gamma"]}
    record.write_json(run / "population.json", {**kept, "members": [member, member], "rows": []})
    record.write_json(run / "psro.json", {"meta_solver": "planted:solver"})
    policies = record.read_json(run / POLICIES)
    policies["policies"][0]["hyperparameters"] |= named
    record.write_json(run / POLICIES, policies)
    writable(run, "")
    return run


@pytest.mark.parametrize("door", DOORS)
def test_no_door_executes_a_hostile_directory(hostile: Path, door: str) -> None:
    with pytest.raises((ValueError, TypeError), match="expected") as caught:
        DOORS[door](hostile)
    assert ("trust: expected a run that only this user can write" in str(caught.value)) == REFUSES[door]
    assert not (hostile.parent / "exploded").exists()


def test_a_population_executes_nothing_of_its_directory(hostile: Path) -> None:
    hostile.chmod(0o755)
    for name in ("population.json", "psro.json"):
        everybodys(hostile, name)
        check_refused(lambda: DOORS["train_population(resume=)"](hostile), ValueError, f"{name}', which has mode 0646")
        (hostile / name).chmod(0o644)
    says = "json: settings: expected the fields ['learner.gamma'], got ['learner.gamma', 'algorithm.network'])"
    check_refused(lambda: DOORS["train_population(resume=)"](hostile), ValueError, says)
    assert not (hostile.parent / "exploded").exists()


@pytest.mark.parametrize("door", ["marlcore eval", "marlcore train --resume"])
def test_a_trusted_run_executes_its_code(hostile: Path, door: str) -> None:
    _, *words = door.split()
    with pytest.raises(ValueError, match="expected"):
        command(*words, hostile, "--trust")
    assert (hostile.parent / "exploded").exists(), "the control of the tests above"


def test_weights_alone_execute_nothing_and_act_alike(run):
    usual = mc.load_policy(run, "agent_0")
    assert SavedRun.of(run, weights_only=True).described and not SavedRun.of(run).described
    mark = with_bomb(run)
    writable(run, "")
    policy = mc.load_policy(run, "agent_0", weights_only=True)
    assert policy.spaces == usual.spaces and not mark.exists()
    for obs in np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32):
        assert policy.act(obs) == usual.act(obs)
    assert policy._numbers == usual._numbers == {"epsilon": 0.5}


def described(policy: AssignedPolicy, config: mc.Config, folder: Path) -> dict[str, Any]:
    (folder / "checkpoints").mkdir(exist_ok=True)
    record.write_policies(folder, (policy,), config)
    return record.read_json(folder / POLICIES)


def test_a_hyperparameter_function_is_described_alike() -> None:
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
    ((again,), _) = record.described_policies(tmp_path)
    assert again == policy


def discrete(n: int) -> dict[str, Any]:
    return {"kind": "Discrete", "n": str(n), "start": "0", "shape": [], "dtype": "int64"}


def box(shape: list[int]) -> dict[str, Any]:
    return {"kind": "Box", "low": "0", "high": "1", "shape": shape, "dtype": "float32"}


SMALL = "expected spaces of at most 16,777,216 numbers, got "
IS_CODE = "agent_0 has the hyperparameter hidden="
UNFIT = "weights_only: expected a policy and weights that fit it, got "
CHANGED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "code": ({"algorithm": name_of(Custom())}, {}, "agent_0 is of the algorithm test_trust:Custom, whose"),
    "reference": ({}, {"hidden": "os:system"}, IS_CODE),
    "function": ({}, {"hidden": {"repr": "<function>"}}, IS_CODE),
    "reference in a list": ({}, {"hidden": ["antigravity:x"]}, IS_CODE),
    "huge": ({}, {"hidden": [10**9]}, "hidden: expected an integer from 1 to 65536, got 1000000000"),
    "large": ({}, {"hidden": [2**16, 2**16]}, "weights_only: expected a network of the size of its checkpoint, "),
    "choices": ({"observation": discrete(10**9)}, {}, SMALL),
    "box": ({"observation": box([10**5, 10**5])}, {}, SMALL),
    "boxes": ({"observation": {"kind": "Tuple", "spaces": [box([2**20])] * 17}}, {}, SMALL),
    "bits": ({"action": {"kind": "MultiBinary", "n": [10**5, 10**5]}}, {}, SMALL),
    "components": ({"action": {**discrete(3), "kind": "MultiDiscrete", "nvec": "3", "shape": [10**9]}}, {}, SMALL),
    "other size": ({}, {"hidden": [2000, 2000]}, UNFIT),
    "no choice": ({}, {"dueling": "x"}, "weights_only: expected "),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_changed_policy_is_refused_without_its_code(run: Path, case: str) -> None:
    changes, hyperparameters, says = CHANGED[case]
    plain = record.read_json(run / POLICIES)
    plain["policies"][0] |= changes
    plain["policies"][0]["hyperparameters"] |= hyperparameters
    record.write_json(run / POLICIES, plain)
    check_refused(lambda: mc.load_policy(run, "agent_0", weights_only=True), ValueError, says)


def test_settings_that_name_code_are_left_out(tmp_path):
    """In the run's settings, in a policy's, and in sections that policies do not use."""
    plain = described(AssignedPolicy("a", ("a",), SPACES, mc.DQN()), mc.Config(), tmp_path)
    named = {"epsilon": " Custom (os:system)", "schedules": {"x": "custom(os:system)", "y": 2}}
    plain["config"]["exploration"] |= named
    plain["config"] |= {"explorations": {"a": named}, "self_play": {"anchors": {"os:system": "custom(os:system)"}}}
    record.write_json(tmp_path / POLICIES, plain)
    config = SavedRun.of(tmp_path, weights_only=True).config
    assert (
        list(config.schedules) == list(config.of("a").schedules) == ["y"] and config.of("a").exploration.epsilon is None
    )
