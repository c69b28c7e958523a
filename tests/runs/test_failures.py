"""Faults of a run: its error names the culprit, and nothing is left of a run that never began."""

import multiprocessing
import os
import signal
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from crowd import Corridor, Crowd, collapse
from hunt import HUNT
from whole_runs import LONG, MODES, Runs, checkpoint, failure, updating

import marlcore as mc
from marlcore.config import EVALUATOR

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

runs = Runs(total_steps=400, learner={"warmup": 20, "n_step": 1}, supervision={"backoff": 0.01})
CARTPOLE = partial(gymnasium.make, "CartPole-v1")
ONCE = mc.SupervisionConfig(max_restarts=0)
train = runs.train


def slam() -> None:
    raise KeyError("door")


ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "obs: expected float32 (2,), got shape": {"obs": np.zeros(3, np.float32)},
    "reward: expected a finite number of float32, got inf": {"reward": np.inf},
    "KeyError: 'door'": {"error": slam},
}


@pytest.mark.parametrize("says", ENVIRONMENTS)
def test_an_environments_fault_names_copy_and_agent(tmp_path: Path, says: str) -> None:
    caught = failure(lambda: train(tmp_path, partial(Corridor, 3, **ENVIRONMENTS[says])), says)
    *frames, last = caught.traceback.strip().splitlines()
    assert "environment copy 0" in last and "agent_0" in last and says in last
    assert bool(frames) == ("KeyError" in says) and "serial.py" not in caught.traceback


@LONG
def test_a_failure_in_the_first_episode_is_tried_again_once(tmp_path: Path) -> None:
    env_fn = partial(Corridor, error=slam, errs_at=3)
    caught = failure(lambda: train(tmp_path, env_fn, mode="async"), "KeyError: 'door'")
    assert "start 2:" in caught.traceback and "start 3:" not in caught.traceback


def ramble() -> None:
    raise RuntimeError("x" * 1_000_000)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@LONG
@pytest.mark.parametrize(  # the second is more than fits a pipe
    ("error", "says"),
    [(collapse, "actor-0's environment failed"), (ramble, "actor-0's environment failed"), (die, "SIGKILL")],
)
def test_a_workers_end_ends_the_run(tmp_path: Path, error: Any, says: str) -> None:
    with pytest.raises(mc.WorkerFailed, match=says) as caught:
        train(tmp_path, partial(Corridor, 300, error), mode="async", total_steps=6_000, supervision=ONCE)
    assert (caught.value.worker, caught.value.reason) == ("actor-0", "death" if error is die else "environment")
    assert "start 2" not in caught.value.traceback  # max_restarts is 0
    if error is collapse:
        assert 'raise RuntimeError("the floor gave way")' in caught.value.traceback
        assert "the floor gave way" in (tmp_path / "run" / "logs" / "actor-0.log").read_text()


def test_a_serial_run_that_fails_keeps_its_updates(tmp_path: Path) -> None:
    """Its error distinguishes an environment's failure from bad input."""
    caught = failure(lambda: train(tmp_path, partial(Corridor, 300, collapse), total_steps=1_000), "the floor gave way")
    assert isinstance(caught.__cause__, mc.EnvironmentFailed)
    assert isinstance(caught.__cause__.__cause__, RuntimeError)
    assert checkpoint(tmp_path / "run")["updates"] > 10


def breaks_down(count: int) -> Any:
    return 0.5 if count < 200 else "half"


@MODES
def test_a_schedule_that_breaks_down_ends_the_run(tmp_path: Path, mode: str) -> None:
    exploration = mc.ExplorationConfig(epsilon=0.1, schedules={"heat": breaks_down})
    with pytest.raises(mc.WorkerFailed, match=r"heat: .*breaks_down' at \d+: expected a finite number, got 'half'"):
        train(tmp_path, Corridor, mode=mode, total_steps=3_000, exploration=exploration)


def rogue(obs: Any) -> int:
    return 7


def test_an_action_outside_the_space_names_its_anchor(tmp_path: Path) -> None:
    settings = mc.SelfPlayConfig(pool=4, admit_updates=10, anchors={rogue: 1.0}, latest=0.0)
    with pytest.raises(mc.WorkerFailed) as caught:
        train(tmp_path, partial(Crowd, 2), self_play=settings)
    says = "\nValueError: action of anchor:rogue: expected an action of Discrete(2), got 7"
    assert caught.value.traceback.strip().endswith(says)


def broken_for_evaluator() -> Corridor:
    if multiprocessing.current_process().name == EVALUATOR:
        raise RuntimeError("no evaluator here")
    return Corridor()


@LONG
def test_an_evaluator_that_fails_for_good_ends_the_run(tmp_path: Path) -> None:
    evaluation = mc.EvaluationConfig(interval=300, episodes=4, envs=3, keep=2)
    with pytest.raises(mc.WorkerFailed, match="no evaluator here") as caught:
        train(tmp_path, broken_for_evaluator, mode="async", total_steps=10**8, evaluation=evaluation)
    assert caught.value.worker == EVALUATOR and caught.value.reason == "environment"


class ReplacesWeights(mc.DQN):
    def make_trainer(self, model: Any) -> Any:
        trainer, head = super().make_trainer(model), model.head.output
        head.weight = torch.nn.Parameter(torch.zeros_like(head.weight))
        return trainer


def store_another_shape(action: mc.Action) -> mc.Action:
    return action._replace(extras={"value": np.zeros((len(action.action), 3), np.float32)})


def never_act(action: mc.Action) -> mc.Action:
    raise RuntimeError("nothing comes to mind")


class Faulty(mc.DQN):
    def __init__(self, to_action: Any) -> None:
        super().__init__()
        vars(self).update(to_action=to_action)

    def transition(self, spaces: Any) -> Any:
        spec = super().transition(spaces)
        return replace(spec, extras={"value": mc.Field()}) if self.to_action is store_another_shape else spec

    def act(self, model: Any, obs: Any, **options: Any) -> Any:
        return self.to_action(super().act(model, obs, **options))


NO_LOSS = updating(mc.DQN, lambda _, batch: mc.Update({"lozz": batch.reward.mean()}))
NO_UPDATE = updating(mc.DQN, lambda _, batch: {"loss": batch.reward.mean()})  # type: ignore[arg-type]
BEYOND = Faulty(lambda action: action._replace(action=action.action + 10))


@pytest.mark.parametrize(
    ("algorithm", "env_fn", "says"),
    [
        (ReplacesWeights(), HUNT, "make_trainer: expected the model's tensors to be changed in place"),
        (NO_LOSS(), HUNT, r"update of the trainer: expected the metric 'loss', got \['lozz'\]"),
        (NO_UPDATE(), HUNT, "update of the trainer: expected an mc.Update, got"),
        (BEYOND, CARTPOLE, r"action of the algorithm: expected an action of Discrete\(2\), got 1"),
        (Faulty(store_another_shape), HUNT, "value of the algorithm: expected float32"),
    ],
)
def test_an_algorithms_fault_is_named(tmp_path: Path, algorithm: Any, env_fn: Any, says: str) -> None:
    with pytest.raises((mc.WorkerFailed, ValueError), match=says) as caught:
        train(tmp_path, env_fn, algorithm)
    assert env_fn is CARTPOLE or "environment" not in str(caught.value).splitlines()[0]


@LONG
def test_an_actor_that_raises_in_its_first_step_is_not_restarted(tmp_path: Path) -> None:
    with pytest.raises(mc.WorkerFailed, match="nothing comes to mind") as caught:
        train(tmp_path, HUNT, Faulty(never_act), mode="async")
    assert str(caught.value).count("Traceback") == 1


class FailsInWorkers:
    """Makes one environment in the parent, and fails in every worker."""

    made = False

    def __call__(self) -> Corridor:
        if self.made:
            raise RuntimeError("no licence is left")
        self.made = True
        return Corridor()


class NoModel(mc.DQN):
    def make_model(self, spaces: Any) -> Any:
        raise RuntimeError("no such layer")


class NoTrainer(mc.DQN):
    def make_trainer(self, model: Any) -> Any:
        raise RuntimeError("no such optimizer")


STARTS = {
    "no environment": (FailsInWorkers(), "dqn"),
    "no first step": (partial(Corridor, 1, collapse), "dqn"),
    "no model": (Corridor, NoModel()),
    "no trainer": (Corridor, NoTrainer()),
}


@LONG
@pytest.mark.parametrize(
    ("start", "mode"), [*product(STARTS, ["serial"]), ("no environment", "async"), ("no trainer", "async")]
)
def test_a_start_that_fails_leaves_no_directory(tmp_path: Path, start: str, mode: str) -> None:
    env_fn, algorithm = STARTS[start]
    with pytest.raises((mc.MarlcoreError, RuntimeError), match=r"no licence|gave way|no such"):
        train(tmp_path / "parent", env_fn, algorithm, mode=mode)
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_fails_takes_nothing_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "run").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(RuntimeError, match="no such layer"):
            train(folder, Corridor, NoModel())
    assert sorted(tmp_path.rglob("*")) == before
