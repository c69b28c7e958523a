"""Shows a run's progress: a live table on a terminal, otherwise a line at intervals."""

from __future__ import annotations

import math
import sys
import threading
from array import array
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, TextIO, TypeAlias, cast

from rich.console import Console
from rich.live import Live

from ..checks import printable
from ..errors import suppress_failed_calls
from ..processes import Metric
from ..tables import FittedTable
from .run_directory import agent_order

_RETURNS = 100  # episodes in the running mean
LATE = "the last tenth of the run, or its last episodes"  # the period of `LateReturns.mean`
_FRAME_S = 0.25
_RATE_S = 10.0  # averaging time of the rate of several runs
_MIN_WIDTH = 8  # of a column of the table
_COLUMNS = {  # metric: title, number of values averaged, format
    "episode_return": (f"return (last {_RETURNS})", _RETURNS, ",.2f"),
    "loss": ("loss", 1, ".4g"),
    "epsilon": ("epsilon", 1, ".3f"),
    "updates_per_s": ("updates/s", 1, ",.0f"),
}
EPISODES_PER_S = "episodes_per_s"
_TITLES = [title for title, *_ in _COLUMNS.values()]


class _Watched:
    """A stream whose write errors are ignored, since a run may outlive its terminal or the `tee` that reads it."""

    def __init__(self, stream: TextIO | None) -> None:
        self._gone = stream is None  # the process was started without the stream
        self._stream: Any = stream

    def write(self, text: str) -> int:
        self._unless_gone("write", text)
        return len(text)

    def flush(self) -> None:
        self._unless_gone("flush")

    def _unless_gone(self, method: str, *text: str) -> None:
        if not self._gone:
            with suppress_failed_calls():  # metrics.csv still records everything
                getattr(self._stream, method)(*text)
                return
            self._gone = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Progress:
    """Shows a run's progress on standard error, in a `with` block; the last table stays on the screen.

    `tick` prints, at most four times a second on a terminal and otherwise every `interval` seconds. Other output of
    this process to the same terminal appears above the table.
    """

    def __init__(self, console: Console | None = None, interval: float = 10.0) -> None:
        self._console = console or Console(file=cast(TextIO, _Watched(sys.stderr)))
        self._agents: dict[str, dict[str, deque[float]]] = {}  # the last values of each metric
        self._step, self._total, self._rate = 0, 0, 0.0
        self._episodes_per_s: dict[str, float] = {}  # by run, "" if there is one
        self._first: int | None = None  # the step of the first tick, which is not 0 in a resumed run
        self._began = self._shown_s = monotonic()
        self._news = True  # whether anything has changed since the last line
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            piped = sys.stdout is None or not sys.stdout.isatty()  # piped output must stay in its pipe
            self._live = Live(
                console=self._console, auto_refresh=False, get_renderable=self._table, redirect_stdout=not piped
            )
        self._period = interval if self._live is None else _FRAME_S

    def __enter__(self) -> Progress:
        self._began = self._shown_s = monotonic()
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()  # shows the last state
        elif self._news:
            self._show()

    def update(self, metric: Metric) -> None:
        """Takes a metric; ignores metrics that the table does not show."""
        if metric.name == EPISODES_PER_S:
            self._episodes_per_s[metric.agent] = metric.value
        if metric.name in _COLUMNS:
            self._news = True
            new = {name: deque[float](maxlen=count) for name, (_, count, _) in _COLUMNS.items()}
            self._agents.setdefault(metric.agent, new)[metric.name].append(metric.value)

    def tick(self, step: int, total_steps: int, env_steps_per_s: float) -> None:
        """Sets the progress in environment steps, and shows it if that is due; call it often."""
        self._news = self._news or (step, total_steps) != (self._step, self._total)
        self._step, self._total, self._rate = min(step, total_steps), total_steps, env_steps_per_s  # rounds end late
        self._first = step if self._first is None else self._first
        if monotonic() - self._shown_s >= self._period:
            self._show()

    def say(self, text: str) -> None:
        """Prints a line at once; on a terminal it appears above the table."""
        self._print(f"marlcore: {text}")

    def _show(self) -> None:
        self._shown_s, self._news = monotonic(), False
        if self._live is not None:
            self._live.refresh()
        else:
            self._print(self._line())

    def _print(self, line: str) -> None:
        self._console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    def _header(self) -> list[str]:
        elapsed = f"elapsed {_clock(monotonic() - self._began)}"
        if not self._agents and self._step == (self._first or 0):
            return ["starting workers", elapsed]
        left_s = (self._total - self._step) / self._rate if self._rate > 0 else None
        return [
            f"step {self._step:,}/{self._total:,} ({self._step / max(self._total, 1):.1%})",
            f"{self._rate:,.0f} env steps/s",
            *([f"{sum(self._episodes_per_s.values()):,.1f} episodes/s"] if self._episodes_per_s else []),
            elapsed,
            f"ETA {'-' if left_s is None else _clock(max(left_s, 0.0))}",
        ]

    def _cells(self) -> dict[str, list[str]]:
        return {
            name or "all": [
                format(_mean(values), form) if (values := self._agents[name][metric]) else "-"
                for metric, (_, _, form) in _COLUMNS.items()
            ]
            for name in sorted(self._agents, key=agent_order)
        }

    def _line(self) -> str:
        parts = ["  ".join(self._header())]
        for name, cells in self._cells().items():
            shown = [f"{title} {cell}" for title, cell in zip(_TITLES, cells, strict=True) if cell != "-"]
            parts.append(f"{name}: {', '.join(shown)}")
        return " | ".join(parts)

    def _table(self) -> FittedTable:
        return FittedTable(self._header(), "agent", _TITLES, self._cells(), _MIN_WIDTH)


class SharedProgress(Progress):
    """One table for several runs, each watched by a thread, with a row for each agent of each run."""

    def __init__(self, total_steps: int, **options: Any) -> None:
        super().__init__(**options)
        self._total = total_steps  # of all runs together
        self.lock = threading.Lock()
        self._run_steps: dict[str, int] = {}  # by run
        self._counted = deque([(monotonic(), 0)])  # recent (seconds, steps of all runs since the table began)

    def part(self, run: str, steps: int) -> PartOfProgress:
        """Returns a run's access to the table; the run begins at step `steps`."""
        self._run_steps.setdefault(run, steps)
        return PartOfProgress(self, run)

    def tick_run(self, run: str, step: int) -> None:
        """Sets a run's steps. Shows the rate of all runs together, since a run may end before its own is known."""
        self._counted.append((monotonic(), self._counted[-1][1] + step - self._run_steps[run]))
        self._run_steps[run] = step
        while self._counted[-1][0] - self._counted[1][0] > _RATE_S:
            self._counted.popleft()
        (begin, first), (now, last) = self._counted[0], self._counted[-1]
        self.tick(sum(self._run_steps.values()), self._total, (last - first) / max(now - begin, 1e-9))

    def end(self, run: str) -> None:
        with self.lock:
            self._episodes_per_s.pop(run, None)


@dataclass
class PartOfProgress:
    """One run's access to the table of several runs."""

    shared: SharedProgress
    run: str

    def update(self, metric: Metric) -> None:
        with self.shared.lock:
            self.shared.update(replace(metric, agent=f"{self.run} {metric.agent}".rstrip()))

    def tick(self, step: int, total_steps: int, env_steps_per_s: float) -> None:
        with self.shared.lock:
            self.shared.tick_run(self.run, step)

    def say(self, text: str) -> None:
        with self.shared.lock:
            self.shared.say(f"{self.run}: {text}")


Table: TypeAlias = Progress | PartOfProgress  # where a run shows its progress


class LateReturns:
    """Keeps the returns that `mean` may need, 16 bytes each, and drops earlier ones."""

    def __init__(self, total_steps: int) -> None:
        self._total = total_steps
        self._count = 0
        self._steps, self._returns = array("q"), array("d")
        self._first = 0  # the index of the earliest late return; earlier ones are removed in bulk

    def add(self, ended: Metric) -> None:
        self._count += 1
        self._steps.append(ended.step)
        self._returns.append(ended.value)
        least = max(1, self._count // 10)
        while len(self._steps) - self._first > least and not self._is_late(self._steps[self._first], ended.step):
            self._first += 1
        if 2 * self._first > len(self._steps):
            del self._steps[: self._first], self._returns[: self._first]
            self._first = 0

    def mean(self, step: int) -> float:
        """Returns the mean return of episodes that ended in the last tenth of min(step, total_steps) steps.

        If no episode ended in them, takes the last tenth of all episodes, at least one; NaN without episodes.
        """
        steps, returns = self._steps[self._first :], self._returns[self._first :]
        late = [value for ended, value in zip(steps, returns, strict=True) if self._is_late(ended, step)]
        return _mean(late or returns[-max(1, self._count // 10) :] or [math.nan])

    def _is_late(self, ended: int, step: int) -> bool:
        return 10 * ended >= 9 * min(step, self._total)


def final_returns(metrics: Iterable[Metric], total_steps: int, agents: Iterable[str]) -> dict[str, float]:
    """Returns each agent's mean return at the end of a run, which may have stopped early; see `LateReturns.mean`."""
    ended = {agent: LateReturns(total_steps) for agent in sorted(agents, key=agent_order)}
    end = 0
    for metric in metrics:
        end = max(end, metric.step)
        if metric.name == "episode_return" and metric.agent in ended:
            ended[metric.agent].add(metric)
    return {agent: late.mean(end) for agent, late in ended.items()}


def summary(returns: Mapping[str, float]) -> str:
    """Returns `final_returns` in words, one line per agent."""
    return "\n".join(
        f"{printable(agent) or 'all'}: "
        + ("no episode ended" if math.isnan(mean) else f"mean return {mean:,.2f} over {LATE}")
        for agent, mean in returns.items()
    )


def _mean(values: Collection[float]) -> float:
    # statistics.fmean would raise for two opposite infinities, and so end the run.
    return sum(values) / len(values)


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"
