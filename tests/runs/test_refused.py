"""A run that is not possible is refused in one line, before it starts: by `mc.train`, the settings and the command."""

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from arena import Arena, Marking
from crowd import Corridor, Crowd, RockPaperScissors
from gymnasium import spaces as gym
from odd_spaces import Counting
from refused import Refused, check_refused, refusals
from whole_runs import Runs

import marlcore as mc
from marlcore.__main__ import main

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

runs = Runs(mode="async", total_steps=400, actor=mc.ActorConfig(envs=2), learner={"warmup": 20, "n_step": 1})
PAIR, ARENA = partial(Crowd, 2), partial(Arena, Path())
PLAY = {"pool": 4, "admit_updates": 10}
train = runs.train
not_callable = 5


def negative(rates: Any, games: Any) -> Any:
    """A way to draw opponents that returns no odds."""
    return (-rates).tolist()


def no_number(count: int) -> Any:
    return "half"


def played(env_fn: Any = PAIR, **changes: Any) -> dict[str, Any]:
    """A run of self-play; settings of the pool, and of the run by their own names."""
    algorithm = Marking() if "Arena" in repr(env_fn) else "dqn"
    settings = {name: changes.pop(name) for name in ("side", "anchors", "draw", "roles") if name in changes}
    return {"env_fn": env_fn, "algorithm": algorithm, "self_play": mc.SelfPlayConfig(**PLAY, **settings), **changes}


def held_by(lock: Any) -> Callable[[int], float]:
    return lambda count: bool(lock) / 2


class Locked(mc.PPO):
    def __reduce__(self) -> Any:
        raise TypeError("locked")


class Half(mc.Algorithm):
    def make_model(self, spaces: Any) -> Any: ...


class Odd(mc.PPO):
    def source(self, chosen: Any) -> Any:
        return "queue"


class Taken(mc.DQN):
    def transition(self, spaces: mc.Spaces) -> mc.TransitionSpec:
        return replace(super().transition(spaces), extras={"discounted_return": mc.Field()})


CARTPOLE = "gymnasium:CartPole-v1"
ALGORITHM = "algorithm: expected an Algorithm, such as marlcore.DQN(), or its name"
# What `mc.train` says, and what it was asked.
RUNS: dict[str, Callable[[], dict[str, Any]]] = {
    "observation space: expected a Tuple of 1 parts, like the action space, got Dict": lambda: {
        "env_fn": partial(Counting, gym.Tuple([gym.Discrete(2)]))
    },
    "DQN: expected a Discrete, MultiDiscrete or MultiBinary": lambda: {"env_fn": "gymnasium:Pendulum-v1"},
    "env_fn: expected a function ": lambda: {"env_fn": None},
    f"{ALGORITHM}, got the class DQN": lambda: {"algorithm": mc.DQN},
    f"{ALGORITHM}, got <crowd.Corridor object": lambda: {"algorithm": Corridor()},
    "ratios.agent_0: expected a number in serial mode": lambda: {"mode": "serial", "ratios": {"agent_0": None}},
    "policies: expected agents of the environment, got 'agnt_1'; did you mean agent_1?": lambda: {
        "policies": {"agent_0": "a", "agnt_1": "a"}
    },
    "policies: expected a policy for each agent, got none for 'agent_1'": lambda: {"policies": {"agent_0": "a"}},
    "algorithm: expected the policies ['agent_0', 'agent_1'], got 'agent_2'": lambda: {
        "algorithm": {"agent_0": "dqn", "agent_1": "dqn", "agent_2": "iqn"}
    },
    "learners: expected the policies ['agent_0', 'agent_1'], got 'agent_7'": lambda: {
        "learners": {"agent_7": mc.LearnerConfig()}
    },
    "learners: expected a dict, got 5": lambda: {"learners": 5},
    "policies: expected the policy of each agent, got 5": lambda: {"policies": 5},
    "' at 0: expected a finite number, got 'half'": lambda: {"exploration": {"schedules": {"heat": no_number}}},
    "config: expected something that can be pickled, got Config(": lambda: {
        "exploration": {"epsilon": held_by(threading.Lock())}
    },
    "Can't instantiate abstract class Half": lambda: {"algorithm": Half()},
    "algorithm: expected something that can be pickled, got": lambda: {
        "env_fn": CARTPOLE, "algorithm": Locked(), "learner": mc.LearnerConfig()
    },
    "learning_rate: expected a number or one of": lambda: {
        "env_fn": CARTPOLE, "algorithm": mc.PPO(learning_rate="slowly"), "learner": mc.LearnerConfig()
    },
    "path: expected an existing directory, got '/nowhere'": lambda: {"replay": {"path": "/nowhere"}},
    "replay.path: expected a durable file on bcachefs": lambda: {"replay": {"path": "/dev/shm", "durable": True}},
    "bytes asked for": lambda: {"replay": {"capacity": 2**32 - 1}},
    "replay.capacity: expected at least 320, so that a lane holds a whole window's rows": lambda: {
        "env_fn": "recall", "algorithm": mc.R2D2(length=63, burn_in=9, period=40), "replay": {"capacity": 300}
    },
    "source of agent_0: expected a ReplaySource or a QueueSource, got 'queue'": lambda: {
        "env_fn": CARTPOLE, "algorithm": Odd(), "learner": mc.LearnerConfig(), "total_steps": 300_000
    },
    "transition of agent_0: expected no extra 'discounted_return', which learner.reward_norm stores": lambda: {
        "algorithm": Taken(), "learner": {"reward_norm": "running"}
    },
    "policies: expected the team 'team' in place of its member, got": lambda: {
        "algorithm": "vdn", "policies": {"agent_0": "a"}
    },
    "exploration.script: expected None for 'agent_0', since a script cannot compute ": lambda: {
        "env_fn": "recall", "algorithm": "r2d2", "exploration": {"script": "arena:weak"}
    },
    "exploration.script: expected a function of an observation, or a class or object with a method act": lambda: {
        "exploration": {"script": "test_refused:not_callable"}
    },
    "self_play: expected an environment of two or more agents, got ['agent_0']": lambda: played(CARTPOLE),
    "self_play: expected agents of one policy to have equal spaces": lambda: played(
        "pettingzoo-parallel:mpe2.simple_adversary_v3"
    ),
    "a joint critic for each policy of this league, got PPO for 'rival'": lambda: played(
        RockPaperScissors, algorithm={"main": mc.MAPPO(), "rival": mc.PPO()},
        roles={"main": "main", "rival": "main_exploiter"}, learner=mc.LearnerConfig(), replay=mc.ReplayConfig(),
    ),
    "self_play: expected one policy for all agents, got {'agent_0': 'a', 'agent_1': 'b'}": lambda: played(
        policies={"agent_0": "a", "agent_1": "b"}
    ),
    "policies: expected None for self_play.roles, whose policies play every agent, got {'agent_0': 'a', ":
        lambda: played(policies={"agent_0": "a", "agent_1": "a"}, roles={"a": "main"}),
    "self_play.draw: expected a function that returns 2 odds of at least 0, not all 0, got [-0.5, -0.25]":
        lambda: played(draw="test_refused:negative"),
    "self_play.side: expected both or one of ['agent_0', 'agent_1'], got 'agent_2'": lambda: played(side="agent_2"),
    "self_play.anchors: expected something that can be imported, got 'arena:absent' "
    "(AttributeError: module 'arena' has no attribute 'absent')": lambda: played(anchors={"arena:absent": 0.5}),
    "anchor:not_callable: expected a function of an observation, or a class or object with a method act(obs), got 5":
        lambda: played(anchors={"test_refused:not_callable": 0.5}),
    "anchor:Crowd: expected a class with a method act(obs), got <class 'crowd.Crowd'>": lambda: played(
        anchors={"crowd:Crowd": 0.5}
    ),
    "self_play.anchors: expected a checkpoint, got '/nowhere/main.pt', which does not exist": lambda: played(
        anchors={"/nowhere/main.pt": 0.5}
    ),
    "self_play: tag: expected one of replay.mixture's names ['anchor', 'boss'], got 'pool:latest'": lambda: played(
        replay={"mixture": {"anchor": 0.5, "boss": 0.5}}
    ),
    "self_play: tag: expected one of replay.mixture's names ['pool'], got 'anchor:weak'": lambda: played(
        ARENA, replay={"mixture": {"pool": 1.0}}, anchors={"arena:weak": 0.5}
    ),
    "evaluation.episodes: expected at least 4, one on each side against each anchor and the pool, got 3":
        lambda: played(ARENA, evaluation={"interval": 100, "episodes": 3}, anchors={"arena:weak": 0.5}),
    "learner.warmup: expected at most a replay's 16 rows (replay.capacity), got 20": lambda: played(
        replay={"capacity": 23, "mixture": {"pool": 0.5, "anchor": 0.5}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_train_refuses(tmp_path: Path, mode: str, subtests: pytest.Subtests) -> None:
    errors: Any = (ValueError, TypeError, mc.SharedMemoryFull)

    def ask(asked: Callable[[], dict[str, Any]]) -> object:
        return train(tmp_path, **{"env_fn": PAIR, "mode": mode, **asked()})

    for says, asked in RUNS.items():
        with subtests.test(says):
            check_refused(partial(ask, asked), errors, says)
            assert list(tmp_path.iterdir()) == []


LEARNER = "learner: expected a LearnerConfig, got "
SETTINGS: dict[str, Refused] = {
    **{
        f"device {device}": (partial(mc.ActorConfig, device=device), f"device: expected {expected}, got {device}")
        for device, expected in (
            (("cpu", "cuda:0"), "no more devices than 1 processes"),
            ((), "a device, or a tuple of devices"),
            (("cpu", 1), "a device, or a tuple of devices"),
        )
    },
    "a dict as a part": (lambda: mc.Config(learner={"gamma": 0.9}), TypeError, LEARNER),
    "a number as a part": (lambda: mc.Config(learner=3), TypeError, LEARNER),
    "another part": (lambda: mc.Config(actor=mc.LearnerConfig()), TypeError, "actor: expected an ActorConfig, got "),
    "a dict as the configuration": (
        lambda: mc.train(Corridor, "dqn", {"total_steps": 100}), TypeError,
        "config: expected a Config or None, got {'total_steps': 100}",
    ),
    **{
        f"a schedule called {name}": (
            partial(mc.ExplorationConfig, schedules={name: 0.5}), ValueError,
            f"schedules: '{name}' is the name of a number",
        )
        for name in ("updates", "step", "epsilon", "stage")
    },
    **{
        f"shares {shares}": (
            partial(mc.ReplayConfig, mixture=shares), ValueError,
            f"mixture: expected numbers of at least 0 whose sum is 1, got {shares}",
        )
        for shares in ({"pool": 0.5}, {"pool": 1.5, "anchor": -0.5}, {"pool": "all"})
    },
}  # fmt: skip
test_the_configuration_refuses = refusals(SETTINGS)


def with_vmas(call: Callable[[], object]) -> Callable[[], object]:
    """The call beside a VMAS whose agents observe dicts."""

    def make_env(*_: Any, **__: Any) -> Any:
        spaces = {"observation_space": [{"place": gym.Box(0, 1)}], "action_space": [gym.Discrete(2)]}
        return SimpleNamespace(agents=[SimpleNamespace(name="a")], reset=lambda seed: [], **spaces)

    def called() -> object:
        with patch.dict(sys.modules, vmas=SimpleNamespace(make_env=make_env)):
            return call()

    return called


GAMMAS = mc.PopulationConfig(size=2, settings={"learner.gamma": mc.Uniform(0.9, 0.99)})
OF_PAGES: dict[str, Refused] = {  # what the pages say is refused, and no other test refuses
    "guides/populations.md": (
        lambda: mc.train_population(PAIR, "dqn", mc.Config(self_play=mc.SelfPlayConfig(**PLAY)), GAMMAS), ValueError,
        "self_play.pool: expected 0 in a population",
    ),
    "cluster.md": (
        lambda: mc.train_offline(None, "dqn", 5, CARTPOLE, mc.Config(cluster=mc.ClusterConfig(address="auto"))),
        ValueError, "cluster.address: expected None, since a run on recorded data",
    ),
    "environments.md, dicts": (
        with_vmas(lambda: mc.train("vmas:dicts", "dqn")), mc.EnvironmentFailed,
        "env_fn: ValueError: vmas: expected Box, Discrete or MultiDiscrete spaces, got {'place': ",
    ),
}  # fmt: skip
test_what_the_pages_say_is_refused = refusals(OF_PAGES)


OPTIONS = {
    "--env CartPole-v1": "got 'CartPole-v1'; did you mean gymnasium:CartPole-v1?",
    "--env json:dumps": "environment: 'json:dumps': dumps() missing 1 required",
    "--replay.capacity 2": "replay.capacity: expected at least 16, so that a lane holds stack + n_step = 1 + 3",
    "--replay.stack 50000": "replay.capacity: expected at least 200012, so that a lane holds stack + n_step",
    "--learner.device cuda:99": "learner.device, actor.device: expected a device that is here, got 'cuda:99'",
    "--learner.device meta --learner.engine compiled": "learner.device: expected cpu for learner.engine compiled",
    "--actor.device meta --learner.device cpu --learner.engine compiled": "actor.device: expected cpu for learner.eng",
    "--exploration.epsilon exponential(1,0.1,rate=1.05)": "exponential rate: expected one that does not lead away",
    "--run-dir /proc/nothing/run": "run_dir: expected a writable place",
    "--resume nowhere": "resume: expected the directory of a run, got '/",
    "--resume": "resume",
    "--run-dir run": "which holds a run",
}
FILES = {
    "total_stps: 5": "unknown setting total_stps; did you mean total_steps?",
    "learner: {batchsize: 5}": "unknown setting learner.batchsize; did you mean learner.batch_size?",
    "learners: {a: {gama: 0.5}}": "unknown setting learners.a.gama; did you mean learners.a.gamma?",
    "algo: dqn\nalgorithm: {hiden: [3]}": "unknown setting algorithm.hiden; did you mean algorithm.hidden?",
    "exploration: {epsilon: 'linaer(1, 0, 5)'}": "exploration.epsilon: expected a number or one of",
    "learner: 5": "learner: expected settings by name, got 5",
    "learner: [": "settings: expected a YAML file",
    "run_dir: 2024-13-45": "settings.yaml' (month must be in 1..12",
    "learner.gamma: 0.5": "settings.yaml: learner.gamma: expected a name without a dot, in its section",
    "learners: {a: {b.c: 1}}": "settings.yaml: learners.a.b.c: expected a name without a dot, in its section",
    "learner: {learning_rate: 1}": "; did you mean algorithm.learning_rate?",
    "actor: {batch_size: 1}": "; did you mean learner.batch_size?",
    "algorithm: {gamma: 1}": "; did you mean learner.gamma?",
    "learners: 5": "learners: expected settings by policy, got 5",
}


@pytest.fixture
def complaint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """The one line that `marlcore train` with these arguments says, which changes no file."""
    monkeypatch.chdir(tmp_path)

    def train(*arguments: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        assert main(["train", *arguments]) == 2
        said, complaint = capsys.readouterr()
        assert said == "" and complaint.count("\n") == 1, complaint
        assert sorted(tmp_path.rglob("*")) == before
        return complaint

    return train


@pytest.mark.parametrize("options", OPTIONS)
def test_the_command_refuses(complaint: Callable[..., str], options: str) -> None:
    if options == "--run-dir run":
        Path("run").mkdir()
        Path("run/config.json").write_text("{}")
    assert OPTIONS[options] in complaint(*options.split())


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the parser, which main() shows nobody
@pytest.mark.parametrize(("text", "says"), FILES.items())
def test_a_settings_file_is_refused(complaint: Callable[..., str], text: str, says: str) -> None:
    Path("settings.yaml").write_text(text)
    assert says in complaint("--settings", "settings.yaml")


@pytest.mark.parametrize("text", ["[1]", '{"actor": 5}', '{"env": "treasure_hunt", "total_steps": "many"}'])
def test_a_damaged_configuration_is_refused(complaint: Callable[..., str], text: str) -> None:
    Path("run").mkdir()
    Path("run/config.json").write_text(text)
    said = complaint("--resume", "run")
    assert said.startswith("marlcore: resume: expected ") and "run' (" in said
