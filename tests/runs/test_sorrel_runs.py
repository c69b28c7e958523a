"""Experiments of sorrel's double in processes: equal work, kills, signals, failures."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sorrel_double as double
import torch
from processes import until

from marlcore import WorkerFailed
from marlcore.compat import sorrel
from marlcore.memory import sweep
from marlcore.processes import PRELOAD, ForkServer

pytestmark = pytest.mark.long
shared = pytest.mark.usefixtures("shared_fork_server")


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    """With what an experiment's own server imports, lest each learner import it."""
    with closing(ForkServer((*PRELOAD, "marlcore.compat.sorrel", "torch._dynamo"))) as server:
        server.begin()
        yield server


def die_once(mark: Path) -> None:
    """Kills this process, unless the file is there; makes it, which only one process can."""
    with suppress(FileExistsError):
        mark.touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)


class Dying(double.Model):
    """Its learner is killed in its fifth update, once."""

    mark: Path

    def train_step(self) -> Any:
        loss = super().train_step()
        if int(self.updated) == 5:
            die_once(self.mark)
        return loss


class DyingAgent(double.Agent):
    """The actor is killed in the 37th turn, once."""

    mark: Path
    acted = 0

    def act(self, world: Any, action: int) -> float:
        self.acted += 1
        if self.acted == 37:
            die_once(self.mark)
        return super().act(world, action)


class Raising(double.Model):
    def train_step(self) -> Any:
        raise ArithmeticError("this loss is infinite")


class Slow(double.Model):
    def train_step(self) -> Any:
        time.sleep(0.02)
        return super().train_step()


@shared
def test_a_run_does_the_work_of_sorrels_loop() -> None:
    env, logger = double.make(agents=3, epochs=40), double.StepLogger()
    done = sorrel.run_experiment_mp(env, logger=logger, seed=0)
    assert (done.epochs, done.steps, done.updates, done.restarts) == (41, 41 * 8 * 3, 41 * 3, 0)
    assert [row[0] for row in logger.epochs] == list(range(41))
    assert [row[2] for row in logger.epochs] == done.scores and [row[1] for row in logger.epochs] == done.losses
    assert logger.turns == [(epoch, turn) for epoch in range(41) for turn in range(1, 9)]
    epsilons = [row[3] for row in logger.epochs]
    assert epsilons == sorted(epsilons, reverse=True)
    for i, epsilon in enumerate(epsilons):  # at most as old as the actor may be ahead
        assert 0.5 * 0.9**i * 0.999 <= epsilon <= 0.5 * 0.9 ** max(0, i - 2) * 1.001
    for agent in env.agents:
        assert agent.model.epsilon == pytest.approx(0.5 * 0.9**41)
        assert agent.model.memory.size == 64 and 30 < int(agent.model.updated) <= 41
    assert 0 < done.start_s < done.seconds


@shared
def test_in_lock_step_a_seed_repeats_itself() -> None:
    def made(seed: int) -> Any:
        env = double.make(epochs=12)
        done = sorrel.run_experiment_mp(env, logging=False, seed=seed, ahead=0)
        return done.scores, done.losses, env.agents[1].model.local.weight.tolist()

    assert made(3) == made(3) != made(4)


SEVERAL = {"actors": 3, "copies": 2, "ahead": 6}


@pytest.mark.parametrize("options", [{"ahead": 0}, SEVERAL, SEVERAL | {"fork": False}], ids=str)
def test_killed_processes_are_started_again_and_no_work_is_lost(
    request: pytest.FixtureRequest, tmp_path: Path, options: dict[str, Any]
) -> None:
    if "fork" not in options:  # that one has a server of its own, with what it imports beforehand
        request.getfixturevalue("shared_fork_server")
    env, logger = double.make(model=Dying, epochs=30), double.Logger()
    env.agents[0] = DyingAgent(env.agents[0].model)
    env.agents[0].mark = tmp_path / "actor"
    for i, agent in enumerate(env.agents):
        agent.model.mark = tmp_path / f"learner-{i}"
    done = sorrel.run_experiment_mp(env, logger=logger, seed=0, **options)
    assert (done.epochs, done.updates, done.restarts) == (31, 62, 3)
    assert [row[0] for row in logger.epochs] == list(range(31))
    assert np.isfinite(done.losses).sum() >= 29
    assert env.agents[0].model.epsilon == pytest.approx(0.5 * 0.9**31)


@shared
def test_free_running_copies_finish_every_epoch() -> None:
    env = double.make(epochs=20)
    done = sorrel.run_experiment_mp(env, logging=False, seed=0, copies=4, updates_per_epoch=None, publish_interval=5)
    assert done.epochs == 21 and done.updates >= 2 * 21
    assert len(done.scores) == 21


@shared
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_the_models_are_trained(signum: int) -> None:
    env, logger = double.make(model=Slow, epochs=100_000), double.Logger()

    def interrupt() -> None:
        until(lambda: len(logger.epochs) >= 15)
        os.kill(os.getpid(), signum)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt if signum == signal.SIGINT else SystemExit):
        sorrel.run_experiment_mp(env, logger=logger, seed=0)
    thread.join()
    trained = env.agents[0].model
    assert int(trained.updated) >= 10 and trained.epsilon < 0.5 * 0.9**10
    assert len(trained.optimizer.state) == 2 and trained.memory.size == 64
    assert np.isfinite([row[1] for row in logger.epochs]).all()


@shared
def test_a_train_step_that_raises_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match="this loss is infinite") as caught:
        sorrel.run_experiment_mp(double.make(model=Raising), logging=False, log_dir=tmp_path / "logs")
    assert caught.value.worker.startswith("learner-") and "in train_step" in caught.value.traceback
    assert "this loss is infinite" in (tmp_path / "logs" / f"{caught.value.worker}.log").read_text()
    logs = {path.name for path in (tmp_path / "logs").iterdir()}
    assert logs == {"actor-0.log", "learner-0.log", "learner-1.log"}


@shared
def test_weights_are_saved_as_sorrels_loop_saves_them(tmp_path: Path) -> None:
    env = double.make(agents=1, epochs=3, save_weights=True)
    env.config.experiment.record_period = 2
    sorrel.run_experiment_mp(env, logging=False, seed=0, output_dir=tmp_path)
    files = sorted((tmp_path / "checkpoints").iterdir())
    assert files and files[0].name.endswith("-agent-0.pkl")
    assert torch.load(files[-1]).keys() == env.agents[0].model.state_dict().keys()


SCRIPT = """
import os, sys, time
import sorrel_double as double
from marlcore.compat.sorrel import run_experiment_mp

class Mine(double.Model):
    def train_step(self):
        if os.getppid() and len(sys.argv) > 1:
            os.write(1, b"update\\n")  # in one piece, since several learners do
            time.sleep(0.05)
        return super().train_step()

class Net(double.nn.Linear):
    pass

def make():
    model = Mine()
    model.local = Net(14, 2)
    model.optimizer = double.torch.optim.Adam(model.local.parameters())
    return model

env = double.make(model=make, epochs=4 if len(sys.argv) < 2 else 10**6)
done = run_experiment_mp(env, logging=False)
assert isinstance(env.agents[0].model.local, Net)
assert env.agents[0].model.optimizer.param_groups[0]["params"][0] is env.agents[0].model.local.weight
print(done.updates)
"""


def test_a_scripts_own_classes_need_no_guard(program: Any) -> None:
    assert program(SCRIPT).finish() == "10"


def segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("marlcore-*")}


def test_a_killed_parent_takes_everything_along(program: Any) -> None:
    before = segments()
    script = program(SCRIPT, args=["forever"])
    assert script.line() == "update"
    assert len(segments() - before) > 4
    script.kill()

    def gone() -> bool:
        sweep()
        return not segments() - before

    until(gone)
