"""Updates for each step: held in async as in serial mode, or said aloud where nothing holds them."""

import logging
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hunt import HUNT

import marlcore as mc
from marlcore.training import Schedule, read_metrics

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

CONFIG = mc.Config(
    total_steps=1_600,
    updates_per_step=0.5,
    updates_tolerance=4,
    actor=mc.ActorConfig(envs=2, sync_interval=10),
    learner=mc.LearnerConfig(batch_size=16, warmup=50, log_interval=10, device="cpu"),
)
AGENTS = 2


def train(run_dir: Path, **changes: Any) -> Any:
    return mc.train(HUNT, "dqn", replace(CONFIG, run_dir=str(run_dir), **changes), progress=False)


def test_a_short_run_with_the_default_settings_learns(tmp_path: Path) -> None:
    config = mc.Config(total_steps=3_000, run_dir=str(tmp_path / "run"))
    result = mc.train(HUNT, "dqn", config, progress=False)
    assert config.updates_per_step is not None
    expected = config.updates_per_step * (1_500 - config.learner.warmup)
    assert all(count >= expected - 4 for count in result.updates.values()), result.updates


RISING, FALLING = "linear(0.001, 1, 1600)", "linear(1, 0.001, 1600)"


@pytest.mark.parametrize(
    ("mode", "pace"),
    [("serial", RISING), ("async", FALLING)]
    + [pytest.param(*case, marks=pytest.mark.long) for case in (("serial", FALLING), ("async", RISING))],
)
def test_a_schedule_of_updates_is_held_step_by_step(tmp_path: Path, mode: str, pace: str) -> None:
    """The updates are the sum of the pace over the steps, though actors may be 1 / 0.001 steps ahead of learners."""
    result = train(tmp_path / "run", updates_per_step=pace, updates_tolerance=1, mode=mode)
    schedule = Schedule.from_value("pace", pace)
    expected = sum(schedule.at(step) for step in range(CONFIG.learner.warmup * AGENTS, CONFIG.total_steps, AGENTS))
    assert all(abs(count - expected) < 0.02 * expected for count in result.updates.values()), (result.updates, expected)
    reported = [m for m in read_metrics(result.run_dir / "metrics.csv") if m.name == "updates_per_step"]
    assert reported and all(abs(m.value - schedule.at(m.step)) < 0.1 for m in reported)


@pytest.mark.long
def test_a_free_run_that_trains_on_few_of_its_samples_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="marlcore"):
        learner = replace(CONFIG.learner, batch_size=1)
        result = train(tmp_path / "run", updates_per_step=None, total_steps=4_000, learner=learner)
    ratio = result.updates["agent_0"] / 2_000
    assert ratio < 1.0
    assert f"agent_0 trained on {ratio:.2g} samples for each of its steps" in caplog.text


class Late(HUNT.func):  # type: ignore[misc, name-defined]
    """Gives its first observation when every learner has waited for data in vain."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        time.sleep(0.5)


@pytest.mark.long
@pytest.mark.parametrize("prefetch", [0, 2])
def test_learners_of_a_free_run_wait_for_their_warm_up(tmp_path: Path, prefetch: int) -> None:
    changes: dict[str, Any] = {
        "updates_per_step": None,
        "learner": replace(CONFIG.learner, prefetch=prefetch, warmup=200),
        "supervision": mc.SupervisionConfig(max_restarts=0),
        "run_dir": str(tmp_path / "run"),
    }
    result = mc.train(partial(Late, **HUNT.keywords), "dqn", replace(CONFIG, **changes), progress=False)
    assert result.steps == CONFIG.total_steps


def test_a_run_that_ends_before_its_warm_up_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="marlcore"):
        result = train(tmp_path / "run", mode="serial", total_steps=91)
    assert set(result.updates.values()) == {0}
    assert "learner.warmup: agent_1 takes 45.5 of the 91 steps" in caplog.text
