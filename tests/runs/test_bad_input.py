"""Bad input to a run is refused in one line that names it, if possible before anything starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from crowd import Crowd
from gymnasium import spaces as gym
from odd_spaces import Counting

import marlcore as mc

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

CONFIG = mc.Config(
    total_steps=400,
    mode="serial",
    actor=mc.ActorConfig(envs=2),
    learner=mc.LearnerConfig(batch_size=8, warmup=20, device="cpu"),
)


def train(tmp_path: Path, env_fn: Any, algorithm: Any = "dqn", config: mc.Config = CONFIG, **options: Any) -> Any:
    return mc.train(env_fn, algorithm, replace(config, run_dir=str(tmp_path / "run")), progress=False, **options)


class Corridor(gymnasium.Env[Any, Any]):
    """Five steps to the end; the third step returns what it was told to."""

    observation_space = gym.Box(0, 5, (2,), np.float32)
    action_space = gym.Discrete(2)

    def __init__(self, **told: Any) -> None:
        self.told = told

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.at = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        told = self.told if self.at == 3 else {}
        if "error" in told:
            raise told["error"]("door")
        return told.get("obs", np.full(2, self.at, np.float32)), told.get("reward", 1.0), self.at == 5, False, {}


class Masked(Corridor):
    """Its third mask allows nothing, or has another length."""

    observation_space = gym.Dict(
        {"observation": Corridor.observation_space, "action_mask": gym.Box(0, 1, (2,), np.int8)}
    )

    def reset(self, **options: Any) -> Any:
        return {"observation": super().reset()[0], "action_mask": np.ones(2, np.int8)}, {}

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return {"observation": obs, "action_mask": self.told["mask"] if self.at == 3 else np.ones(2, np.int8)}, *rest


WHILE_IT_RUNS = {
    "an observation of another shape": (Corridor(obs=np.zeros(3, np.float32)), "obs: expected float32 (2,), got shape"),
    "an observation of another dtype": (Corridor(obs=np.zeros(2, complex)), "obs: expected float32 (2,), got dtype"),
    "an observation of nothing": (Corridor(obs=None), "obs: expected float32 (2,), got"),
    "an observation that is NaN": (Corridor(obs=np.array([0, np.nan], np.float32)), "obs: expected finite numbers"),
    "a reward that is NaN": (Corridor(reward=float("nan")), "reward: expected a finite number of float32, got nan"),
    "a reward that is infinite": (Corridor(reward=np.inf), "reward: expected a finite number of float32, got inf"),
    "a reward of nothing": (Corridor(reward=None), "reward: expected a number, got None"),
    "an environment that raises": (Corridor(error=KeyError), "environment copy 0, agent_0: KeyError: 'door'"),
    "a mask that allows nothing": (Masked(mask=np.zeros(2, np.int8)), "action_mask: expected an allowed action, got"),
    "a mask of another length": (Masked(mask=np.ones(3, np.int8)), "action_mask: expected bool (2,), got"),
}  # fmt: skip


@pytest.mark.parametrize("case", WHILE_IT_RUNS)
def test_what_an_environment_must_not_say_names_copy_and_agent(tmp_path: Path, case: str) -> None:
    env, message = WHILE_IT_RUNS[case]
    with pytest.raises(mc.WorkerFailed) as caught:
        train(tmp_path, partial(type(env), **env.told))
    assert caught.value.reason == "environment"
    last = caught.value.traceback.strip().splitlines()[-1]
    assert "environment copy 0" in last and message in last, last
    assert "agent_0" in last


def space_of(observation: Any = None, action: Any = None) -> Any:
    env = Counting(action)
    if observation is not None:
        env.observation_space = observation
    return env


def asked(**changes: Any) -> mc.Config:
    return replace(CONFIG, **changes)


def no_number(count: int) -> Any:
    return "half"


NESTED = gym.Dict({"a": gym.Box(0, 1), "b": gym.Sequence(gym.Discrete(3))})
BEFORE = {
    "an observation space": (
        lambda: {"env_fn": partial(space_of, NESTED)},
        "agent_0: observation space['b']: expected a Box, Discrete, MultiBinary, MultiDiscrete, or a Dict or Tuple",
    ),
    "an action space": (
        lambda: {"env_fn": partial(space_of, None, gym.Tuple([gym.Discrete(2)]))},
        "agent_0: action space: expected a Box, Discrete, MultiBinary or MultiDiscrete, got Tuple",
    ),
    "an action space for the algorithm": (
        lambda: {"env_fn": "gymnasium:Pendulum-v1"}, "DQN: expected a Discrete, MultiDiscrete or MultiBinary",
    ),
    "a discrete action space for a continuous algorithm": (
        lambda: {"env_fn": "gymnasium:CartPole-v1", "algorithm": "td3"},
        "TD3: expected a Box of floats as the action space, got Discrete(2)",
    ),
    "an action space without bounds": (
        lambda: {"env_fn": partial(space_of, None, gym.Box(-np.inf, np.inf, (2,))), "algorithm": "sac"},
        "SAC: expected an action space with finite bounds, got Box(-inf, inf, (2,), float32)",
    ),
    "an agent of the policies": (
        lambda: {"config": asked(policies={"agent_0": "a", "agnt_1": "a"})},
        "policies: expected agents of the environment, got 'agnt_1'; did you mean agent_1?",
    ),
    "an agent without a policy": (
        lambda: {"config": asked(policies={"agent_0": "a"})},
        "policies: expected a policy for each agent, got none for 'agent_1'",
    ),
    "a policy of the algorithms": (
        lambda: {"algorithm": {"agent_0": "dqn", "agent_1": "dqn", "agent_2": "iqn"}},
        "algorithm: expected the policies ['agent_0', 'agent_1'], got 'agent_2'",
    ),
    "a policy of the learners": (
        lambda: {"config": asked(learners={"agent_7": mc.LearnerConfig()})},
        "learners: expected the policies ['agent_0', 'agent_1'], got 'agent_7'",
    ),
    "learners of another kind": (lambda: {"config": asked(learners=5)}, "learners: expected a dict, got 5"),
    "policies of another kind": (
        lambda: {"config": asked(policies=5)}, "policies: expected the policy of each agent, got 5",
    ),
    "a schedule without a number": (
        lambda: {"config": asked(exploration=mc.ExplorationConfig(schedules={"heat": no_number}))},
        "at 0: expected a finite number, got 'half'",
    ),
    "an epsilon without a number": (
        lambda: {"config": asked(exploration=mc.ExplorationConfig(epsilon=no_number))},
        "at 0: expected a finite number, got 'half'",
    ),
    "an epsilon that is no probability": (
        lambda: {"config": asked(exploration=mc.ExplorationConfig(epsilon=1.5))}, "epsilon: expected a probability",
    ),
    "a directory for replays": (
        lambda: {"config": asked(replay=mc.ReplayConfig(path="/nowhere"))},
        "path: expected an existing directory, got '/nowhere'",
    ),
    "a way to normalize": (
        lambda: {"config": asked(learner=mc.LearnerConfig(obs_norm="always"))},
        "obs_norm: expected off, frozen or running, got 'always'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["serial", "async"])
@pytest.mark.parametrize("case", BEFORE)
def test_what_cannot_run_is_refused_before_it_starts(tmp_path: Path, case: str, mode: Any) -> None:
    given, message = BEFORE[case]
    with pytest.raises((ValueError, TypeError)) as caught:
        options = {"env_fn": partial(Crowd, 2), **given()}
        options["config"] = replace(options.get("config", CONFIG), mode=mode)
        train(tmp_path, **options)
    assert message in str(caught.value) and "\n" not in str(caught.value), caught.value
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("total_stps: 5", "unknown setting total_stps; did you mean total_steps?"),
        ("learner: {batchsize: 5}", "unknown setting learner.batchsize; did you mean learner.batch_size?"),
        ("learners: {a: {gama: 0.5}}", "unknown setting learners.a.gama; did you mean learners.a.gamma?"),
        ("algo: dqn\nalgorithm: {hiden: [3]}", "unknown setting algorithm.hiden; did you mean algorithm.hidden?"),
        ("exploration: {epsilon: 'linaer(1, 0, 5)'}", "exploration.epsilon: expected a number or one of"),
        ("learner: 5", "learner: expected settings by name, got 5"),
        ("learner: {gamma: high}", "learner.gamma: expected a number from 0 to 1, got 'high'"),
        ("learner: [", "config: expected a YAML file"),
        ("- 5", "settings: expected settings by name, got [5]"),
        ("learners: 5", "learners: expected settings by policy, got 5"),
        ("policies: 5", "policies: expected the policy of each agent, got 5"),
    ],
)
@pytest.mark.long
def test_a_typo_in_a_settings_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    command = [sys.executable, "-m", "marlcore", "train", "--settings", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=1800)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_is_resumed_only_as_it_was(tmp_path: Path) -> None:
    """Another algorithm, other policies, or checkpoints of another model; the run stays as it is."""
    result = train(tmp_path, partial(Crowd, 2))
    more = replace(CONFIG, total_steps=800)
    resume = partial(train, tmp_path, partial(Crowd, 2), resume=result.run_dir)
    with pytest.raises(ValueError, match="resume: expected algorithm 'DQN', as the run had it, got 'IQN'"):
        resume("iqn", more)
    with pytest.raises(ValueError, match="resume: expected policies None, as the run had it, got"):
        resume("dqn", replace(more, policies={"agent_0": "one", "agent_1": "one"}))
    other = mc.train(
        partial(Crowd, 2), mc.DQN(hidden=(16, 8)), replace(CONFIG, run_dir=str(tmp_path / "other")), progress=False
    )
    saved = (result.run_dir / "checkpoints" / "agent_1.pt").read_bytes()
    shutil.copy(other.run_dir / "checkpoints" / "agent_1.pt", result.run_dir / "checkpoints" / "agent_1.pt")
    with pytest.raises(ValueError, match=r"resume: expected a checkpoint of agent_1's DQN, got .*agent_1.pt") as caught:
        resume("dqn", more)
    assert "\n" not in str(caught.value)
    (result.run_dir / "checkpoints" / "agent_1.pt").write_bytes(saved)
    assert resume("dqn", more).steps >= 800
