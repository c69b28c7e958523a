"""Progress shows the newest numbers at the right intervals, on terminals and elsewhere."""

import io
import math
import sys
import threading
import tracemalloc
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from rich.console import Console

from marlcore.processes import Metric
from marlcore.record import Progress, final_returns, progress, summary
from marlcore.record.progress import LateReturns

BOTH = pytest.mark.parametrize("terminal", [True, False])


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress, "monotonic", lambda: clock.now)
    return clock


def console(terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, height=40, color_system=None, _environ={})


def text(console: Console) -> str:
    return console.file.getvalue()


def metric(name: str, value: float, agent: str = "agent_0", step: int = 1) -> Metric:
    return Metric(0.0, step, agent, name, value)


def feed(shown: Progress) -> None:
    for name, value in [("loss", 0.125), ("epsilon", 0.9), ("policy_lag", 2), ("updates_per_s", 1234.6)]:
        shown.update(metric(name, 999.0))
        shown.update(metric(name, value))
    for value in [-10.0, -20.0]:
        shown.update(metric("episode_return", value))
    for value in range(1000):
        shown.update(metric("episode_return", value, agent="[b]x"))
    shown.update(metric("something_else", 55.5, agent="unseen"))


@BOTH
@pytest.mark.parametrize(
    "error", [BrokenPipeError(32, "broken pipe"), OSError(5, "input/output error"), None], ids=repr
)
def test_progress_that_nobody_sees_is_silent(clock, monkeypatch, capfd, terminal, error):
    """After one failed write, or without a standard error, nothing more is written."""
    gone = Mock(io.StringIO(), **{"write.side_effect": error, "isatty.return_value": terminal})
    monkeypatch.setattr(sys, "stderr", error and gone)
    monkeypatch.setattr(sys, "stdout", error and sys.stdout)
    monkeypatch.setenv("TERM", "xterm")
    with Progress(interval=10.0) as shown:
        for _ in range(25):
            clock.now += 1.0
            shown.tick(500, 2000, 100.0)
    assert gone.write.call_count == (error is not None) and capfd.readouterr() == ("", "")


def test_elsewhere_a_line_comes_once_an_interval_and_at_the_end(clock):
    out = console()
    with Progress(out, interval=10.0) as shown:
        for second in range(25):
            clock.now += 1.0
            shown.tick(20 * second, 2000, 20.0)
        assert len(text(out).splitlines()) == 2
    assert len(text(out).splitlines()) == 3


@BOTH
def test_the_last_state_is_drawn_once(clock, terminal):
    out = console(terminal)
    with Progress(out, interval=10.0) as shown:
        shown.tick(0, 2000, 0.0)
        clock.now += 10.0
        shown.tick(2000, 2000, 200.0)
        clock.now += 1.0
        shown.tick(2000, 2000, 180.0)
    assert text(out).rpartition("\x1b[2K")[2].count("step 2,000/2,000") == 1


def test_a_line_says_how_far_the_run_is_and_how_each_agent_does(clock):
    out = console()
    with Progress(out) as shown:
        feed(shown)
        clock.now += 65.0
        shown.tick(12_500, 100_000, 1250.0)
    assert text(out).splitlines()[0] == (
        "step 12,500/100,000 (12.5%)  1,250 env steps/s  elapsed 0:01:05  ETA 0:01:10"
        f" | [b]x: return (last 100) {sum(range(900, 1000)) / 100:.2f}"
        " | agent_0: return (last 100) -15.00, loss 0.125, epsilon 0.900, updates/s 1,235"
    )
    with Progress(past := console()) as shown:
        shown.tick(12, 10, 1.0)
    assert text(past).startswith("step 10/10 (100.0%)"), "copies that step together may pass the end"
    with Progress(before := console()) as shown:
        feed(shown)
    assert text(before).startswith("step 0/0 (0.0%)"), "metrics may come before the first tick"


def test_a_terminal_shows_a_table_and_keeps_the_last_one():
    out = console(terminal=True)
    with Progress(out) as shown:
        feed(shown)
        shown.tick(2000, 2000, 0.0)
    last = text(out)
    for cell in ["agent_0", "[b]x", "-15.00", "0.125", "0.900", "1,235", "100.0%", "ETA -"]:
        assert cell in last
    assert "unseen" not in last
    assert last.splitlines()[-2].endswith("┘")  # the last line shows the cursor again


@BOTH
@pytest.mark.parametrize("first", [0, 500])
def test_until_a_step_is_taken_it_says_that_workers_start(clock, terminal, first):
    """A resumed run begins at the step that it had reached."""
    out = console(terminal)
    with Progress(out) as shown:
        shown.say("stopping [now]")
        assert "marlcore: stopping [now]\n" in text(out)
        clock.now += 12.0
        shown.tick(first, 2000, 0.0)
        assert "starting workers  elapsed 0:00:12" in text(out) and "ETA" not in text(out) and "┃" not in text(out)
        shown.tick(first + 1, 2000, 0.0)
    assert "ETA" in text(out).splitlines()[-1 - terminal]


def test_a_terminal_is_drawn_four_times_a_second(clock):
    threads, out = threading.active_count(), console(terminal=True)
    with Progress(out) as shown:
        drawn = []
        for _ in range(1024):
            clock.now += 1 / 1024  # exact in binary
            before = len(text(out))
            shown.tick(1, 2, 1.0)
            drawn.append(len(text(out)) > before)
        assert threading.active_count() == threads
    assert sum(drawn) == 4


def test_a_run_that_never_ticked_ends_quietly():
    out = console()
    with pytest.raises(RuntimeError, match="boom"), Progress(out):
        raise RuntimeError("boom")
    assert text(out) == "starting workers  elapsed 0:00:00\n"


def test_numbers_that_are_not_finite_are_shown():
    out, returns = console(), [metric("episode_return", value) for value in (math.inf, -math.inf)]
    with Progress(out) as shown:
        for reported in (metric("loss", math.nan), *returns):
            shown.update(reported)
        shown.tick(1, 2, math.nan)
    assert "return (last 100) nan, loss nan" in text(out)
    assert math.isnan(final_returns(returns, 1, ["agent_0"])["agent_0"])


def test_piped_output_stays_in_its_pipe(capsys):
    out = console(terminal=True)
    with Progress(out):
        print("result")
    assert capsys.readouterr().out == "result\n"
    assert "result" not in text(out)


def test_final_returns_are_means_over_the_last_tenth_of_the_run():
    """Also of a run that stopped before its end; agents without late episodes have their last returns."""
    metrics = [metric("episode_return", float(step), step=step) for step in range(0, 1001, 10)]
    metrics += [metric("episode_return", float(i), agent="early", step=i) for i in range(25)]
    metrics += [metric("episode_return", 7.0, agent="once", step=1), metric("loss", 9.0, step=1000)]
    for total in (1000, 10**6):
        returns = final_returns(metrics, total, ["never", "once", "early", "agent_0"])
        assert math.isnan(returns.pop("never")) and returns == {"once": 7.0, "early": 23.5, "agent_0": 950.0}
        assert [*returns] == ["once", "early", "agent_0"]


def test_late_returns_are_those_of_all_episodes():
    """Forgotten returns never count, also if the episodes of several actors end out of order."""
    rng = np.random.default_rng(0)
    for total in (50, 400, 10**6):
        late, ended = LateReturns(total), []
        for step in np.maximum(0, np.cumsum(rng.integers(-3, 9, 200))).tolist():
            ended.append(metric("episode_return", rng.random(), step=step))
            late.add(ended[-1])
            end = max(episode.step for episode in ended)
            expected = [episode.value for episode in ended if 10 * episode.step >= 9 * min(end, total)]
            assert late.mean(end) == pytest.approx(np.mean(expected))
    assert late.mean(10**6) == pytest.approx(np.mean([episode.value for episode in ended[-20:]]))


def test_late_returns_take_few_bytes():
    """A run of weeks has millions of episodes."""
    late = LateReturns(10**9)
    tracemalloc.start()
    try:
        for step in range(10_000):
            late.add(metric("episode_return", step / 3, step=step))
        assert tracemalloc.get_traced_memory()[0] < 1_000 * 50
    finally:
        tracemalloc.stop()


def test_the_summary_has_a_line_per_agent():
    assert summary({"a": 2000.0, "b": math.nan}).splitlines() == [
        "a: mean return 2,000.00 over the last tenth of the run, or its last episodes", "b: no episode ended"
    ]  # fmt: skip
