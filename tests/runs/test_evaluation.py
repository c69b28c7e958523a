"""Runs that evaluate their policies as they go on, and the evaluation of a run afterwards."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from PIL import Image

import marlcore as mc
from marlcore.__main__ import main
from marlcore.interfaces import Action
from marlcore.processes import PID
from marlcore.training import EVALUATOR, Run, read_metrics, start, supervised
from marlcore.training.after.loaded_policy import LoadedPolicy, load_policy
from marlcore.training.config import ActorConfig, LearnerConfig, ReplayConfig, SupervisionConfig
from marlcore.training.loops.model import ActingModel
from marlcore.training.record.checkpoints import load_checkpoint, save_checkpoint
from marlcore.training.record.run_directory import checkpoint_path

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

SMALL = mc.Config(
    total_steps=1_200,
    mode="serial",
    actor=ActorConfig(envs=2, sync_interval=10),
    learner=LearnerConfig(batch_size=16, warmup=50, publish_interval=5, log_interval=20, device="cpu"),
    replay=ReplayConfig(capacity=2_000),
    evaluation=mc.EvaluationConfig(interval=300, episodes=4, envs=3, keep=2),
)
DQN = mc.DQN(hidden=(16,))
AGENT = "agent_0"


class Corridor(gymnasium.Env):
    """A step to the right earns 1, one to the left nothing; an episode has 5 to 9 steps."""

    observation_space = gymnasium.spaces.Box(0.0, 10.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(5, 10))
        return self.seen(), {}

    def step(self, action: int) -> Any:
        self.left -= 1
        return self.seen(), float(action), self.left == 0, False, {"won": 1.0}

    def seen(self) -> np.ndarray:
        return np.array([self.left], np.float32)

    def render(self) -> np.ndarray:
        return np.full((8, 8, 3), 20 * self.left, np.uint8)


class Endless(Corridor):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left = 0
        return self.seen(), {}

    def step(self, action: int) -> Any:
        return self.seen(), 1.0, False, False, {}


def evaluations(run_dir: Path, name: str = "eval_return") -> list[tuple[int, float]]:
    """(step, value) of each."""
    return [(one.step, one.value) for one in read_metrics(run_dir / "metrics.csv") if one.name == name]


def learning(run_dir: Path) -> list[tuple[Any, ...]]:
    """What a run did, without its evaluations and times."""
    return [
        (one.step, one.agent, one.name, one.value)
        for one in read_metrics(run_dir / "metrics.csv")
        if not one.name.startswith("eval_") and not one.name.endswith("_per_s") and one.name != "waited_s"
    ]


def trained(path: Path, **changes: Any) -> Path:
    return mc.train(Corridor, DQN, replace(SMALL, run_dir=str(path), **changes), progress=False).run_dir


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run that has ended."""
    return trained(tmp_path_factory.mktemp("evaluated") / "run")


def test_a_serial_run_evaluates_at_its_interval_and_at_its_end(run_dir: Path, tmp_path: Path) -> None:
    """The same run gives the same evaluations, and learns as it does without them."""
    found = evaluations(run_dir)
    assert len(found) == 4 and found[-1][0] == 1_200
    assert all(due - 60 <= step <= due for due, (step, _) in zip((300, 600, 900), found, strict=False))
    again = trained(tmp_path / "again")
    for name in ("eval_return", "eval_length", "eval_return_std"):
        assert evaluations(again, name) == evaluations(run_dir, name)
    lengths = [value for _, value in evaluations(run_dir, "eval_length")]
    assert len(set(lengths)) > 1  # each evaluation has episodes of its own
    without = trained(tmp_path / "without", evaluation=mc.EvaluationConfig())
    assert learning(without) == learning(run_dir) and evaluations(without) == []


def test_the_best_and_the_last_policies_can_be_loaded(run_dir: Path) -> None:
    found = evaluations(run_dir)
    best = load_checkpoint(checkpoint_path(run_dir, AGENT, "best"))
    assert (best["step"], best["return"]) == max(found, key=lambda one: (one[1], -one[0]))
    names = sorted(path.name for path in (run_dir / "checkpoints").glob("*.*.pt"))
    assert names == sorted([*(f"{AGENT}.{step}.pt" for step, _ in found[-2:]), f"{AGENT}.best.pt"])
    for which in ("best", found[-1][0]):
        assert load_policy(run_dir, AGENT, str(which)).act(np.ones(1, np.float32)) in (0, 1)


def test_an_evaluation_repeats_under_its_seed(run_dir: Path) -> None:
    outcome, again = (mc.evaluate(run_dir, 10, envs=4, seed=3) for _ in range(2))
    assert outcome.returns[AGENT].tolist() == again.returns[AGENT].tolist()
    assert outcome.lengths[AGENT].tolist() != mc.evaluate(run_dir, 10, envs=4, seed=4).lengths[AGENT].tolist()
    assert outcome.infos == {AGENT: {"won": 1.0}} and outcome.episodes == 10
    assert set(outcome.lengths[AGENT]) <= {5, 6, 7, 8, 9}
    explored, again = (mc.evaluate(run_dir, 10, envs=4, seed=3, explore=True) for _ in range(2))
    assert explored.returns[AGENT].tolist() == again.returns[AGENT].tolist() != outcome.returns[AGENT].tolist()


class Right:
    """Always steps to the right."""

    def act(self, model: Any, obs: torch.Tensor, **_: Any) -> Action:
        return Action(np.ones(len(obs), np.int64))


class Walker:
    def act(self, obs: Any) -> int:
        return 1


def rightwards(obs: np.ndarray) -> int:
    assert obs.shape == (1,)
    return 1


class Locked(Walker):
    def __init__(self) -> None:
        self.lock = threading.Lock()


def outside(obs: np.ndarray) -> int:
    return 2


def test_other_policies_act_instead(run_dir: Path) -> None:
    spaces = load_policy(run_dir, AGENT).spaces
    right = LoadedPolicy(Right(), ActingModel(torch.nn.Identity(), None), spaces, "repeat", {})
    for player in (right, Walker(), Walker, rightwards, "test_evaluation:Walker", "test_evaluation:rightwards"):
        outcome = mc.evaluate(run_dir, 5, policies={AGENT: player})
        assert outcome.returns[AGENT].tolist() == outcome.lengths[AGENT].tolist()
    again = mc.evaluate(run_dir, 5, policies={AGENT: str(run_dir)})
    assert again.returns[AGENT].tolist() == mc.evaluate(run_dir, 5).returns[AGENT].tolist()
    with pytest.raises(ValueError, match=r"^policies: expected names among \['agent_0'\], got 'red'$"):
        mc.evaluate(run_dir, 5, policies={"red": right})


class Stacked(Corridor):
    stack = 3


def test_an_environments_own_stack_is_the_default(tmp_path: Path) -> None:
    config = replace(SMALL, total_steps=60, evaluation=mc.EvaluationConfig(), run_dir=str(tmp_path / "run"))
    run_dir = mc.train(Stacked, DQN, config, progress=False).run_dir
    assert load_policy(run_dir, AGENT).spaces.stack == Stacked.stack


def test_a_resumed_run_continues_its_best(tmp_path: Path) -> None:
    path = trained(tmp_path / "run")
    best = load_checkpoint(checkpoint_path(path, AGENT, "best"))
    file = checkpoint_path(path, AGENT, "best")
    save_checkpoint(file, {**best, "return": 1e9})
    longer = replace(SMALL, total_steps=1_800)
    mc.train(Corridor, DQN, longer, progress=False, resume=path)
    assert load_checkpoint(file)["return"] == 1e9
    assert evaluations(path)[-1][0] == 1_800


def test_an_environment_function_that_was_not_saved_must_be_given(tmp_path: Path) -> None:
    lock = threading.Lock()  # nothing pickles it
    config = replace(SMALL, run_dir=str(tmp_path / "run"), evaluation=mc.EvaluationConfig())
    path = mc.train(lambda: lock and Corridor(), DQN, config, progress=False).run_dir
    with pytest.raises(ValueError, match=r"^env_fn: .* \(it could not be pickled\); pass env_fn=$"):
        mc.evaluate(path, 2)
    assert mc.evaluate(path, 2, env_fn=Corridor).episodes == 2


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (["/no/run"], {}, "run_dir: expected a run's directory with checkpoints/run.pickle, got '/no/run'"),
        ([None, 0], {}, "episodes: expected an integer of at least 1, got 0"),
        ([None], {"envs": 0}, "envs: expected an integer of at least 1, got 0"),
        ([None], {"which": "17"}, "which: expected a checkpoint at "),
        ([None], {"policies": {AGENT: 3}}, "policies['agent_0']: expected a function of an observation, or a class or"),
        ([None], {"policies": {AGENT: Corridor}}, "policies['agent_0']: expected a class with a method act(obs)"),
        ([None], {"policies": {AGENT: Locked()}}, "policies['agent_0']: expected an object that can be copied"),
        ([None], {"policies": {AGENT: "/no/run"}}, "policies['agent_0']: expected module:name or the directory of a"),
        ([None], {"policies": {AGENT: "test_evaluation:no"}}, "policies['agent_0']: expected something that can be"),
        ([None], {"policies": {AGENT: outside}}, "action of policies['agent_0']: expected one of Discrete(2), got 2"),
        ([None], {"env_fn": "treasure_hunt"}, "env_fn: expected the agents ['agent_0'], got 'agent_1'"),
    ],
)
def test_bad_input_is_one_line(run_dir: Path, arguments: list[Any], options: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        mc.evaluate(*(run_dir if one is None else one for one in arguments), **options)
    assert str(caught.value).startswith(says) and "\n" not in str(caught.value)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`marlcore eval` with these arguments: its status, what it said and what it complained of."""

    def evaluate(*arguments: object) -> tuple[int, str, str]:
        status = main(["eval", *map(str, arguments)])
        return status, *capsys.readouterr()

    return evaluate


def test_the_command_prints_a_table_and_films_an_episode(run_dir: Path, tmp_path: Path, command: Any) -> None:
    status, said, complaints = command(run_dir, "--episodes", "6", "--which", "best", "--video", tmp_path / "one.gif",
                                       "--policies", AGENT, "test_evaluation:rightwards")  # fmt: skip
    assert status == 0, complaints
    assert "6 episodes" in said and AGENT in said and " to " in said
    with Image.open(tmp_path / "one.gif") as video:
        assert video.n_frames in range(6, 11) and video.size == (8, 8) and video.info["duration"] == 50


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--video", "a.avi"], "video: expected a file named .gif or .mp4, got 'a.avi'"),
        (["--env", "treasure_hunt", "--video", "a.gif"], "video: expected an environment that renders"),
        (["--which", "17"], "which: expected a checkpoint"),
        (["--episode", "3"], "unknown option --episode; did you mean --episodes?"),
    ],
)
def test_bad_input_of_the_command_is_one_line(run_dir: Path, arguments: list[str], says: str, command: Any) -> None:
    status, _, complaints = command(run_dir, *arguments)
    assert status == 2 and says in complaints and len(complaints.splitlines()) == 1


@pytest.fixture
def runs() -> Iterator[Callable[..., Run]]:
    """Starts runs that go on until they are stopped."""
    started: list[Run] = []

    def begin(env_fn: Any, path: Path, **changes: Any) -> Run:
        config = replace(SMALL, mode="async", total_steps=10**8, run_dir=str(path), **changes)
        started.append(start(env_fn, DQN, config))
        return started[-1]

    yield begin
    for run in started:
        run.stop()
        run.wait()


def until(true: Callable[[], Any], seconds: float = 600.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def newest(run: Run) -> int:
    """The highest step of a kept checkpoint."""
    steps = [path.name.split(".")[1] for path in (run.run_dir / "checkpoints").glob(f"{AGENT}.*.pt")]
    return max((int(step) for step in steps if step.isdecimal()), default=-1)


@pytest.mark.long
def test_a_killed_evaluator_is_replaced(runs: Callable[..., Run], tmp_path: Path) -> None:
    run = runs(Corridor, tmp_path / "run", evaluation=replace(SMALL.evaluation, interval=1, episodes=200))
    key = (AGENT, "eval_return")
    until(lambda: run.status().metrics.get(key) is not None)
    best = load_checkpoint(checkpoint_path(run.run_dir, AGENT, "best"))["return"]
    os.kill(run._session.control.notes[EVALUATOR].load(PID), signal.SIGKILL)  # it always plays
    until(lambda: run.status().restarts[EVALUATOR] == 1)
    before = newest(run)
    until(lambda: newest(run) > before)
    assert load_checkpoint(checkpoint_path(run.run_dir, AGENT, "best"))["return"] >= best
    assert mc.evaluate(run, 3).episodes == 3
    assert mc.evaluate(run, 3, which="best").episodes == 3


@pytest.mark.long
def test_a_run_stops_in_the_middle_of_an_evaluation(
    runs: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "GRACE_S", 3600.0)  # which it does not wait for
    run = runs(Endless, tmp_path / "run", evaluation=replace(SMALL.evaluation, interval=1))
    until(lambda: run.status().steps > 500)
    run.stop()
    run.wait(timeout=1800)
    assert evaluations(run.run_dir) == []


@pytest.mark.long
def test_an_endless_last_evaluation_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "GRACE_S", 10.0)
    config = replace(
        SMALL, mode="async", run_dir=str(tmp_path / "run"), supervision=SupervisionConfig(learner_timeout=10.0)
    )
    result = mc.train(Endless, DQN, config, progress=False)
    assert result.steps == 1_200 and result.restarts[EVALUATOR] == 0
    assert np.isnan(result.returns[AGENT]), "no episode ended, and the agent is not missing"
    assert load_checkpoint(checkpoint_path(result.run_dir, AGENT))["step"] == 1_200


class Slow:
    """A trainer whose updates take a while."""

    def __init__(self, trainer: Any) -> None:
        self.state_dict, self.load_state_dict = trainer.state_dict, trainer.load_state_dict
        self._update = trainer.update

    def update(self, batch: Any) -> Any:
        time.sleep(0.05)
        return self._update(batch)


class SlowDQN(mc.DQN):
    def make_trainer(self, model: torch.nn.Module) -> Any:
        return Slow(super().make_trainer(model))


@pytest.mark.long
def test_an_asynchronous_run_ends_with_an_evaluation_of_its_last_weights(tmp_path: Path) -> None:
    """The last due updates are made when all steps are taken."""
    config = replace(SMALL, mode="async", run_dir=str(tmp_path / "run"))
    path = mc.train(Corridor, SlowDQN(hidden=(16,)), config, progress=False).run_dir
    last = load_checkpoint(checkpoint_path(path, AGENT))
    kept = load_checkpoint(checkpoint_path(path, AGENT, str(last["step"])))
    assert kept["version"] == last["version"] and evaluations(path)[-1] == (last["step"], kept["return"])


class Broken(Corridor):
    """The evaluator alone cannot make it."""

    def __init__(self) -> None:
        super().__init__()
        if multiprocessing.current_process().name == EVALUATOR:
            raise RuntimeError("no evaluator here")


@pytest.mark.long
def test_an_evaluator_that_fails_for_good_ends_the_run(tmp_path: Path) -> None:
    config = replace(SMALL, mode="async", total_steps=10**8, run_dir=str(tmp_path / "run"))
    with pytest.raises(mc.WorkerFailed, match="no evaluator here") as caught:
        mc.train(Broken, DQN, config, progress=False)
    assert caught.value.worker == EVALUATOR and caught.value.reason == "environment"
