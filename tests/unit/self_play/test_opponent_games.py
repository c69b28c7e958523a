"""Evaluations in self-play: they play against the pool and the anchors, and keep the best weights."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from arena import ANCHOR, SIDES, Arena, Marking, episodes_of, weak
from batches import acting_policy

import marlcore as mc
from marlcore.config import AssignedPolicy
from marlcore.envs import vectorize
from marlcore.loops import Candidate, PolicyModel
from marlcore.record import KeptCheckpoints, checkpoint_path, load_checkpoint
from marlcore.self_play import OpponentGames, Opponents
from marlcore.self_play.opponent_games import paired, spread

SPACES = mc.Spaces(Arena(Path()).observation_space("left"), Arena(Path()).action_space("left"))


class Store:
    """A pool, and a policy's publications: each version's weight is `marks[version]`."""

    def __init__(self, model: PolicyModel, marks: dict[int, float]) -> None:
        self._model, self.marks = model, marks
        self.version, self.extras = 0, {"step": 0.0, "updates": 0.0}
        self.begins_after, self.slots = 0, 4

    def subscriber(self, model: PolicyModel) -> Any:
        self._model = model
        return self

    def pull_version(self, version: int) -> bool:
        if version in self.marks:
            self._model.model.mark.data.fill_(self.marks[version])
        return version in self.marks

    def publish(self, mark: float, step: int) -> None:
        self.version += 1
        self.extras = {"step": float(step), "updates": 0.0}
        self._model.model.mark.data.fill_(mark)


class Scene:
    """Evaluations of a policy whose weight the test sets; the higher weight wins a game."""

    def __init__(
        self, folder: Path, stack: ExitStack, episodes: int = 8, anchors: tuple[Any, ...] = (weak,), side: str = "both"
    ) -> None:
        (folder / "checkpoints").mkdir(exist_ok=True)
        self.folder = folder
        self.env = stack.enter_context(closing(vectorize(partial(Arena, folder), 3)))
        model = PolicyModel(Marking().make_model(SPACES))
        self.published, self.pool = Store(model, {}), Store(model, {1: 0.0, 2: 10.0, 3: 20.0})
        self.pool.version = 3
        settings = mc.SelfPlayConfig(pool=4, anchors=dict.fromkeys(anchors, 0.1), side=side)
        config = mc.Config(self_play=settings, evaluation=mc.EvaluationConfig(interval=1, episodes=episodes))
        kept = KeptCheckpoints(folder, "main", keep=2)
        policy, pool = AssignedPolicy("main", SIDES, SPACES, Marking()), cast("mc.ParameterStore", self.pool)
        candidate = Candidate(policy, acting_policy(policy.algorithm, model.model, SPACES, 3), self.published, kept)
        opponents = Opponents([policy], [pool], config, 3, np.random.default_rng(), torch.device("cpu"))
        self.metrics: dict[tuple[str, str], float] = {}
        self.games = OpponentGames(
            self.env, candidate, config, opponents, lambda step: step,
            lambda agent, name, value, step: self.metrics.__setitem__((agent, name), value),
        )  # fmt: skip

    def at(self, step: int, mark: float, may_go_on: Callable[[], bool] = lambda: True) -> bool:
        """Evaluates the weight `mark`."""
        for path in self.folder.glob("*.jsonl"):
            path.unlink()
        self.metrics.clear()
        self.published.publish(mark, step)
        return self.games.play(step, may_go_on)

    @property
    def played(self) -> Counter[tuple[float, float]]:
        """Counts the games by the weights of the left and of the right player."""
        return Counter((acted["left"][0], acted["right"][0]) for acted in episodes_of(self.folder).values())

    @property
    def best(self) -> int:
        """The step of the best weights."""
        return int(load_checkpoint(checkpoint_path(self.folder, "main", "best"))["step"])


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    with ExitStack() as stack:
        yield lambda **options: Scene(tmp_path, stack, **options)


def test_each_opponent_is_met_on_both_sides_in_equal_shares() -> None:
    games = paired(12, 2, [7, 3], range(2))
    assert games.opponents.tolist() == [-1, -1, -2, -2, 7, 7, -1, -1, -2, -2, 3, 3]
    assert games.sides.tolist() == [0, 1] * 6 and games.groups.tolist() == [0, 0, 1, 1, 2, 2] * 2
    assert paired(3, 1, [], [1]).opponents.tolist() == [-1, -1, -1]
    assert paired(4, 0, [5, 4, 2], [1]).opponents.tolist() == [5, 4, 2, 5]
    assert [spread(range(3, 11), most) for most in (1, 2, 3)] == [[10], [10, 3], [10, 7, 3]]
    assert spread(range(3, 5), 9) == [4, 3] and spread(range(0), 2) == []


def test_the_policy_never_meets_itself(scene: Callable[..., Scene]) -> None:
    """A policy that plays itself has the return 0, whatever it learned."""
    evaluations = scene()
    assert evaluations.at(5, mark=15.0)
    met = {(15.0, ANCHOR): 2, (ANCHOR, 15.0): 2, **{pair: 1 for m in (0.0, 20.0) for pair in ((15.0, m), (m, 15.0))}}
    played = evaluations.played
    assert all(played[pair] >= times for pair, times in met.items()) and (15.0, 15.0) not in played
    assert {name: value for (agent, name), value in evaluations.metrics.items() if agent == "main"} == {
        "eval_return": 0.5, "eval_return/anchor:weak": 1.0, "eval_return/pool": 0.0,  # it beats the oldest alone
        "eval_win_rate": 0.75, "eval_win_rate/anchor:weak": 1.0, "eval_win_rate/pool": 0.5, "eval_distinct": 8.0,
    }  # fmt: skip
    assert evaluations.metrics[("left", "eval_return")] == 0.5 and evaluations.best == 5


def test_the_best_weights_meet_the_present_pool(scene: Callable[..., Scene]) -> None:
    """Against a pool that became stronger, a better policy has a lower return than the best once had."""
    evaluations = scene()
    assert evaluations.at(1, mark=50.0) and evaluations.metrics[("main", "eval_return")] == 1.0
    evaluations.pool.marks.update({1: 60.0, 2: 70.0, 3: 80.0})
    evaluations.games.opponents.keep([])
    assert evaluations.at(2, mark=75.0) and evaluations.metrics[("main", "eval_return")] == 0.5
    assert evaluations.metrics[("main", "eval_return_of_best")] == 0.0 and evaluations.best == 2
    assert evaluations.at(3, mark=65.0) and evaluations.best == 2
    again = scene()  # of a resumed run
    again.pool.marks = evaluations.pool.marks
    assert again.at(4, mark=75.0) and again.metrics[("main", "eval_return_of_best")] == 0.5 and again.best == 2
    assert again.at(5, mark=90.0) and again.best == 5


def test_every_chosen_member_of_the_pool_plays(scene: Callable[..., Scene]) -> None:
    """Ten games are five meetings on both sides; the anchor has three of them, and the pool two."""
    evaluations = scene(episodes=10)
    assert evaluations.at(1, mark=15.0)
    assert {mark for pair in evaluations.played for mark in pair} == {15.0, ANCHOR, 0.0, 20.0}


def test_opponents_that_left_the_pool_are_not_waited_for(scene: Callable[..., Scene]) -> None:
    evaluations = scene(anchors=(), episodes=4, side="right")
    evaluations.pool.marks = {1: 3.0}
    assert evaluations.at(1, mark=5.0) and evaluations.played.keys() == {(3.0, 5.0)}
    assert evaluations.metrics[("main", "eval_return")] == 1.0 == evaluations.metrics[("right", "eval_return")]
    assert ("left", "eval_return") not in evaluations.metrics
    evaluations.pool.marks = {}
    evaluations.games.opponents.keep([])
    assert not evaluations.at(2, mark=6.0) and not evaluations.metrics, "it stays due"


def test_an_evaluation_that_is_cut_off_reports_nothing(scene: Callable[..., Scene]) -> None:
    evaluations = scene()
    evaluations.at(1, mark=1.0)
    rounds = iter([True] * 20)  # enough for the games of the newest weights, not for those of the best
    assert not evaluations.at(2, mark=2.0, may_go_on=lambda: next(rounds, False))
    assert not evaluations.metrics and evaluations.best == 1
