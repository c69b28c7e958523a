"""Hindsight against an oracle of plain lists: the goals that a row may get, their frequencies, and their rewards."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from model import chi_square_limit
from tiers import long_but

from marlcore import Field, Hindsight, Mixture, Prefetch, Prioritized, ReplayBuffer, TransitionSpec
from marlcore.replay.hindsight import Relabelling
from marlcore.transitions import ReadPlan

GOAL = Field((4,), "int32")  # lane, episode, step, whether it was achieved
SPEC = TransitionSpec(
    {"observation": Field((), "int64"), "achieved_goal": GOAL, "desired_goal": GOAL},
    Field((), "int64"),
    {"bonus": Field()},
)
STRATEGIES = ["future", "final", "episode"]
ENDINGS = ["truncated", "terminated", "terminated with final_obs", "broken off"]
ROWS = 60  # of a lane

Goal = tuple[int, ...]


def reward_of(achieved: Any, desired: Any, info: Any) -> Any:
    """Returns a number that differs for different values of any argument."""
    return 100.0 * achieved[..., 2] + desired[..., 2] + info["bonus"]


class Step(NamedTuple):
    """The oracle's view of one row; `goals` has the achieved goals of all rows of its episode, by ticket."""

    goals: dict[int, Goal]
    achieved: Goal
    terminated: bool
    truncated: bool

    def allowed(self, strategy: str, ticket: int, lo: int) -> list[Goal]:
        """Returns the goals that the row may get; none if its next observation is not stored."""
        if ticket + 1 not in self.goals:
            return []
        if strategy == "final":
            return [self.goals[max(self.goals)]]
        first = min(self.goals) + 1 if strategy == "episode" else ticket + 1
        return [goal for other, goal in self.goals.items() if other >= max(first, lo)]


def observed(lane: int, episode: int, step: int, ticket: int = 0) -> dict[str, Any]:
    return {
        "observation": ticket,
        "achieved_goal": np.array([lane, episode, step, 1], np.int32),
        "desired_goal": np.array([lane, episode, -1, 0], np.int32),
    }


class Written:
    """Writes two lanes of episodes of 1 to 9 steps, with each kind of end; the lanes' oldest rows are overwritten."""

    def __init__(self, replay: ReplayBuffer, episodes: int = 40) -> None:
        rng = np.random.default_rng(3)
        self.steps: dict[tuple[int, int], Step] = {}
        for lane in range(replay.lanes):
            with replay.writer(lane) as writer:
                for episode in range(episodes):
                    last, goals = int(rng.integers(1, 10)), {}
                    ending = "broken off" if episode == episodes - 1 else ENDINGS[episode % 4]
                    for step in range(last):
                        ends = step == last - 1 and ending != "broken off"
                        final = observed(lane, episode, last) if ends and ending != "terminated" else None
                        terminated, truncated = ends and ending != "truncated", ends and ending == "truncated"
                        ticket = writer.add(
                            observed(lane, episode, step), 0, -1.0,
                            terminated=terminated, truncated=truncated, final_obs=final, bonus=0.25 * lane,
                        )  # fmt: skip
                        goals[ticket] = (lane, episode, step, 1)
                        self.steps[lane, ticket] = Step(goals, goals[ticket], terminated, truncated)
                        if final:
                            goals[ticket + 1] = (lane, episode, last, 1)
                    if ending == "broken off" and episode < episodes - 1:
                        writer.new_episode()
        counts = replay._mapped.native.committed
        self.lo = [max(0, counts(lane) - ROWS) for lane in range(replay.lanes)]


@pytest.fixture
def replay() -> Iterator[ReplayBuffer]:
    with ReplayBuffer.create(SPEC, 2 * ROWS, lanes=2) as made:
        yield made


@pytest.mark.parametrize("strategy", long_but(["future"], STRATEGIES))
@pytest.mark.parametrize(
    "options",
    [{}, {"stack": 3}, {"stack": 3, "pad": "zero"}, {"prioritized": Prioritized()}, {"lanes": [range(1), range(1, 2)]}],
    ids=["plain", "stack", "zeros", "prioritized", "mixture"],
)
def test_rows_get_each_allowed_goal_equally_often(replay, strategy, options):
    """Reward, termination and discount are those of the new goal."""
    written = Written(replay)
    hindsight = Hindsight(3, strategy, reward_of, lambda achieved, desired, info: (achieved == desired).all(axis=-1))
    options |= {"gamma": 0.5, "seed": 1, "min_size": 1, "hindsight": hindsight}
    make = partial(Mixture, [replay] * 2, [0.4, 0.6]) if "lanes" in options else replay.sampler
    sampler = make(500, **options)
    counts: dict[tuple[int, int], Counter[Goal]] = {}
    stacked, relabelled, able = options.get("stack", 1) > 1, 0, 0
    for _ in range(40):
        batch = sampler.sample()
        obs, after = batch.obs, batch.next_obs
        goals, next_goals = obs["desired_goal"], after["desired_goal"]
        if stacked:
            real = batch.valid if options.get("pad") == "zero" else np.ones_like(batch.valid)
            assert (goals[~real] == 0).all() and (goals == goals[:, -1:])[real].all()
            assert (next_goals[:, -1] == goals[:, -1]).all()
            goals, next_goals = goals[:, -1], next_goals[:, -1]
        achieved = after["achieved_goal"][:, -1] if stacked else after["achieved_goal"]
        for i, index in enumerate(batch.index.tolist()):
            ticket, lane = divmod(index, replay.lanes)  # a mixture's source is the lane here
            step, goal = written.steps[lane, ticket], tuple(goals[i].tolist())
            allowed = step.allowed(strategy, ticket, written.lo[lane])
            relabelled, able = relabelled + batch.relabelled[i], able + bool(allowed)
            if not batch.relabelled[i]:
                assert goal == (lane, step.achieved[1], -1, 0)
                expected = -1.0, step.terminated
            else:
                assert goal in allowed and (next_goals[i] == goals[i]).all()
                assert tuple(achieved[i].tolist()) == step.goals[ticket + 1]
                expected = 100.0 * achieved[i][2] + goal[2] + 0.25 * lane, goal == step.goals[ticket + 1]
                counts.setdefault((lane, ticket), Counter(dict.fromkeys(allowed, 0)))[goal] += 1
            assert (batch.reward[i], batch.terminated[i]) == expected
            assert batch.discount[i] == (0.0 if expected[1] else 0.5)
            assert batch.truncated[i] == step.truncated
    assert abs(relabelled / able - 0.75) < 5 * (0.75 * 0.25 / able) ** 0.5
    for drawn in counts.values():
        mean = drawn.total() / len(drawn)
        deviation = sum((count - mean) ** 2 / mean for count in drawn.values())
        assert len(drawn) == 1 or deviation < chi_square_limit(len(drawn))


def test_functions_are_called_once_for_a_batch(replay):
    """Each call gets all rows; without compute_terminated, a row keeps its stored end."""
    Written(replay)
    calls: list[tuple[Any, ...]] = []

    def reward(achieved: Any, desired: Any, info: Any) -> Any:
        calls.append((achieved.shape, desired.shape, sorted(info)))
        return np.zeros(len(achieved))

    plain, sampler = (replay.sampler(64, seed=0, hindsight=h) for h in (None, Hindsight(compute_reward=reward)))
    batch = sampler.sample()
    assert calls == [((64, 4), (64, 4), ["bonus"])]
    assert set(batch.reward[batch.relabelled]) == {0.0} and set(batch.reward[~batch.relabelled]) == {-1.0}
    assert 0 < batch.terminated.sum() < 64 and (batch.terminated == (batch.discount == 0)).all()
    assert plain.sample().relabelled is None
    pytest.importorskip("torch")
    with Prefetch(sampler) as ahead:
        assert ahead.sample().torch().relabelled.any()


@pytest.mark.parametrize(
    ("functions", "says"),
    [
        ((lambda a, d, i: 0.0, None), r"compute_reward: expected numbers \[64\], got float64 \[\]"),
        ((reward_of, lambda a, d, i: np.zeros(64)), r"compute_terminated: expected bools \[64\], got float64 \[64\]"),
    ],
)
def test_a_wrong_result_is_refused(replay, functions, says):
    Written(replay)
    with pytest.raises(ValueError, match=says):
        replay.sampler(64, hindsight=Hindsight(4, "future", *functions)).sample()


def overtaken(replay: ReplayBuffer, monkeypatch: pytest.MonkeyPatch) -> int:
    """Draws while a writer overwrites goals' rows after the drawn rows were copied; returns the number of lapped rows.

    One episode of 40 rows fills most of the lane; the writer then overwrites its first 20 rows with another episode.
    """
    relabel, writer = Relabelling.draw, replay.writer()
    for step in range(40):
        writer.add(observed(0, 0, step), 0, 0.0, bonus=0.0)

    def late(self: Relabelling, memory: Any, rows: Any, filled: int) -> None:
        if filled and len(batches) == 0:
            batches.append(filled)
            writer.new_episode()
            for step in range(40):
                writer.add(observed(0, 1, step), 0, 0.0, bonus=0.0)
        relabel(self, memory, rows, filled)

    batches: list[int] = []
    monkeypatch.setattr(Relabelling, "draw", late)
    sampler = replay.sampler(200, seed=0, hindsight=Hindsight(4, "episode", reward_of), min_size=1)
    with writer:
        batch = sampler.sample()
    goals = batch.obs["desired_goal"]
    assert (goals[:, 1] == batch.obs["achieved_goal"][:, 1]).all(), "a goal of another episode"
    assert (batch.index // 2 >= 20).all()
    return sampler.stats.lapped


def test_a_lapped_goal_is_drawn_again_and_counted(replay, monkeypatch):
    assert overtaken(replay, monkeypatch) > 100  # 20 of 40 rows, and most others' goals


def test_control_without_the_goals_tickets_it_is_not(replay, monkeypatch):
    """The control validates only the drawn rows' tickets, not those of their goals."""
    made = ReadPlan.__init__
    monkeypatch.setattr(ReadPlan, "__init__", lambda self, *options: made(self, *options[:3]))
    with pytest.raises(AssertionError, match="a goal of another episode"):
        overtaken(replay, monkeypatch)
