"""The soak that users can run: a real run whose processes are killed, and the checks that it counts on."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import marlcore as mc
from marlcore.testing import chaos, checked


@pytest.mark.long
def test_a_run_under_kills_reads_nothing_torn() -> None:
    reports: list[chaos.ChaosResult] = []
    while sum(report.restarts for report in reports) < 2 or sum(report.rows for report in reports) < 10_000:
        assert len(reports) < 180, "half an hour"
        reports.append(chaos.attack(seconds=5, seed=1 + len(reports), pause=0.5))
        assert replace(reports[-1], rows=1).good, str(reports[-1])  # a slow machine may sample none in 5 s


@pytest.fixture
def batch() -> Any:
    """Transitions of the environment, as a sampler draws them."""
    env = checked.CheckedEnvironment()
    env.reset(3)
    with mc.ReplayBuffer.create(mc.TransitionSpec(mc.Field((4,), "int64"), mc.Field((), "int64")), 400) as replay:
        with replay.writer() as writer:
            for _ in range(60):
                before = None
                while env.agent is not None:
                    obs, reward, terminated, truncated, _ = env.last()
                    if env.agent == "agent_0":
                        if before is not None:
                            writer.add(before, 0, reward, terminated, truncated, obs if truncated else None)
                        before = obs
                    env.step(None if terminated or truncated else 0)
                env.reset()
        yield replay.sampler(256, seed=0).sample().torch()


def looked(batch: Any, tmp_path: Path) -> list[str]:
    checked.CheckedAlgorithm(str(tmp_path)).make_trainer(checked._Network()).update(batch)
    assert checked.read_rows(tmp_path) == 256
    return checked.read_faults(tmp_path)


def test_what_the_environment_did_has_no_faults(batch: Any, tmp_path: Path) -> None:
    assert looked(batch, tmp_path) == []
    assert batch.terminated.any() and batch.truncated.any()


@pytest.mark.parametrize("field", ["obs", "next_obs", "reward", "discount"])
def test_a_row_that_is_not_as_it_was_written_is_a_fault(batch: Any, tmp_path: Path, field: str) -> None:
    row = int((~batch.terminated).nonzero()[7])
    getattr(batch, field)[row] += 1
    assert len(looked(batch, tmp_path)) >= 1


def test_a_next_observation_of_another_episode_is_a_fault(batch: Any, tmp_path: Path) -> None:
    first, second = (~batch.terminated).nonzero()[[3, 9]].ravel().tolist()
    batch.next_obs[first] = batch.next_obs[second]
    assert any("another episode" in fault for fault in looked(batch, tmp_path))


def test_what_a_learner_counted_stays_when_its_successor_begins(batch: Any, tmp_path: Path) -> None:
    for count in (1, 2):  # of the same process number, too
        trainer = checked.CheckedAlgorithm(str(tmp_path)).make_trainer(checked._Network())
        assert checked.read_rows(tmp_path) == 512 * (count - 1)
        for _ in range(2):
            trainer.update(batch)
    assert checked.read_rows(tmp_path) == 1024


def test_weights_that_are_torn_or_older_than_before_are_faults(tmp_path: Path) -> None:
    algorithm, network = checked.CheckedAlgorithm(str(tmp_path)), checked._Network()
    act = partial(algorithm.act, obs=torch.zeros(2, 4), generator=np.random.default_rng())
    with torch.no_grad():
        network.weights.fill_(5.0)
        act(network)
        assert checked.read_faults(tmp_path) == []
        network.weights.fill_(4.0)
        act(network)
        network.weights[77] = 6.0
        act(network)
    assert checked.read_faults(tmp_path) == ["older weights: 4 after 5", "torn weights: from 4 to 6"]
