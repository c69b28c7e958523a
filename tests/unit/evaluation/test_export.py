"""Exported policies: the programs choose what `LoadedPolicy.act` chooses, in any batch and from any state."""

import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from batches import SMALL, team_spaces
from gymnasium import spaces as gym
from own_networks import EntityTransformer, GridTorso, SharedTorso
from refused import Refused, check_row
from tiers import long_but
from torch import nn
from whole_runs import Runs

import marlcore as mc
from marlcore.__main__ import main
from marlcore.algos import ALGORITHMS
from marlcore.config import AssignedPolicy
from marlcore.envs import AgentView
from marlcore.evaluation import LoadedPolicy, save_policies
from marlcore.loops import Normalizer, PolicyModel, build_model
from marlcore.observations import in_form
from marlcore.record import checkpoint_path, save_checkpoint

DOCS = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
LAYOUT = DOCS.partition("| key | what it is |")[2].partition("What evaluations keep")[0]
Run = Callable[[dict[str, Any]], dict[str, Any]]  # arrays by name, as the program takes and returns them

EPISODES, STEPS = 10, 25

BOX = gym.Box(-1, 1, (4,))
FAR = gym.Box(-np.inf, np.inf, (3, 2), np.float64)
IMAGE = gym.Box(0, 255, (9, 10, 3), np.uint8)
SMALL_IMAGES = {"image_side": 9, "channels": (4,), "kernels": (3,), "strides": (2,)}
ODD = gym.Dict({"action": BOX, "place": gym.Discrete(5, start=-2), "bits": gym.MultiBinary((2, 3)), "far": FAR})
JOINT = gym.Dict({"observation": BOX, "joint_observation": gym.Box(-1, 1, (8,))})
GRID = gym.Dict({"image": gym.Box(0, 10, (7, 7, 3), np.uint8), "direction": gym.Discrete(4)})
THREE = gym.Discrete(3, start=4)
PAIR = gym.MultiDiscrete([3, 2])
TEAM = team_spaces().observation, team_spaces().action, True
ARM = gym.Box(np.array([-2, 0], np.float32), np.array([2, 7], np.float32))
WIDE = gym.Box(-3, 1e6, (1, 2), np.float64)


class Cell(nn.Module):
    """A user's recurrent layer, whose state has another size than its output."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.state = {"trace": 5}
        self.mix, self.out = nn.Linear(inputs + 5, 5), nn.Linear(5, units)

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        trace = torch.tanh(self.mix(torch.cat([x, state["trace"]], 1)))
        return self.out(trace), {"trace": trace}


class Critics(nn.Linear):
    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.cat([obs, action], 1)).t()


class Squashed(nn.Module):
    """A whole model of SAC."""

    def __init__(self, spaces: mc.Spaces) -> None:
        super().__init__()
        self.policy, self.critics = nn.Linear(4, 4), Critics(6, 2)


# By name: the algorithm and the arguments of Spaces
KINDS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "dqn": (mc.DQN(hidden=(16, 16)), (BOX, THREE)),
    "dqn of joint actions": (mc.DQN(hidden=(16, 16), dueling=False), (ODD, PAIR, True)),
    "dqn of bits": (mc.DQN(hidden=(16, 16), layer_norm=True), (BOX, gym.MultiBinary(3))),
    "iqn": (mc.IQN(hidden=(16, 16), **SMALL_IMAGES), (IMAGE, THREE, True, 3)),
    "ppo": (mc.PPO(initialization="default"), (ODD, THREE, True)),
    "ppo of a box": (mc.PPO(), (BOX, ARM)),
    "ppo of a box without bounds": (mc.PPO(), (FAR, gym.Box(-np.inf, np.inf, (2,)))),
    "ppo of bits": (mc.PPO(), (FAR, gym.MultiBinary((2, 2)))),
    "ppo with a transformer": (mc.PPO(network=EntityTransformer), (FAR, PAIR)),
    "ppo with a whole model": (mc.PPO(network=SharedTorso), (BOX, gym.Discrete(3))),
    "mappo": (mc.MAPPO(), (JOINT, PAIR)),
    "recurrentppo": (mc.RecurrentPPO(cell="gru", units=8), (ODD, PAIR, True)),
    "recurrentppo of a box": (mc.RecurrentPPO(units=8), (BOX, ARM)),
    "r2d2": (mc.R2D2(units=8, hidden=(8, 8)), (BOX, THREE, True)),
    "r2d2 with a cell": (mc.R2D2(units=8, hidden=(8, 8), cell=Cell, network=GridTorso), (GRID, gym.Discrete(3))),
    "td3": (mc.TD3(hidden=(16,)), (ODD, ARM)),
    "td3 in float64": (mc.TD3(hidden=(16,)), (BOX, WIDE)),
    "sac": (mc.SAC(hidden=(16,)), (BOX, ARM)),
    "td3 with memory": (mc.TD3(hidden=(8,), units=8, cell="gru"), (ODD, ARM)),
    "sac with memory": (mc.SAC(hidden=(8,), units=8, cell="lstm"), (BOX, WIDE)),
    "matd3 with memory": (mc.MATD3(hidden=(8,), units=8, cell="lstm"), TEAM),
    "vdn": (mc.VDN(hidden=(16, 16)), (TEAM[0]["observation"], *TEAM[1:])),
    "vdn with memory": (mc.VDN(hidden=(8, 8), units=8, cell="gru", shared=False), TEAM),
    "qmix with memory": (mc.QMIX(hidden=(8, 8), units=8, cell="lstm"), TEAM),
    "qmix": (mc.QMIX(hidden=(16, 16)), TEAM[:2]),
    "matd3": (mc.MATD3(hidden=(16,)), TEAM),
    "happo": (mc.HAPPO(hidden=(16,)), TEAM),
    "coma": (mc.COMA(hidden=(16,)), TEAM),
    "sac with a whole model": (mc.SAC(network=Squashed), (BOX, ARM)),
}

QUICK = ("dqn of joint actions", "iqn", "mappo", "ppo", "recurrentppo", "r2d2 with a cell", "sac", "td3")


def policy_of(kind: str, normalized: bool = True) -> LoadedPolicy:
    algorithm, arguments = KINDS[kind]
    spaces = mc.Spaces(*arguments)
    torch.manual_seed(1)
    norm = None
    if normalized:
        norm = Normalizer(spaces)
        parts = {part.name: 3 + 2 * torch.randn(64, *part.field.shape) for part in spaces.parts}
        norm.update(in_form(parts, spaces.obs))
    model = algorithm.make_model(spaces)
    return LoadedPolicy(algorithm, PolicyModel(model, norm), spaces, "repeat", {})


# In a process of its own, since onnxruntime keeps files of the user's home directory open
RUNTIME = """
import os, sys
os.environ["HOME"] = sys.argv[1]
import numpy as np, onnxruntime
onnxruntime.disable_telemetry_events()
for line in sys.stdin:
    if path := line.strip():
        session, folder = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]), os.path.dirname(path)
        names = [output.name for output in session.get_outputs()]
        print(*sorted(given.name for given in session.get_inputs()), flush=True)
        continue
    outputs = session.run(None, dict(np.load(folder + "/inputs.npz")))
    np.savez(folder + "/outputs.npz", **dict(zip(names, outputs)))
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def runtime(request: pytest.FixtureRequest, tmp_path_factory: Any, lasting_program: Any) -> Iterator[Any]:
    """The process that runs the ONNX programs of all selected tests; None if none is selected or it cannot run.

    torch makes its table of ONNX's operations once: for each program, it would take half of a small one's time.
    """
    selected = [item.name for item in request.session.items if item.path == request.path]
    if find_spec("onnxruntime") is None or not any(".onnx]" in name for name in selected):
        yield None
        return
    where = "torch.onnx._internal.exporter._registration.ONNXRegistry.from_torchlib"
    with mock.patch(where, staticmethod(cache(pkgutil.resolve_name(where)))):
        yield lasting_program(RUNTIME, args=[tmp_path_factory.mktemp("home")])


def by_onnx(path: Path, example: dict[str, Any], runtime: Any) -> Run:
    runtime.tell(str(path))
    assert runtime.line().split() == sorted(example)

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        np.savez(path.with_name("inputs.npz"), **inputs)
        runtime.tell()
        assert runtime.line() == "done"
        with np.load(path.with_name("outputs.npz")) as outputs:
            return dict(outputs)

    return run


def by_torch(path: Path, example: dict[str, Any], runtime: Any = None) -> Run:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".torch.jit.load")
        loaded = torch.jit.load(path)

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = loaded({name: torch.from_numpy(values) for name, values in inputs.items()})
        return {name: values.numpy() for name, values in outputs.items()}

    return run


FORMATS = {".onnx": by_onnx, ".pt": by_torch}


def sampled(part: Any, generator: np.random.Generator) -> Any:
    """Observations [EPISODES, STEPS, *shape] of a part of a space; floats also far from 0."""
    lead, field = (EPISODES, STEPS), part.field
    if field.numpy.kind == "f":
        return (3 + 2 * generator.standard_normal((*lead, *field.shape))).astype(field.numpy)
    part.space.seed(int(generator.integers(100)))
    return np.array([part.space.sample() for _ in range(EPISODES * STEPS)]).reshape(*lead, *field.shape)


def sampled_masks(spaces: mc.Spaces, generator: np.random.Generator) -> Any:
    """Masks [EPISODES, STEPS, choices], with something allowed in each component."""
    masks = generator.random((EPISODES, STEPS, spaces.choices)) < 0.5
    for allowed in np.split(masks, spaces.mask_starts[1:], -1):
        allowed[..., -1] |= ~allowed.any(-1)
    return masks


def acted(policy: LoadedPolicy, obs: dict[str, Any], mask: Any, rewards: Any) -> list[Any]:
    """The policy's actions in one episode of these observations and rewards [STEPS, ...]."""
    policy.reset()
    actions = []
    for i in range(STEPS):
        one = {name.removeprefix("observation__"): rows[i] for name, rows in obs.items()}  # of a team
        given = one if isinstance(policy.spaces.observation, gym.Dict) and len(one) > 1 else next(iter(one.values()))
        actions.append(policy.act(given, None if mask is None else mask[i], rewards[i - 1]))
    return actions


def stacked(rows: Any, step: int, stack: int) -> Any:
    """The newest frames [EPISODES, stack, ...], of which the first one is repeated."""
    return rows[:, np.arange(step - stack + 1, step + 1).clip(0)] if stack > 1 else rows[:, step]


# Each of whose ONNX programs has operations that no other one has: Mod, Conv, Greater, Softmax, Pad, GRU, and so on.
OF_ALL_OPERATIONS = "dqn of joint actions", "iqn", "ppo", "recurrentppo", "r2d2 with a cell", "sac", "ppo of bits"
OF_ALL_OPERATIONS += "ppo with a transformer", "vdn with memory"
PROGRAMS = [*product(KINDS, [".pt"]), *product(OF_ALL_OPERATIONS, [".onnx"])]


@pytest.mark.parametrize(("kind", "ending"), long_but([*product(QUICK, [".pt"])], PROGRAMS))
def test_a_program_acts_as_its_policy(kind: str, ending: str, tmp_path: Path, runtime: Any) -> None:
    """The program plays the episodes as one batch, the policy one after another."""
    policy, generator = policy_of(kind), np.random.default_rng(0)
    if ending == ".onnx":
        needs_onnx("onnxruntime")
    example = policy.export(tmp_path / f"p{ending}")
    spaces, run = policy.spaces, FORMATS[ending](tmp_path / f"p{ending}", example, runtime)
    values = {part.name: sampled(part, generator) for part in spaces.parts if part.name != "joint_observation"}
    masks = sampled_masks(spaces, generator) if spaces.masked else [None] * EPISODES
    rewards = generator.standard_normal((EPISODES, STEPS))
    episodes = [
        acted(policy, {name: rows[i] for name, rows in values.items()}, masks[i], rewards[i]) for i in range(EPISODES)
    ]
    state = {name: values.repeat(EPISODES, 0) for name, values in example.items() if name.startswith("state_")}
    assert bool(state) == (getattr(KINDS[kind][0], "cell", None) is not None)
    for step, expected in enumerate(zip(*episodes, strict=True)):
        frames = {name: stacked(rows, step, spaces.stack) for name, rows in values.items()}
        inputs = {"obs" if name == "observation" else f"obs_{name}": rows for name, rows in frames.items()}
        if spaces.masked:
            inputs["action_mask"] = masks[:, step]
        assert {name: rows.shape[1:] for name, rows in (inputs | state).items()} == {
            name: rows.shape[1:] for name, rows in example.items()
        }
        outputs = run({**inputs, **state})
        action = outputs.pop("action")
        state = {name.removeprefix("next_"): rows for name, rows in outputs.items()}
        if state:
            state["state_previous_reward"] = rewards[:, step].astype(np.float32)
        assert action.dtype == spaces.action_field.numpy
        exact = action.dtype.kind != "f"
        np.testing.assert_allclose(action, np.stack(expected), rtol=0 if exact else 1e-4, atol=0 if exact else 1e-4)


PAIR_OF_BOXES = [gym.Box(-1, 1, (2,)), gym.Box(2, 3, (1,))]
INSIDE = gym.Dict([("z", PAIR_OF_BOXES[0]), ("b", gym.Tuple(PAIR_OF_BOXES)), ("a", PAIR_OF_BOXES[1])])
ODD_SPACES: dict[str, gym.Space] = {
    "unsorted": gym.Dict([("observed", PAIR_OF_BOXES[0]), ("more", PAIR_OF_BOXES[1])]),
    "tuple": gym.Tuple([gym.Discrete(4, start=-1), *PAIR_OF_BOXES, gym.MultiBinary(3)]),
    "nested": gym.Dict([("y", gym.Tuple([INSIDE, gym.Box(0, 1, (0,))])), ("x", INSIDE), ("t", gym.Text(3))]),
    "keys": gym.Dict([(key, BOX) for key in (10, 2, "a/c", "a.b", 1.5, "10 1", "class")]),
    "joint": gym.Dict([("z", BOX), ("joint_observation", BOX), ("a", BOX)]),
    "as critics see": gym.Dict([("observation", BOX), ("joint_observation", BOX)]),
    "masked": gym.Dict([("z", PAIR_OF_BOXES[0]), ("action_mask", gym.MultiBinary(3)), ("a", PAIR_OF_BOXES[1])]),
}


# What the other spaces show, the order of the parts and what is hidden, is decided before a format writes the program.
ODD_PROGRAMS = [*product(ODD_SPACES, [".pt"]), *product(["nested", "keys", "masked"], [".onnx"])]


@pytest.mark.parametrize(("name", "ending"), long_but([*product(ODD_SPACES, [".pt"])], ODD_PROGRAMS))
def test_loaders_and_programs_act_as_the_saved_policy(name: str, ending: str, tmp_path: Path, runtime: Any) -> None:
    space, config = ODD_SPACES[name], mc.Config()
    spaces = AgentView.of("agent_0", space, gym.Discrete(3)).spaces
    torch.manual_seed(0)
    assigned = AssignedPolicy("agent_0", ("agent_0",), spaces, mc.DQN(hidden=(16, 16)))
    model = build_model(assigned, config)
    for parameter in model.acting.parameters():
        nn.init.normal_(parameter)  # so that every part of an observation matters
    (tmp_path / "checkpoints").mkdir()
    save_policies(tmp_path, print, (assigned,), config)
    save_checkpoint(checkpoint_path(tmp_path, "agent_0"), {"acting": model.acting.state_dict(), "version": 1})
    saved = LoadedPolicy(assigned.algorithm, model.acting, spaces, "repeat", {})
    loaded = [mc.load_policy(tmp_path, "agent_0", weights_only=alone) for alone in (False, True)]
    run = FORMATS[ending](tmp_path / f"p{ending}", loaded[1].export(tmp_path / f"p{ending}"), runtime)
    space.seed(0)
    for _ in range(20):
        obs = space.sample()
        if spaces.masked:
            obs["action_mask"][0] = 1
        action = saved.act(obs)
        assert [policy.act(obs) for policy in loaded] == [action, action]
        values = {part.name: np.asarray(part.of(obs))[None] for part in spaces.parts}
        inputs = {"obs" if key == "observation" else f"obs_{key}": value for key, value in values.items()}
        inputs |= {"action_mask": obs["action_mask"][None].astype(bool)} if spaces.masked else {}
        assert run(inputs)["action"].tolist() == [action]


def needs_onnx(*further: str) -> None:
    for package in ("onnx", "onnxscript", *further):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install onnx onnxscript onnxruntime")


class Silent(mc.DQN):
    def act(self, model: Any, obs: Any, **request: Any) -> mc.Action:
        return mc.Action(np.full(len(obs), 7))


class ByNumPy(nn.Module):
    """A network that torch cannot trace."""

    def __init__(self, spaces: mc.Spaces) -> None:
        super().__init__()

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(obs.numpy() + 1)


def refused(algorithm: Any, file: str = "p.pt", model: Any = None) -> Callable[[], object]:
    spaces = mc.Spaces(BOX, gym.Discrete(3))
    made = model or algorithm.make_model(spaces)
    policy = LoadedPolicy(algorithm, PolicyModel(made), spaces, "repeat", {})
    return lambda: policy.export(file)


NO_NETWORK = "export: expected a network that torch can export, for batches of any length, got "
REFUSED: dict[str, Refused] = {
    "ending": (refused(mc.DQN(), "p.h5"), "export: expected a file named .onnx or .pt, got 'p.h5'"),
    "directory": (refused(mc.DQN(), "no/p.pt"), "export: expected a file in an existing directory, got 'no/p.pt'"),
    "algorithm": (refused(object(), model=nn.Identity()), "export: expected an algorithm with a method greedy, got"),
    "act": (refused(Silent()), "export: expected a method greedy of Silent that returns the actions of act"),
    "network": (refused(mc.DQN(network=ByNumPy, hidden=(4,))), NO_NETWORK),
    "packages": (refused(mc.DQN(), "p.onnx"), ImportError, "export: ONNX needs onnx and onnxscript, try: pip install"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    check_row(REFUSED[case])
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_parts_of_each_trainer_are_documented(name: str) -> None:
    algorithm, spaces = SMALL[name]
    assert {*algorithm.make_trainer(algorithm.make_model(spaces)).state_dict()} <= {*re.findall(r"`(\w+)`", LAYOUT)}


def test_the_command_line_writes_a_program(tmp_path: Path, capsys: Any, undrawn: None) -> None:
    run, file = tmp_path / "run", tmp_path / "p.pt"
    recurrent = mc.R2D2(units=8, length=8, burn_in=2, period=6)
    Runs(total_steps=150, learner={"obs_norm": "running"}).train(tmp_path, "gymnasium:CartPole-v1", recurrent)
    capsys.readouterr()
    assert main(["export", str(run), "--policy", "agent_0", "--file", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "obs\tfloat32\t[B, 4]" and "state_hidden\tfloat32\t[B, 8]" in lines
    policy = mc.load_policy(run, "agent_0")
    inputs = policy.export(file)
    outputs = by_torch(file, inputs)(inputs)
    assert outputs["action"].tolist() == [policy.act(inputs["obs"][0])]
    assert main(["export", str(run), "--policy", "agent_1", "--file", str(file)]) == 2
    assert capsys.readouterr().err == "marlcore: policy: expected one of ['agent_0'], got 'agent_1'\n"
