"""Normalized observations: learner and actors use the statistics that were published, and no restart loses them."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crowd import Crowd
from whole_runs import LONG, Runs, saved_replay

import marlcore as mc
from marlcore.loops import Learner

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

runs = Runs(
    mode="async",
    total_steps=3_000,
    actor={"sync_interval": 3},
    learner={"batch_size": 32, "warmup": 100, "n_step": 1, "gamma": 0.0, "publish_interval": 5},
    replay={"save": True},
    exploration={"epsilon": mc.Linear(1.0, 0.0, 2_000)},
    updates_per_step=0.5,
    updates_tolerance=4,
    supervision={"backoff": 0.01},
)


class FarAway(Crowd):
    """One agent, whose number is small beside where it lies."""

    def __init__(self) -> None:
        super().__init__(1)

    def _look(self) -> dict[str, Any]:
        seen = super()._look()
        return {agent: 1e4 + 100 * number for agent, number in seen.items()}


@dataclass(frozen=True)
class Noting(mc.DQN):
    """DQN whose learner's process notes each publication, and whose rows hold what the model saw."""

    notes: str = ""  # a file, lines of JSON
    dies_at: int = 0  # updates at which the first such process dies

    def transition(self, spaces: mc.Spaces) -> mc.TransitionSpec:
        return replace(super().transition(spaces), extras={"seen": mc.Field((1,))})

    def act(self, model: Any, obs: Any, **others: Any) -> mc.Action:
        return super().act(model, obs, **others)._replace(extras={"seen": obs.numpy().copy()})

    def make_trainer(self, model: Any) -> Any:
        trainer = super().make_trainer(model)
        publish = getattr(Learner.publish, "noted", Learner.publish)
        update = trainer.update

        def noting(learner: Learner) -> None:
            publish(learner)
            norm = learner.norm
            state = {} if norm is None else norm.state_dict()
            numbers = {name: value.reshape(-1).tolist() for name, value in state.items()}
            note = {"pid": os.getpid(), "updates": learner.updates, "version": learner.version, **numbers}
            with open(self.notes, "a") as file:
                file.write(json.dumps(note) + "\n")
            first = json.loads(Path(self.notes).read_text().partition("\n")[0])["pid"]
            if self.dies_at and learner.updates == self.dies_at and os.getpid() == first:
                os._exit(9)

        def watched(batch: Any) -> mc.Update:
            for values in (batch.obs, batch.next_obs):
                assert values.dtype == torch.float32 and float(values.abs().max()) <= 10.0, "not normalized"
            return update(batch)

        noting.noted = publish  # type: ignore[attr-defined]
        Learner.publish = noting  # type: ignore[method-assign]
        trainer.update = watched
        return trainer


@pytest.fixture(autouse=True)
def publish_as_before() -> Any:
    before = Learner.publish
    yield
    Learner.publish = before  # type: ignore[method-assign]


def train(tmp_path: Path, obs_norm: str, dies_at: int = 0, **changes: Any) -> Any:
    algorithm = Noting(notes=str(tmp_path / "notes"), dies_at=dies_at, learning_rate=2e-3, hidden=(32, 32))
    learner = {"obs_norm": obs_norm}
    result = runs.train(tmp_path, FarAway, algorithm, learner=learner, **changes)
    return result, [json.loads(line) for line in (tmp_path / "notes").read_text().splitlines()]


@pytest.mark.parametrize(("obs_norm", "mode"), [("running", "serial"), pytest.param("frozen", "async", marks=LONG)])
def test_actors_see_by_the_statistics_of_their_version(tmp_path: Path, obs_norm: str, mode: str) -> None:
    result, notes = train(tmp_path, obs_norm, mode=mode, total_steps=600)
    counts = [note["count"][0] for note in notes]
    assert counts == sorted(counts) and counts[0] == 0
    final = 100 if obs_norm == "frozen" else result.updates["agent_0"]
    assert counts[-1] == runs.config.learner.batch_size * final
    by_version = {note["version"]: note for note in notes}
    checked = set()
    with saved_replay(result.run_dir) as replay:
        sampler = replay.sampler(512, n_step=1, seed=0)
        for _ in range(2):
            batch = sampler.sample()
            for obs, seen, version in zip(batch.obs, batch.extras["seen"], batch.policy_version, strict=True):
                note, expected = by_version[int(version)], obs
                if note["count"][0]:
                    scale = np.sqrt(np.array(note["variance_observation"]) + 1e-8)
                    expected = np.clip((obs - np.array(note["mean_observation"])) / scale, -10, 10)
                np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-6)
                checked.add(int(version))
    # Of 250 updates, the limiter lets an actor be 4 ahead, and publishing and pulling 10 more.
    assert len(checked) > 8


@LONG
@pytest.mark.parametrize("obs_norm", ["off", "running"])
def test_far_observations_are_learned_only_with_normalization(tmp_path: Path, obs_norm: str) -> None:
    learner = {"obs_norm": obs_norm}
    algorithm = mc.DQN(learning_rate=2e-3, hidden=(32, 32))
    result = runs.train(tmp_path, FarAway, algorithm, mode="serial", learner=learner)
    learned = result.returns["agent_0"] > 17  # 20 is perfect, 10 is chance
    assert learned == (obs_norm != "off"), result.returns


@LONG
def test_a_restarted_learner_keeps_the_statistics(tmp_path: Path) -> None:
    result, notes = train(tmp_path, "running", dies_at=150)
    assert result.restarts["learner-agent_0"] == 1
    last = max(i for i, note in enumerate(notes) if note["pid"] == notes[0]["pid"])
    before, after = notes[last], notes[last + 1]
    assert before["updates"] == after["updates"] == 150 and after["version"] == before["version"] + 1
    for name in ("count", "mean_observation", "variance_observation"):
        assert after[name] == before[name] != [0.0]
