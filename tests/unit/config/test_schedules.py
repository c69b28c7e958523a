"""Schedules as numbers, text and functions; their values against plain formulas."""

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import check_refused
from whole_runs import Runs, updating

import marlcore as mc
from marlcore.config import EPSILON, Custom, schedules_of
from marlcore.config.schedules import Stages

pytestmark = pytest.mark.usefixtures("undrawn")

counts = st.integers(0, 10**7)
numbers = st.floats(-1e6, 1e6, allow_nan=False)


@given(numbers, numbers, st.integers(1, 10**6), counts)
def test_linear(start, end, over, count):
    expected = end if count >= over else start + (end - start) * count / over
    assert mc.Linear(start, end, over).at(count) == pytest.approx(expected)


@given(st.floats(0.1, 10), st.floats(0.001, 0.1), st.floats(0.5, 0.999), st.integers(1, 1000), counts)
def test_exponential_stops_at_its_end(start, end, rate, every, count):
    value = mc.Exponential(start, end, rate, every).at(count)
    assert value == pytest.approx(max(end, start * math.exp(math.log(rate) * count / every)))


def test_an_exponential_beyond_floats_is_at_its_end():
    assert mc.Exponential(1.0, 20.0, rate=2.0).at(10**7) == 20.0


@pytest.mark.parametrize("start, end, rate", [(1.0, 0.02, 1.05), (0.1, 1.0, 0.95), (-1.0, 1.0, 2.0)])
def test_an_exponential_leads_to_its_end(start, end, rate):
    with pytest.raises(ValueError, match="exponential rate: expected one that does not lead away from end, got"):
        mc.Exponential(start, end, rate)


def test_piecewise_is_linear_between_its_points():
    schedule = mc.Piecewise(((10, 1.0), (20, 0.0), (40, 0.5)))
    assert [schedule.at(count) for count in (0, 10, 15, 20, 30, 40, 100)] == [1.0, 1.0, 0.5, 0.0, 0.25, 0.5, 0.5]


EXAMPLES = [
    mc.Constant(0.25),
    mc.Linear(1.0, 0.05, 50_000),
    mc.Linear(1.0, 0.05, 50_000, of="updates"),
    EPSILON,
    mc.Piecewise(((0, 1.0), (10, 0.5))),
    Custom(math.sqrt),
]


@pytest.mark.parametrize("schedule", EXAMPLES, ids=str)
def test_the_text_of_a_schedule_gives_it_back(schedule):
    assert mc.Schedule.from_value("epsilon", str(schedule)) == schedule


def test_numbers_and_functions_are_schedules():
    assert mc.Schedule.from_value("epsilon", 0.5) == mc.Constant(0.5)
    assert mc.Schedule.from_value("epsilon", "0.5") == mc.Constant(0.5)
    assert mc.Schedule.from_value("epsilon", lambda count: count / 2).at(3) == 1.5


def test_the_ladder_of_ape_x():
    """Horgan et al. 2018, section 4.1: epsilon_i = epsilon^(1 + alpha i / (N - 1))."""
    assert mc.ExplorationConfig(ladder=7.0).exponents(3) == [1.0, 4.5, 8.0]
    assert mc.ExplorationConfig().exponents(2) == [1.0, 1.0]
    assert mc.ExplorationConfig(ladder=7.0).exponents(1) == [1.0]


class Warm(mc.DQN):
    """Has a schedule "heat" and an epsilon of its own."""

    def schedules(self) -> dict[str, object]:
        return {"heat": "linear(0, 1, 10)", "epsilon": 0.05}


class Bare:
    """An algorithm that does not derive from mc.Algorithm, and has no schedules."""

    def source(self, chosen: mc.ReplaySource) -> mc.ReplaySource:
        return chosen


def test_the_configurations_schedules_come_before_the_algorithms():
    asked = mc.Config(exploration=mc.ExplorationConfig(epsilon=0.3, schedules={"heat": 2, "more": 1}))
    assert schedules_of(mc.DQN(), mc.Config()) == {"epsilon": EPSILON}
    assert schedules_of(Bare(), mc.Config()) == {"epsilon": EPSILON}  # type: ignore[arg-type]
    assert schedules_of(Warm(), mc.Config()) == {"epsilon": mc.Constant(0.05), "heat": mc.Linear(0, 1, 10)}
    assert schedules_of(Warm(), asked) == {"epsilon": mc.Constant(0.3), "heat": mc.Constant(2), "more": mc.Constant(1)}
    assert schedules_of(Warm(), mc.Config(stages=(5,)))["stage"] == Stages((5,))


class Taken(mc.DQN):
    """Gives a schedule the name of a number that learners publish anyway."""

    def schedules(self) -> dict[str, object]:
        return {"odds": 1.0}


def test_an_algorithm_does_not_replace_what_learners_publish():
    check_refused(lambda: schedules_of(Taken(), mc.Config()), ValueError, "schedules of Taken: 'odds' is the name of")


def test_stages_count_the_beginnings_that_were_reached():
    assert [Stages((10, 30)).at(count) for count in (0, 9, 10, 29, 30, 99)] == [0, 0, 1, 1, 2, 2]
    assert mc.Config(stages=[10, 30]).schedules["stage"] == Stages((10, 30))


def note(update: Any, batch: Any) -> mc.Update:
    Staged.published.append(tuple(batch.numbers[name] for name in ("step", "stage", "updates")))
    Staged.trained += [(batch.numbers["stage"], stage) for stage in batch.extras["stage"].tolist()]
    return update(batch)


class Staged(updating(mc.DQN, note)):  # type: ignore[misc]
    """Rows store the stage of the weights that acted; each update notes its own numbers, and the stages of its rows."""

    trained: ClassVar[list[tuple[float, float]]] = []
    published: ClassVar[list[tuple[float, float, float]]] = []

    def transition(self, spaces: mc.Spaces) -> mc.TransitionSpec:
        return replace(super().transition(spaces), extras={"stage": mc.Field()})

    def act(self, model: Any, obs: Any, *, explore: Any, **options: Any) -> Any:
        chosen = super().act(model, obs, explore=explore, **options)
        return chosen._replace(extras={"stage": np.full(len(obs), explore.get("stage", 0), np.float32)})


@pytest.fixture
def staged(tmp_path, undrawn):
    """A function that trains `Staged` in a short run."""
    Staged.trained.clear()
    Staged.published.clear()

    runs = Runs(actor={"sync_interval": 1, "envs": 1}, learner={"publish_interval": 1, "n_step": 1})
    return partial(runs.train, tmp_path, "gymnasium:CartPole-v1", Staged(hidden=(8,)))


@pytest.mark.parametrize("stages", [(), (100, 200)])
def test_updates_are_told_step_and_stage(staged, stages):
    """The numbers are those of the last publication, here the one after the previous update."""
    staged(total_steps=300, stages=stages)
    steps, _, updates = zip(*Staged.published, strict=True)
    assert [*updates] == [*range(len(updates))] and [*steps] == sorted(steps) and 0 < steps[1] < steps[-1] <= 300
    assert all(stage == sum(step >= begin for begin in stages) for step, stage, _ in Staged.published)
    assert {stage for _, stage, _ in Staged.published} == {*range(len(stages) + 1)}


@pytest.mark.long
@pytest.mark.parametrize(("clears", "mixed"), [(True, set()), (False, {(0, 1), (0, 2), (1, 2)}), (("late",), {(0, 1)})])
def test_a_stage_that_begins_clears_the_replay(staged, clears, mixed):
    """One action may still be of the previous stage, since it was chosen before the publication."""
    replay = mc.ReplayConfig(clear_at_stage=clears)
    staged(total_steps=3000, stages=(1000, 2000), stage_names=("early", "late"), replay=replay)
    assert {stage for stage, _ in Staged.trained} == {0, 1, 2}
    counts = Counter((acted, now) for now, acted in Staged.trained if acted < now)
    assert {pair for pair, count in counts.items() if count > 0.02 * len(Staged.trained)} == mixed
