"""Updates for each step: held in async as in serial mode, or said aloud where nothing holds them."""

import logging
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hunt import HUNT
from processes import until
from tiers import long_but
from whole_runs import Runs, changed, metrics_of, updating, values_of

import marlcore as mc
from marlcore.config import Schedule
from marlcore.run import Launch
from marlcore.run.spec import warn_of_few_samples

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

RUNS = Runs(total_steps=1_600, mode="async", updates_per_step=0.5, updates_tolerance=4)
AGENTS = 2


STEPS = 800
RISING, FALLING = f"linear(0.001, 1, {STEPS})", f"linear(1, 0.001, {STEPS})"


@pytest.mark.parametrize(
    ("mode", "pace"),
    long_but([("serial", RISING)], product(["serial", "async"], [RISING, FALLING])),
)
def test_a_schedule_of_updates_is_held_step_by_step(tmp_path: Path, mode: str, pace: str) -> None:
    """The updates are the sum of the pace over the steps, though actors may be 1 / 0.001 steps ahead of learners."""
    result = RUNS.train(tmp_path, HUNT, total_steps=STEPS, updates_per_step=pace, updates_tolerance=1, mode=mode)
    schedule = Schedule.from_value("pace", pace)
    expected = sum(schedule.at(step) for step in range(RUNS.config.learner.warmup * AGENTS, STEPS, AGENTS))
    assert all(abs(count - expected) < 0.02 * expected for count in result.updates.values()), (result.updates, expected)
    reported = [m for m in metrics_of(result.run_dir) if m.name == "updates_per_step"]
    assert reported and all(abs(m.value - schedule.at(m.step)) < 160 / STEPS for m in reported)


@pytest.mark.long
def test_a_free_run_that_trains_on_few_of_its_samples_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="marlcore"):
        few = {"updates_per_step": None, "learner": {"batch_size": 1}}
        slow = updating(mc.DQN, lambda update, batch: (time.sleep(0.2), update(batch))[1])
        result = RUNS.train(tmp_path, HUNT, slow(), total_steps=4_000, **few)
    ratio = result.updates["agent_0"] / 2_000
    assert ratio < 1.0
    assert f"agent_0 trained on {ratio:.2g} samples for each of its steps" in caplog.text


def test_only_policies_with_few_samples_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Here an update draws 16 of 1,000 transitions."""
    asked = Launch.checked(HUNT, "dqn", changed(RUNS.config, updates_per_step=None)).spec
    warn_of_few_samples(asked, 2_000, {"agent_0": 60, "agent_1": 63})
    assert [message.partition(" for each")[0] for message in caplog.messages] == [
        "updates_per_step: agent_0 trained on 0.96 samples"
    ]


@pytest.mark.long
@pytest.mark.parametrize("prefetch", [0, 2])
def test_learners_of_a_free_run_wait_for_their_warm_up(tmp_path: Path, prefetch: int) -> None:
    learned = tmp_path / "learned"

    class Halting(HUNT.func):  # type: ignore[misc, name-defined]
        """Rests after its second episode, until each learner has waited in vain, and later, until one has learned."""

        episodes = 0

        def reset(self, *seed: Any) -> None:
            self.episodes += 1
            time.sleep(0.5 * (self.episodes == 3))
            until(lambda: self.episodes < 12 or learned.exists())
            super().reset(*seed)

    noting = updating(mc.DQN, lambda update, batch: (update.__self__.updates < 2 or learned.touch(), update(batch))[1])
    learner, halting = {"prefetch": prefetch, "warmup": 200, "log_interval": 1}, partial(Halting, **HUNT.keywords)
    free: Any = {"updates_per_step": None, "supervision": {"max_restarts": 0}}
    result = RUNS.train(tmp_path, halting, noting(), learner=learner, **free)
    assert result.steps == RUNS.config.total_steps
    rows = values_of(result.run_dir, "rows")
    assert len(rows) > 1 and min(rows) >= 200


def test_actors_of_a_free_run_wait_for_no_update(tmp_path: Path) -> None:
    """Each learner's first update ends when most steps are taken; by then full lanes have lost their oldest rows."""
    most_taken = tmp_path / "most taken"

    class Counting(HUNT.func):  # type: ignore[misc, name-defined]
        steps = 0

        def step(self, action: Any) -> None:
            super().step(action)
            self.steps += 1
            if self.steps == 700:  # of this copy
                most_taken.touch()

    waiting = updating(mc.DQN, lambda update, batch: (until(most_taken.exists), update(batch))[1])
    free: Any = {"updates_per_step": None, "replay": {"capacity": 200}, "learner": {"log_interval": 1}}
    result = RUNS.train(tmp_path, partial(Counting, **HUNT.keywords), waiting(), **free)
    rows = values_of(result.run_dir, "rows")
    assert rows and set(rows) <= set(range(190, 201))


def test_a_run_that_ends_before_its_warm_up_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="marlcore"):
        result = RUNS.train(tmp_path, HUNT, mode="serial", total_steps=91)
    assert set(result.updates.values()) == {0}
    assert "learner.warmup: agent_1 takes 45.5 of the 91 steps" in caplog.text
