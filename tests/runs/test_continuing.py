"""What a learner's successor, a resumed run and a stopped one continue with, and what they leave."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hunt import HUNT

import marlcore as mc
from marlcore.processes import Interrupts
from marlcore.training import session
from marlcore.training.record.files import write_json

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

SMALL = mc.Config(
    total_steps=1500,
    mode="serial",
    actor=mc.ActorConfig(envs=2, sync_interval=10),
    learner=mc.LearnerConfig(batch_size=16, warmup=50, log_interval=10, device="cpu"),
    replay=mc.ReplayConfig(capacity=2000),
)


def small(tmp_path: Path, **changes: Any) -> mc.Config:
    return replace(SMALL, run_dir=str(tmp_path / "run"), **changes)


def test_a_second_stop_is_no_second_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    interrupts = Interrupts()
    interrupts.stop()
    now[0] = 60.0
    interrupts.stop()
    assert interrupts.signum is not None and not interrupts.again


@pytest.mark.long
def test_the_fallback_to_one_process_never_waits_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process can be started, one thread adds the rows of every lane and makes the updates."""
    monkeypatch.setattr(session, "start_all", lambda *_: False)
    config = small(
        tmp_path, mode="async", updates_per_step=1.0, updates_tolerance=1, actor=mc.ActorConfig(processes=4, envs=4)
    )
    result = mc.train(HUNT, "dqn", config, progress=False)
    assert all(count > 500 for count in result.updates.values())


@pytest.mark.long
def test_an_environment_that_raises_in_serial_mode_loses_no_update(tmp_path: Path) -> None:
    class Breaks(HUNT.func):  # type: ignore[misc, name-defined]
        def step(self, action: Any) -> None:
            self.steps = getattr(self, "steps", 0) + 1
            if self.steps == 600:
                raise RuntimeError("the field is flooded")
            super().step(action)

    with pytest.raises(mc.WorkerFailed, match="the field is flooded"):
        mc.train(lambda: Breaks(**HUNT.keywords), "dqn", small(tmp_path), progress=False)
    import torch

    state = torch.load(tmp_path / "run" / "checkpoints" / "agent_0.pt")
    assert state["updates"] > 10


@pytest.mark.long
def test_saved_rows_that_are_saved_no_more_do_not_come_back(tmp_path: Path) -> None:
    saving = small(tmp_path, replay=mc.ReplayConfig(capacity=2000, prioritized=True, save=True))
    run = mc.train(HUNT, "dqn", saving, progress=False).run_dir
    kept = run / "checkpoints" / "agent_0.replay"
    assert kept.exists()
    not_saving = replace(saving, replay=replace(saving.replay, save=False))
    mc.train(HUNT, "dqn", replace(not_saving, total_steps=2500), progress=False, resume=run)
    assert not kept.exists()
    mc.train(HUNT, "dqn", replace(saving, total_steps=3500), progress=False, resume=run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replay": mc.ReplayConfig(capacity=2000, prioritized=True)}, "expected replay.prioritized False"),
        ({"learner": replace(SMALL.learner, obs_norm="running")}, "expected learner.obs_norm 'off'"),
    ],
)
def test_what_checkpoints_depend_on_cannot_change(tmp_path: Path, changes: Any, message: str) -> None:
    config = small(tmp_path, total_steps=200)
    run = mc.train(HUNT, "dqn", config, progress=False).run_dir
    before = (run / "config.json").read_bytes()
    with pytest.raises(ValueError, match=message):
        mc.train(HUNT, "dqn", replace(config, total_steps=400, **changes), progress=False, resume=run)
    assert (run / "config.json").read_bytes() == before


class Talkative(HUNT.func):  # type: ignore[misc, name-defined]
    def last(self) -> Any:
        rest = super().last()[:4]
        return (*rest, {"the_number_of_collisions_with_walls_and_with_other_agents_and_with_bones": 3.0})


def test_a_long_name_in_an_info_is_cut(tmp_path: Path) -> None:
    result = mc.train(lambda: Talkative(**HUNT.keywords), "dqn", small(tmp_path, total_steps=300), progress=False)
    assert "info/the_number_of_collisions_with_walls" in (result.run_dir / "metrics.csv").read_text()


@pytest.mark.parametrize("name", ["updates", "step", "epsilon", "stage"])
def test_a_schedule_with_the_name_of_a_published_number_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"schedules: '{name}' is the name of a number"):
        mc.ExplorationConfig(schedules={name: 0.5})


def test_a_policy_is_found_by_its_own_name_first(tmp_path: Path) -> None:
    names = {"agent_0": "agent_1", "agent_1": "agent_0"}
    algorithms = {"agent_0": mc.DQN(hidden=(8,)), "agent_1": mc.DQN(hidden=(9,))}
    config = small(tmp_path, total_steps=200, policies=names)
    run = mc.train(HUNT, algorithms, config, progress=False).run_dir
    for name, units in (("agent_0", 8), ("agent_1", 9)):
        policy: Any = mc.load_policy(run, name)
        sizes = {tensor.shape[0] for tensor in policy._model.parameters()}
        assert units in sizes


class Outside(mc.DQN):
    """Stores an extra of another shape than it declared."""

    def transition(self, spaces: Any) -> Any:
        return replace(super().transition(spaces), extras={"value": mc.Field()})

    def act(self, model: Any, obs: Any, **options: Any) -> Any:
        return super().act(model, obs, **options)._replace(extras={"value": np.zeros((len(obs), 3), np.float32)})


def test_an_extra_of_another_shape_is_the_algorithms_fault(tmp_path: Path) -> None:
    with pytest.raises(mc.WorkerFailed, match="value of the algorithm: expected float32") as error:
        mc.train(HUNT, Outside(), small(tmp_path, total_steps=200), progress=False)
    assert "environment" not in str(error.value).splitlines()[0]


def test_a_resumed_run_goes_on_from_the_newest_checkpoints_step(tmp_path: Path) -> None:
    """As after a parent was killed that saved its progress before the learners' last checkpoints."""
    config = small(tmp_path, total_steps=600, exploration=mc.ExplorationConfig("linear(1, 0, 1200)"))
    run = mc.train(HUNT, "dqn", config, progress=False).run_dir
    write_json(run / "checkpoints" / "run.json", {"time_s": 1.0, "steps": {"actor-0": 20}})
    before = len(mc.training.read_metrics(run / "metrics.csv"))
    more = mc.train(HUNT, "dqn", replace(config, total_steps=1200), progress=False, resume=run)
    later = [m for m in mc.training.read_metrics(run / "metrics.csv")[before:] if m.name == "epsilon"]
    assert later and max(m.value for m in later) <= 0.55
    assert more.updates["agent_0"] < 0.1 * 600 + 5


class Replaces(mc.DQN):
    def make_trainer(self, model: Any) -> Any:
        import torch

        trainer = super().make_trainer(model)
        model.head.output.weight = torch.nn.Parameter(torch.zeros_like(model.head.output.weight))
        return trainer


class NoLoss(mc.DQN):
    def make_trainer(self, model: Any) -> Any:
        trainer = super().make_trainer(model)
        trainer.update = lambda batch: mc.Update({"lozz": batch.reward.mean()})
        return trainer


class NoUpdate(mc.DQN):
    def make_trainer(self, model: Any) -> Any:
        trainer = super().make_trainer(model)
        trainer.update = lambda batch: {"loss": batch.reward.mean()}
        return trainer


class Beyond(mc.DQN):
    def act(self, model: Any, obs: Any, **options: Any) -> Any:
        chosen = super().act(model, obs, **options)
        return chosen._replace(action=chosen.action + 10)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (Replaces(), "make_trainer: expected it to change the model's tensors in place"),
        (NoLoss(), r"update of the trainer: expected the metric 'loss', got \['lozz'\]"),
        (NoUpdate(), "update of the trainer: expected an mc.Update, got"),
        (Beyond(), r"action: expected 2 integers from 0 to 3"),
    ],
)
def test_what_an_algorithm_must_not_do_is_named(tmp_path: Path, algorithm: Any, message: str) -> None:
    with pytest.raises((mc.WorkerFailed, ValueError), match=message) as error:
        mc.train(HUNT, algorithm, small(tmp_path, total_steps=400), progress=False)
    assert "environment" not in str(error.value).splitlines()[0]


def test_an_action_that_an_environment_refuses_is_the_algorithms_fault(tmp_path: Path) -> None:
    message = r"action of the algorithm: expected one of Discrete\(2\), got 1"
    with pytest.raises(mc.WorkerFailed, match=message):
        mc.train(lambda: gymnasium.make("CartPole-v1"), Beyond(), small(tmp_path, total_steps=400), progress=False)


class NeverActs(mc.DQN):
    def act(self, model: Any, obs: Any, **options: Any) -> Any:
        raise RuntimeError("nothing comes to mind")


@pytest.mark.long
def test_an_actor_that_raises_in_its_first_step_is_not_restarted(tmp_path: Path) -> None:
    with pytest.raises(mc.WorkerFailed, match="nothing comes to mind") as error:
        mc.train(HUNT, NeverActs(), small(tmp_path, mode="async"), progress=False)
    assert str(error.value).count("Traceback") == 1


@pytest.mark.long
def test_a_checkpoint_is_written_after_so_many_seconds(tmp_path: Path) -> None:
    learner = replace(SMALL.learner, checkpoint_seconds=1.0, checkpoint_interval=10**9)
    config = small(tmp_path, mode="async", total_steps=10**9, learner=learner)
    with mc.start(HUNT, "dqn", config) as run:
        path, end = run.run_dir / "checkpoints" / "agent_0.pt", time.monotonic() + 120
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert path.exists()
        run.stop()


def test_learners_in_a_file_take_the_rest_from_learner() -> None:
    plain = {"learner": {"gamma": 0.9, "batch_size": 16}, "learners": {"guard": {"n_step": 1}}}
    guard = mc.Config.from_dict(plain).learner_of("guard")
    assert (guard.gamma, guard.batch_size, guard.n_step) == (0.9, 16, 1)


def test_a_policy_for_other_spaces_is_refused(tmp_path: Path) -> None:
    first = mc.train(HUNT, "dqn", small(tmp_path / "a", total_steps=200), progress=False).run_dir
    other = mc.train("gymnasium:CartPole-v1", "dqn", small(tmp_path / "b", total_steps=200), progress=False).run_dir
    with pytest.raises(ValueError, match=r"^policies\['agent_1'\]: expected a policy for Spaces\(.*\), got one for"):
        mc.evaluate(first, episodes=1, policies={"agent_1": mc.load_policy(other, "agent_0")})
