"""Files that an earlier version wrote are read: a save, a queue, the directory of a run (fixtures/make.py)."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import marlcore as mc

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

FIXTURES = Path(__file__).parents[1] / "fixtures"
SPEC = mc.TransitionSpec(obs=mc.Field((3,)), action=mc.Field((), "int64"), extras={"value": mc.Field(())})


@pytest.fixture
def files(tmp_path):
    """A copy, since only files of this user alone are read, and git keeps no such modes."""
    copy = Path(shutil.copytree(FIXTURES, tmp_path / "fixtures"))
    for path in (copy / "save", copy / "queue", copy / "run/checkpoints/agent_0.replay"):
        path.chmod(0o600)
    return copy


def test_a_save_of_an_earlier_version_is_loaded(files):
    """A save of an earlier version is loaded with its sampler."""
    with mc.ReplayBuffer.load(files / "save", SPEC) as replay:
        assert (replay.lanes, len(replay)) == (2, 10)
        sampler = replay.sampler(64, seed=0, min_size=1, prioritized=mc.Prioritized())
        batch = sampler.sample()
        assert np.array_equal(batch.obs[:, 0] % 10, batch.action)
        assert np.array_equal(batch.reward, batch.action.astype(np.float32))
        assert np.array_equal(batch.extras["value"], batch.reward / 2)
        assert np.array_equal(batch.next_obs[:, 0] == -1, batch.action == 4)
        same_size = replay.sampler(4, seed=1, prioritized=mc.Prioritized())
        same_size.load_state_dict(replay.sampler_state)
        assert same_size.state_dict()["highest"] == pytest.approx(4.0)


def test_a_queue_of_an_earlier_version_is_read(files):
    with mc.TrajectoryQueue.attach(files / "queue", SPEC) as queue, queue.reader(batch_size=1, length=4) as reader:
        assert reader.read(timeout=600.0).action.tolist() == [[0, 1, 2, 3]]


@pytest.mark.long
def test_a_run_of_an_earlier_version_goes_on(files):
    config = mc.Config(
        total_steps=1500,
        mode="serial",
        replay=mc.ReplayConfig(capacity=600, save=True),
        learner=mc.LearnerConfig(warmup=200),
    )
    result = mc.train("gymnasium:CartPole-v1", mc.DQN(hidden=(4,)), config, progress=False, resume=files / "run")
    assert 1500 <= result.steps < 1504  # a round of four copies ends the run
    assert result.updates["agent_0"] > 100
