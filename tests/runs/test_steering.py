"""Runs that end before they have taken all steps: a callback or a stop condition of the settings asked for it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hunt import HUNT
from processes import until
from refused import check_refused
from whole_runs import MODES, Runs, checkpoint, metrics_of, past, values_of

import marlcore as mc
from marlcore.config import StopConfig
from marlcore.processes import Metric
from marlcore.record import StopConditions, sinks

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

runs = Runs(total_steps=10**6, evaluation={"interval": 200, "episodes": 2, "envs": 2}, learner={"warmup": 100})


class Once:
    """A callback that answers its first call by this method, and notes all of them."""

    def __init__(self, method: str, answer: Callable[[], object]) -> None:
        self.calls: list[Any] = []
        self._answer = answer
        setattr(self, method, self._called)

    def _called(self, event: Any) -> object:
        self.calls.append(event)
        return self._answer() if len(self.calls) == 1 else None


def raising(error: BaseException) -> Callable[[], object]:
    def answer() -> object:
        raise error

    return answer


def train(folder: Path, callback: Any = None, **changes: Any) -> mc.Result:
    return mc.train(HUNT, "dqn", runs.configured(folder, **changes), progress=False, callback=callback)


ANSWERS: dict[str, tuple[Callable[[], object], str]] = {
    "on_metric": (lambda: mc.Stop, "the callback returned Stop"),
    "__call__": (lambda: mc.Stop("enough"), "enough"),
    "on_evaluation": (raising(mc.StopRun("enough")), "enough"),
    "on_checkpoint": (raising(mc.StopRun()), "the callback raised StopRun"),
}


@MODES
@pytest.mark.parametrize("method", ANSWERS)
def test_each_method_of_a_callback_can_end_a_run(tmp_path: Path, method: str, mode: str) -> None:
    """The last checkpoint is of the last step, and the callback is told of it."""
    answer, reason = ANSWERS[method]
    callback = Once(method, answer)
    steers = callback._called if method == "__call__" else callback
    result = train(tmp_path, steers, mode=mode, learner={"checkpoint_interval": 20, "warmup": 100})
    assert result.stopped == reason and 0 < result.steps < 10**6
    if mode == "serial":
        assert checkpoint(result.run_dir)["step"] == result.steps
        assert method != "on_metric" or callback.calls == metrics_of(result.run_dir)


@MODES
def test_a_last_evaluation_follows_a_stop_but_no_error(tmp_path: Path, mode: str) -> None:
    """`Run.stop` triggers none either. The evaluation uses the last checkpoint's weights."""
    rare = {"mode": mode, "evaluation": {"interval": 10**6, "episodes": 2, "envs": 2}}
    stopped = train(tmp_path / "stopped", Once("on_metric", lambda: mc.Stop), **rare)
    assert len(values_of(stopped.run_dir, "eval_return")) == 2
    last, kept = checkpoint(stopped.run_dir), checkpoint(stopped.run_dir, "agent_0.best")
    assert kept["updates"] == last["updates"] and kept["step"] <= last["step"] < 10**6
    with pytest.raises(KeyError):
        train(tmp_path / "raised", Once("on_metric", raising(KeyError("mine"))), **rare)
    with runs.start(tmp_path / "ended", HUNT, **rare) as run:
        past(run, 10)
    assert run.wait().stopped == "the program stopped the run"
    assert not [*values_of(tmp_path / "raised" / "run", "eval_return"), *values_of(run.run_dir, "eval_return")]


@MODES
def test_a_stop_during_the_warm_up_loses_nothing(tmp_path: Path, mode: str) -> None:
    """Learners without data do not wait for it, and the run can be resumed."""
    learner = {"warmup": 5000}
    first = train(tmp_path, Once("on_metric", lambda: mc.Stop), mode=mode, learner=learner)
    assert first.stopped and set(first.updates.values()) == {0}
    more = runs.train(tmp_path, HUNT, resume=True, mode=mode, learner={"warmup": 50}, total_steps=first.steps + 400)
    assert more.stopped == "" and more.steps >= first.steps + 400 and min(more.updates.values()) > 0


@MODES
def test_another_exception_of_a_callback_is_raised(tmp_path: Path, mode: str) -> None:
    error = KeyError("mine")
    callback = Once("on_metric", raising(error))
    with pytest.raises(KeyError, match="mine") as raised:
        train(tmp_path / "first", callback, mode=mode)
    assert raised.value is error and len(callback.calls) == 1
    assert checkpoint(tmp_path / "first" / "run")["updates"] >= 0
    config = runs.configured(tmp_path / "second", mode=mode)
    run = mc.start(HUNT, "dqn", config, callback=Once("on_metric", raising(SystemExit(3))))
    with pytest.raises(SystemExit):
        run.wait()


def test_a_callback_sees_evaluations_and_checkpoints(tmp_path: Path) -> None:
    class Seeing:
        on_metric = None  # as a class has it whose heirs may define it

        def __init__(self) -> None:
            self.evaluations, self.checkpoints = list[mc.EvaluationEvent](), list[mc.CheckpointEvent]()
            self.on_evaluation, self.on_checkpoint = self.evaluations.append, self.checkpoints.append

    seen = Seeing()
    result = train(tmp_path, seen, total_steps=900)
    assert result.stopped == ""
    returns = [evaluation.returns[agent] for evaluation in seen.evaluations for agent in ("agent_0", "agent_1")]
    assert len(returns) >= 6 and returns == values_of(result.run_dir, "eval_return")
    assert all(event.values["agent_1", "eval_length"] > 0 for event in seen.evaluations)
    assert [event.step for event in seen.evaluations] == sorted({event.step for event in seen.evaluations})
    assert [event.policy for event in seen.checkpoints] == ["agent_0", "agent_1"]
    assert all(event.path.exists() and event.step == result.steps for event in seen.checkpoints)


class Steering:
    def on_metric(self, metric: mc.Metric) -> None: ...


def test_what_is_no_callback_is_refused(tmp_path: Path) -> None:
    says = "callback: expected a function of a Metric, an object with on_metric, on_evaluation or on_checkpoint, or N"
    for wrong in (5, Steering, "print"):
        check_refused(lambda wrong=wrong: train(tmp_path, wrong), TypeError, says)  # type: ignore[misc]
    assert not any(tmp_path.iterdir())


def met_at(
    config: StopConfig, *values: float | tuple[str, float], name: str = "episode_return", groups: tuple[str, ...] = ()
) -> int | None:
    """The place of the first value that meets a condition; each comes 10 steps and a second after the one before."""
    conditions = StopConditions(config, groups)
    for i, value in enumerate(values):
        agent, number = value if isinstance(value, tuple) else ("a", value)
        if conditions.take(Metric(float(i), 10 * i, agent, name, number)):
            return i
        if name.startswith("eval_") and agent == "a":  # the last of the agents
            marker = Metric(float(i), 10 * i, "", "eval_s", 0.5)
            if conditions.take(marker, mc.EvaluationEvent(10 * i, float(i), {}, {})):
                return i
    return None


of_two = partial(met_at, name="loss", groups=("ab", "c"))
LATE = StopConfig(metric="loss", minimize=True, patience=20)
OF_EVALUATIONS, BOTH = StopConfig(metric="eval_return", threshold=3), [("b", 9), ("a", 9)]
MET: dict[str, tuple[Callable[[], int | None], int | None]] = {
    "nothing is asked": (lambda: met_at(StopConfig(), 1, 2, 3), None),
    "seconds": (lambda: met_at(StopConfig(seconds=2), 1, 2, 3), 2),
    "episodes of one agent": (lambda: met_at(StopConfig(episodes=2), ("a", 1), ("b", 1), ("b", 1)), 2),
    "episodes alone count": (lambda: met_at(StopConfig(episodes=2), 1, 2, 3, name="loss"), None),
    "a threshold is reached": (lambda: met_at(StopConfig(threshold=3, window=1), 1, 2, 3), 2),
    "from above": (lambda: met_at(StopConfig(threshold=3, window=1, minimize=True), 5, 4, 3), 2),
    "a full window": (lambda: met_at(StopConfig(threshold=3, window=2), 9, -9, 3, 3), 3),
    "the mean of agents": (lambda: met_at(StopConfig(threshold=3, window=1), ("a", 1), ("b", 3), ("a", 3)), 2),
    "one agent": (lambda: met_at(StopConfig(metric="b/loss", threshold=3), ("a", 9), ("b", 3), name="loss"), 1),
    "a hundred episodes": (lambda: met_at(StopConfig(threshold=3), *[5] * 101), 99),
    "one evaluation": (lambda: met_at(OF_EVALUATIONS, 2, 5, name="eval_return"), 1),
    "whole evaluations": (lambda: met_at(OF_EVALUATIONS, *[("b", 9), ("a", -9), *BOTH], name="eval_return"), 3),
    "NaN": (lambda: met_at(StopConfig(threshold=3, window=1), float("nan"), 3), 1),
    "NaN first": (lambda: met_at(LATE, *[float("nan")] * 2, 3, 3, 3, name="loss"), 4),
    "NaN late": (lambda: met_at(LATE, ("b", 9), ("b", 9), float("nan"), 3, 3, 3, name="loss"), 5),
    "no improvement": (lambda: met_at(StopConfig(patience=20, window=1), 1, 2, 2, 1), 3),
    "improvements": (lambda: met_at(StopConfig(patience=20, window=1), 1, 2, 2, 3, 3), None),
    "not before all came": (lambda: of_two(StopConfig(metric="loss", threshold=3), ("a", 9), ("b", -9), ("b", -3)), 2),
    "nor the best before": (lambda: of_two(LATE, ("a", 1), ("b", 9), ("a", 2), ("b", 7), ("a", 3)), None),
    "the best of fewer": (lambda: met_at(LATE, 1, ("b", 9), ("b", 8), ("b", 7), name="loss"), None),
    "one is silent": (lambda: of_two(StopConfig(metric="loss", threshold=3), *[("a", 9)] * 20), 10),
    "one of two": (lambda: of_two(StopConfig(metric="b/loss", threshold=3), ("b", 3)), 0),
    "a small improvement": (lambda: met_at(StopConfig(patience=20, window=1, min_delta=1), 1, 1.5, 2), 2),
}


@pytest.mark.parametrize("case", MET)
def test_conditions_are_met_where_they_should_be(case: str) -> None:
    place, expected = MET[case]
    assert place() == expected


def test_a_metric_that_never_comes_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """After 4,000 values; one that no evaluation has after the first evaluation."""
    never = StopConfig(metric="episode_retrun", threshold=3)
    assert met_at(never, *[5] * 999) is None and caplog.text == ""
    assert met_at(never, *[5] * 3000) is None
    met_at(StopConfig(metric="a/eval_retrun", threshold=3), 1, 2, name="eval_return")
    assert [record.getMessage() for record in caplog.records] == [
        "stop.metric: no 'episode_retrun' yet; did you mean episode_return?; these metrics came: episode_return",
        "stop.metric: no 'a/eval_retrun' yet; did you mean a/eval_return?; these metrics came: eval_return, eval_s",
    ]


@pytest.mark.long
def test_a_callback_is_heard_however_long_its_last_call_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Late:
        def on_checkpoint(self, checkpoint: mc.CheckpointEvent) -> None:
            until(lambda: "the sink callback did not close in time" in caplog.text)
            raise KeyError("late")

    close = sinks.Sinks.close
    monkeypatch.setattr(sinks.Sinks, "close", lambda all_sinks: close(all_sinks, 0.0))
    with pytest.raises(KeyError, match="late"):
        train(tmp_path, Late(), total_steps=300)


@MODES
@pytest.mark.parametrize(
    "stop",
    [{"episodes": 7}, {"seconds": 0.05}, {"metric": "eval_return", "threshold": -1e6}, {"patience": 100, "window": 2}],
    ids=lambda stop: next(iter(stop)),
)
def test_a_condition_ends_a_run(tmp_path: Path, mode: str, stop: dict[str, Any]) -> None:
    result = train(tmp_path, mode=mode, stop=stop)
    condition = next(name for name in ("episodes", "seconds", "threshold", "patience") if name in stop)
    assert result.stopped.startswith(f"stop.{condition}: ") and 0 < result.steps < 10**6
    assert 0 < checkpoint(result.run_dir)["step"] <= result.steps


def test_a_resumed_run_must_not_have_met_its_conditions(tmp_path: Path) -> None:
    """Episodes of its earlier part count."""
    first = train(tmp_path, stop={"episodes": 3})
    says = "stop: expected conditions that the resumed run has not met, got stop.episodes: 3 episodes have ended"
    check_refused(lambda: runs.train(tmp_path, HUNT, resume=True, stop={"episodes": 3}), ValueError, says)
    more = runs.train(tmp_path, HUNT, resume=True, stop={"episodes": 9})
    assert more.steps > first.steps and more.stopped == "stop.episodes: 9 episodes have ended"


def test_rows_that_a_resumed_run_cuts_off_meet_no_condition(tmp_path: Path) -> None:
    """A killed run's metrics may be newer than its progress."""
    first = train(tmp_path, stop={"episodes": 3})
    with open(first.run_dir / "metrics.csv", "a") as file:
        file.writelines(f"{time_s}.0,{10**6},agent_0,episode_return,1.0\n" for time_s in range(9))
    more = runs.train(tmp_path, HUNT, resume=True, stop={"episodes": 9})
    assert more.stopped == "stop.episodes: 9 episodes have ended"
    ended = [metric.agent for metric in metrics_of(more.run_dir) if metric.name == "episode_return"]
    assert max(map(ended.count, ended)) >= 9


def test_a_condition_of_evaluations_needs_some() -> None:
    stop = mc.StopConfig(metric="agent_0/eval_return", threshold=3.0)
    without = "a run without evaluations (evaluation.interval and seconds are 0)"
    says = f"stop.metric: expected a metric of {without}, got 'agent_0/eval_return'"
    check_refused(lambda: mc.Config(stop=stop), ValueError, says)
    assert mc.Config(stop=stop, evaluation=mc.EvaluationConfig(seconds=5.0)).stop.watches("agent_0", "eval_return")
