"""Runs whose policies act without torch, by a network of plain NumPy in place of DQN's."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from hunt import HUNT
from numpy_dqn import Asked, Drawing, NumpyDQN
from processes import until
from whole_runs import ON_POLICY, Runs, checkpoint, history, past, pid_of

import marlcore as mc
from marlcore.interfaces import CompiledPolicy
from marlcore.loops import TorchNetwork, run_seed
from marlcore.processes import ForkServer
from marlcore.record import checkpoint_path
from marlcore.run.spec import acting_spec

runs = Runs(evaluation={"interval": 200, "episodes": 3, "keep": 1}, total_steps=600)
SELF_PLAY = {"pool": 4, "admit_updates": 20, "latest": 0.3}
SMALL = mc.DQN(hidden=(16, 16))
CARTPOLE = "gymnasium:CartPole-v1"


@dataclass(frozen=True)
class Compiled(mc.DQN):
    """DQN that acts by NumPy."""

    def compiled(self, spaces: mc.Spaces, settings: mc.LearnerConfig) -> CompiledPolicy:
        assert settings.batch_size == 16
        return NumpyDQN()


def answers(folder: Path, algorithm: Any, env: Any = Asked, **changes: Any) -> list[str]:
    """The libraries that the processes of actors and an evaluator have imported."""
    (folder / "asked").mkdir()
    run = runs.train(folder, partial(env, folder / "asked"), algorithm, mode="async", **changes)
    assert run.updates["agent_0"] > 0
    return [path.read_text() for path in (folder / "asked").iterdir() if int(path.name) != os.getpid()]


def late(folder: Path, then: Callable[[], Any]) -> Any:
    """An algorithm whose learner calls `then`, and begins, once another process than this one has asked."""
    here = str(os.getpid())

    class Late(Compiled):
        def make_trainer(self, model: Any) -> Any:
            until(lambda: any(path.name != here for path in folder.iterdir()))
            then()
            return super().make_trainer(model)

    return Late(hidden=(16, 16))


def test_actors_and_evaluators_import_neither_torch_nor_numba(tmp_path: Path) -> None:
    """Also with an algorithm pickled by value. They act before its learner, and torch reads the best weights."""
    assert answers(tmp_path, late(tmp_path / "asked", lambda: None)) == [""] * 2
    state = torch.load(checkpoint_path(tmp_path / "run", "agent_0", "best"), weights_only=True)
    assert set(state["acting"]) == {f"model.{name}" for name in made_model().state_dict()}
    assert mc.evaluate(tmp_path / "run", episodes=2, which="best").mean["agent_0"] > 0


def failing() -> None:
    raise ValueError("mine")


@pytest.mark.long
@pytest.mark.usefixtures("shared_fork_server")
def test_a_run_whose_learner_never_begins_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(mc.WorkerFailed, match="mine"):
        answers(tmp_path, late(tmp_path / "asked", failing))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("algorithm", "changes", "begins"),
    [
        (SMALL, {}, True),
        (SMALL, {"updates_per_step": None}, False),
        (SMALL, {"ratios": {"agent_0": None}}, False),
        (mc.PPO(), {"updates_per_step": None, **ON_POLICY}, True),
    ],
)
def test_actors_that_nothing_holds_wait_for_their_learner(
    tmp_path: Path, algorithm: Any, changes: Any, begins: bool
) -> None:
    """In a free run they could take all steps before its first update. A queue holds them."""
    config = runs.configured(tmp_path, mode="async", **changes)
    assert acting_spec(CARTPOLE, algorithm, config).begins_untrained == begins


class Spoiled(mc.PPO):
    def make_model(self, spaces: mc.Spaces) -> Any:
        model = super().make_model(spaces)
        torch.nn.init.constant_(next(model.parameters()), torch.nan)
        return model


@pytest.mark.long
@pytest.mark.usefixtures("shared_fork_server")
def test_weights_that_begin_as_nan_end_a_run_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(mc.WorkerFailed, match=r"there is no checkpoint yet$") as caught:
        runs.train(tmp_path, CARTPOLE, Spoiled(), mode="async", **ON_POLICY)
    assert caught.value.worker == "learner-agent_0" and not (tmp_path / "run").exists()


@pytest.mark.long
def test_metrics_are_recorded_before_the_learner_can_start(tmp_path: Path, monkeypatch: Any) -> None:
    """While the fork server imports torch, actors may report more than telemetry holds."""
    ready: list[bool] = []
    monkeypatch.setattr(ForkServer, "ready", property(lambda server: bool(ready)))
    with runs.start(tmp_path, CARTPOLE, SMALL, mode="async") as run:
        past(run, 1)
        assert pid_of(run, "learner-agent_0") == 0
        ready.append(True)
        assert run.wait().updates["agent_0"]


@pytest.mark.long
@pytest.mark.usefixtures("shared_fork_server")
def test_a_run_stopped_before_its_learner_begins_can_go_on(tmp_path: Path) -> None:
    (tmp_path / "asked").mkdir()
    env, called, go = partial(Asked, tmp_path / "asked"), tmp_path / "called", tmp_path / "go"
    waiting = late(tmp_path / "asked", lambda: (called.touch(), until(go.exists)))
    with runs.start(tmp_path, env, waiting, mode="async"):
        until(called.exists)
    assert checkpoint(tmp_path / "run")["updates"] == 0  # the weights by which the actors had begun
    go.touch()
    assert runs.train(tmp_path, env, waiting, mode="async", resume=True).updates["agent_0"]


@pytest.mark.long
def test_environments_that_import_torch_have_own_seeds(tmp_path: Path) -> None:
    seeds = answers(tmp_path, Compiled(hidden=(16, 16)), Drawing, actor={"processes": 2})
    assert len(seeds) == 3 and {str(run_seed(mc.Config(), f"torch-actor-{i}", 0)) for i in range(2)} <= {*seeds}


@pytest.mark.long
def test_without_a_compiled_form_they_import_it(tmp_path: Path) -> None:
    assert answers(tmp_path, SMALL, learner={"engine": "torch"}) == ["numba torch"] * 2


def made_model() -> torch.nn.Module:
    return SMALL.make_model(mc.Spaces(gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Discrete(2)))


@pytest.mark.parametrize(("env_fn", "changes"), [(CARTPOLE, {}), (HUNT, {"self_play": SELF_PLAY})])
def test_a_compiled_policys_run_is_the_one_of_torch(
    env_fn: str | Callable[[], Any], changes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Actors, evaluations, opponents, and loaded policies take the same actions, as the same seed draws them."""

    def made(algorithm: mc.DQN) -> list[Any]:
        folder = tmp_path / type(algorithm).__name__
        run_dir = runs.train(folder, env_fn, algorithm, **changes).run_dir
        played = [mc.evaluate(run_dir, episodes=4, which=which, explore=True) for which in ("last", "best")]
        returns = [{agent: [*each] for agent, each in outcome.returns.items()} for outcome in played]
        return [history(run_dir), returns]

    by_torch = made(SMALL)
    monkeypatch.setattr(TorchNetwork, "act", None)
    assert made(Compiled(hidden=(16, 16))) == by_torch
