"""Evaluations play exactly the episodes that they should, and keep the best weights."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import acting_policy
from gymnasium import spaces as gym

from marlcore import loops
from marlcore.config import AssignedPolicy
from marlcore.errors import TimedOut
from marlcore.interfaces import Action, Outcome, Turn
from marlcore.loops.episodes import t_975
from marlcore.record import KeptCheckpoints, checkpoint_path, kept_steps, load_checkpoint
from marlcore.spaces import Spaces

SPACES = Spaces(gym.Box(-1e6, 1e6, (1,)), gym.Discrete(2))


class Walks:
    """Copies whose episodes last `lengths` steps. "walker" earns its copy's number plus its action at each step;
    "guest" acts in the first step only, and earns 10.
    """

    agents = ("walker", "guest")
    spaces = dict.fromkeys(agents, SPACES)
    info_at_the_end = staticmethod(lambda copy: {"copy": float(copy)})

    def __init__(self, *lengths: int) -> None:
        self.copies = len(lengths)
        self._lengths = np.array(lengths)
        self.seeds: list[int] = []

    def reset(self, seed: int) -> None:
        self.seeds.append(seed)
        self._at = np.zeros(self.copies, np.int64)
        self.ended = np.zeros(self.copies, np.int64)
        self._outcomes: list[Outcome] = []

    @property
    def episodes(self) -> int:
        return int(self.ended.sum())

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        over = self._at == self._lengths
        self.ended += over
        self._at[over] = 0
        outcomes, self._outcomes = self._outcomes, []
        turns = [self._turn("walker", np.arange(self.copies))]
        if "guest" in self.agents and (begins := np.flatnonzero(self._at == 0)).size:
            turns.append(self._turn("guest", begins))
        return outcomes, turns

    def _turn(self, agent: str, copies: np.ndarray) -> Turn:
        return Turn(agent, copies, np.ones((len(copies), 1), np.float32), self._at[copies] == 0)

    def act(self, turn: Turn, action: np.ndarray) -> None:
        copies, alive = turn.copies, np.zeros(len(turn.copies), bool)
        if turn.agent == "guest":
            self._outcomes.append(Outcome("guest", copies, np.full(len(copies), 10.0), ~alive, alive, turn.obs))
            return
        self._at += 1
        over = self._at == self._lengths
        before = [(copy, {"copy": -1.0}) for copy in np.flatnonzero(~over).tolist()]  # as if it came back each time
        infos = [*before, *((copy, self.info_at_the_end(copy)) for copy in np.flatnonzero(over).tolist())]
        self._outcomes.append(Outcome("walker", copies, copies + 1.0 * action, over, alive, turn.obs, infos))

    def close(self) -> None:
        pass


class Constant:
    """Always chooses the action that is its model's only weight."""

    def act(self, model: torch.nn.Module, obs: Any, *, generator: np.random.Generator, **_: Any) -> Action:
        return Action(np.full(len(obs), int(model.weight.item()), np.int64))


def model(action: int = 0) -> loops.PolicyModel:
    made = torch.nn.Linear(1, 1, bias=False)
    made.weight.data.fill_(action)
    return loops.PolicyModel(made)


def players(env: Walks, action: int = 0) -> dict[str, loops.ActingPolicy]:
    return {agent: acting_policy(Constant(), model(action).model, SPACES, env.copies) for agent in env.agents}


def played(env: Walks, episodes: int, **options: Any) -> loops.Evaluation:
    outcome = loops.play(env, players(env), episodes, seed=0, **options)
    assert outcome is not None
    return outcome


@pytest.mark.parametrize(("episodes", "counted"), [(7, [3, 2, 2]), (3, [1, 1, 1]), (2, [1, 1, 0]), (1, [1, 0, 0])])
def test_the_first_episodes_of_each_copy_count(episodes, counted):
    """Copies with short episodes end many more, which do not count."""
    lengths = (2, 5, 11)
    outcome = played(Walks(*lengths), episodes)
    assert outcome.episodes == episodes
    of_copies = [copy for copy in range(3) for _ in range(counted[copy])]
    assert outcome.returns["walker"].tolist() == [copy * lengths[copy] for copy in of_copies]
    assert outcome.lengths["walker"].tolist() == [lengths[copy] for copy in of_copies]
    assert outcome.returns["guest"].tolist() == [10.0] * episodes
    assert outcome.lengths["guest"].tolist() == [1] * episodes
    assert outcome.infos == {"walker": {"copy": pytest.approx(np.mean(of_copies))}, "guest": {}}


def test_no_action_follows_the_last_episode() -> None:
    env, rounds = Walks(1), []
    played(env, 2, goes_on=lambda: rounds.append(1) is None)
    assert len(rounds) == 3 and env._at.tolist() == [0]


def test_play_leaves_torchs_generator_alone():
    env = Walks(2)
    acting = players(env)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    loops.play(env, acting, 1, seed=9)
    assert torch.rand(1) == expected


def test_play_stops_in_the_middle_of_an_episode():
    rounds = iter([True, True, False])
    env = Walks(1000)
    assert loops.play(env, players(env), 1, seed=0, goes_on=lambda: next(rounds)) is None
    assert env._at.tolist() == [2]


def test_quantiles_of_students_t_are_those_of_the_tables():
    table = {1: 12.7062, 9: 2.2622, 10: 2.2281, 11: 2.2010, 15: 2.1314, 16: 2.1199, 20: 2.0860, 30: 2.0423, 99: 1.9842}
    for freedom, quantile in {**table, 9999: 1.9602}.items():
        assert t_975(freedom) == pytest.approx(quantile, abs=1e-4)


def evaluation(*returns: float) -> loops.Evaluation:
    count = len(returns)
    return loops.Evaluation({"a": np.array(returns)}, {"a": np.full(count, 3)}, {"a": {"won": 0.5}}, count)


def test_an_evaluation_says_mean_and_interval():
    outcome = evaluation(1.0, 2.0, 3.0, 4.0)
    assert outcome.mean == {"a": 2.5} and outcome.std["a"] == pytest.approx(1.29099, abs=1e-5)
    assert outcome.interval["a"] == pytest.approx((2.5 - 2.05426, 2.5 + 2.05426), abs=1e-4)
    text = str(outcome)
    assert "4 episodes" in text and "0.45 to 4.55" in text and "info/won" in text and "2.50" in text


def test_copies_of_games_make_no_interval_narrower():
    games = (1.0, 2.0, 4.0, 4.0)
    once = evaluation(*games)
    for copies in (2, 10):
        assert replace(evaluation(*games * copies), distinct=4).interval["a"] == pytest.approx(once.interval["a"])


COPIES = [
    ((2,), 1, 1, "1 episode\n"),
    ((2,), 5, 1, "5 episodes  all are copies of one game"),
    ((2, 5), 6, 2, "6 episodes  2 of them distinct, the others are copies"),
    ((2, 5), 2, 2, "2 episodes\n"),
]


@pytest.mark.parametrize(("lengths", "episodes", "distinct", "says"), COPIES)
def test_games_that_are_copies_are_counted_once(lengths, episodes, distinct, says):
    """An interval of zero width would say that the mean is known exactly."""
    outcome = played(Walks(*lengths), episodes)
    assert outcome.distinct == distinct and says in str(outcome) and "nan" not in str(outcome)
    for number in (*outcome.interval["walker"], outcome.std["walker"]):
        assert math.isnan(number) == (distinct == 1)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


def add(kept: KeptCheckpoints, step: int, mean: float) -> None:
    kept.add({"acting": model(step).state_dict(), "version": step + 1, "updates": step // 2, "step": step}, mean)


def test_the_best_and_the_last_checkpoints_are_kept(run_dir):
    checkpoint_path(run_dir, "a", str(2**64)).touch()  # of nobody's step
    kept = KeptCheckpoints(run_dir, "a", keep=2)
    for step, mean in {5: 1.0, 10: 4.0, 100: 2.0, 200: 4.0, 300: math.nan}.items():
        add(kept, step, mean)
    assert kept_steps(run_dir, "a") == [200, 300] and kept.last == 300
    best = load_checkpoint(checkpoint_path(run_dir, "a", "best"))
    assert (best["step"], best["version"], best["updates"], best["return"]) == (10, 11, 5, 4.0)
    assert best["acting"]["model.weight"].item() == 10
    assert kept.best == 4.0


def best_step(run_dir: Path) -> int:
    return int(load_checkpoint(checkpoint_path(run_dir, "a", "best"))["step"])


def test_the_best_survives_a_successor(run_dir: Path) -> None:
    add(KeptCheckpoints(run_dir, "a", keep=1), 5, 3.0)
    kept = KeptCheckpoints(run_dir, "a", keep=1)
    assert (kept.best, kept.last) == (3.0, 5)
    add(kept, 6, 2.0)
    assert best_step(run_dir) == 5
    add(kept, 7, 3.5)
    assert best_step(run_dir) == 7


def test_policies_with_dots_in_their_names_keep_apart(run_dir: Path) -> None:
    names = ["a", "a.best", "a.5", "a.5.best"]
    for name in names:
        checkpoint_path(run_dir, name).touch()
        add(KeptCheckpoints(run_dir, name, keep=1), 5, 3.0)
        add(KeptCheckpoints(run_dir, name, keep=1), 6, 3.0)
    assert len(list((run_dir / "checkpoints").iterdir())) == 3 * len(names)
    assert all(kept_steps(run_dir, name) == [6] for name in names)


def test_a_best_checkpoint_is_replaced_as_a_whole(run_dir, monkeypatch):
    """If the disk is full, the earlier checkpoint stays."""
    kept = KeptCheckpoints(run_dir, "a", keep=0)
    add(kept, 5, 3.0)

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="the earlier file is kept"):
        patched.setattr("os.fsync", fail)
        add(kept, 6, 4.0)
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["a.best.pt"]  # as keep says
    assert best_step(run_dir) == 5 and kept.best == 3.0


class Publications:
    """A subscriber that the test publishes to."""

    def __init__(self, network: loops.PolicyModel) -> None:
        self._model = network
        self.newest, self.version, self.extras = 0, 0, {}
        self.torn = False

    def publish(self, action: int, step: int) -> None:
        self.newest += 1
        self._next = action, {"step": float(step), "updates": float(step // 2), "epsilon": 1.0}

    def pull(self, timeout: float = 1.0) -> bool:
        if self.torn:
            raise TimedOut
        if self.version == self.newest:
            return False
        action, self.extras = self._next
        self._model.model.weight.data.fill_(action)
        self.version = self.newest
        return True


class Scene:
    """An evaluator whose run is the test."""

    def __init__(self, run_dir: Path, interval: int = 100, seconds: float = 0.0) -> None:
        self.now, self.env, network = 0, Walks(2, 3), model()
        self.reports: list[tuple[Any, ...]] = []
        self.published, kept = Publications(network), KeptCheckpoints(run_dir, "both", keep=2)
        policy = AssignedPolicy("both", self.env.agents, SPACES, Constant())
        acting = acting_policy(Constant(), network.model, SPACES, 2)
        candidate = loops.Candidate(policy, acting, self.published, kept)
        given: Any = 4, lambda step: 1000 + step, lambda *metric: self.reports.append(metric)
        games = partial(loops.play_in_common, self.env, [candidate], *given)
        self.seconds = 0.0
        clock = lambda: self.seconds  # noqa: E731
        self.evaluator = loops.Evaluator([candidate], games, interval, lambda: self.now, seconds, clock)

    def at(self, now: int) -> bool:
        """Whether an evaluation is due at a step; if so, it is made."""
        self.now = now
        return self.evaluator.due and self.evaluator.evaluate(lambda: True)


def test_an_evaluator_reports_at_the_step_of_its_weights(run_dir):
    scene = Scene(run_dir)
    scene.published.publish(1, step=90)
    assert [now for now in (0, 50, 99, 100, 101, 199) if scene.at(now)] == [100]
    # copies of lengths 2 and 3: walker earns 2 x (0 + 1) and 3 x (1 + 1) in each of two episodes
    names = ("eval_return", "eval_length", "eval_distinct", "eval_return_std")
    walker = [4.0, 2.5, 2.0, pytest.approx(np.std([2, 2, 6, 6], ddof=1))]
    reported = {"walker": walker, "guest": [10.0, 1.0, 2.0, 0.0]}
    assert scene.reports == [(a, name, v, 90) for a in reported for name, v in zip(names, reported[a], strict=True)]
    best = load_checkpoint(checkpoint_path(run_dir, "both", "best"))
    assert (best["step"], best["updates"], best["return"]) == (90, 45, 7.0)
    assert scene.env.seeds == [1100]


@pytest.mark.parametrize("interval", [0, 1000])
def test_evaluations_come_by_time_too(run_dir, interval):
    """The time counts from the beginning of the last evaluation, or of the evaluator; evaluations by steps come too."""
    scene, due = Scene(run_dir, interval, seconds=60.0), []
    for second in (0, 59, 60, 100, 119, 120, 200):
        scene.published.publish(1, step=second)
        scene.seconds = float(second)
        if scene.at(second):
            due.append(second)
    assert due == [60, 120, 200]
    scene.published.publish(1, step=1000)
    assert scene.at(1000) == (interval > 0)


def test_results_are_the_winners_or_the_signs_of_the_returns() -> None:
    """In each episode the walker earns 1; in every other episode the judge names another winner."""
    env, judged = Walks(1), iter([{}, {"winner": 0}, {}, {"winner": -3}])
    env.info_at_the_end = lambda copy: next(judged)
    env.agents = ("walker",)
    outcome = loops.play(env, players(env, action=1), 4, seed=0)
    assert outcome is not None and outcome.results["walker"].tolist() == [1, 0, 1, -1]


def test_the_higher_return_wins() -> None:
    """Returns that differ by rounding are equal."""
    returns, others = [1.0, 1.0, 0.0, -1.0, 0.1 + 0.2, -2.0], [1.0, 0.0, 1.0, 0.0, 0.3, -2.5]
    assert loops.compared(returns, others).tolist() == [0, 1, -1, -1, 0, 1]


def test_the_same_weights_are_evaluated_once(run_dir):
    scene = Scene(run_dir)
    scene.published.publish(1, step=0)
    assert scene.at(100) and not scene.at(200) and not scene.evaluator.due
    scene.published.publish(0, step=250)
    assert scene.at(300)
    assert kept_steps(run_dir, "both") == [0, 250]


def test_skipped_evaluations_are_counted(run_dir: Path) -> None:
    """A missing evaluation after the last step counts only if it was due at that step."""
    scene, skipped = Scene(run_dir), []
    for step, final in [(50, False), (100, False), (350, False), (360, False), (400, True), (720, True)]:
        scene.published.publish(1, step)
        if final or scene.evaluator.due:
            scene.now = step
            assert scene.evaluator.evaluate(lambda: True, final)
        skipped.append(scene.evaluator.skipped)
        scene.at(step)
    assert skipped == [0, 0, 0, 1, 1, 4]


def test_an_evaluation_that_was_not_made_stays_due(run_dir):
    """Either there were no whole weights, or the evaluation was interrupted."""
    scene = Scene(run_dir)
    assert not scene.at(100) and scene.evaluator.due  # nothing was published yet
    scene.published.publish(1, step=100)
    scene.published.torn = True
    assert not scene.at(101) and scene.evaluator.due
    scene.published.torn = False
    assert not scene.evaluator.evaluate(lambda: False) and not scene.reports
    assert scene.at(102) and scene.reports and not scene.evaluator.due


def test_a_successor_waits_for_the_next_interval(run_dir):
    first = Scene(run_dir)
    first.published.publish(1, step=200)
    assert first.at(200)
    second = Scene(run_dir)
    second.published.publish(1, step=200)
    second.now = 250
    assert not second.evaluator.due
    assert second.at(300) is True
