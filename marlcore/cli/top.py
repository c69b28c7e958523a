"""`marlcore top`: shows a live run without changing it."""

import json
import signal
import sys
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.live import Live

from ..declared import Declared, Number
from ..errors import MarlcoreError
from ..memory import SHM_DIR, SegmentHandle
from ..notices import say
from ..processes import PID, READY, RESTARTS, STEPS, UPDATES, Control, Telemetry
from ..record import agent_order, has_ended, is_address
from ..tables import FittedTable, print_fitted
from .options import CommandLine

COLUMNS = {  # the table's columns, the most important first, as keys of a worker's figures: their formats
    "state": "",
    "steps_per_s": ",.0f",
    "updates_per_s": ",.0f",
    "return": ",.2f",
    "restarts": "d",
    "replay_ratio": ".3g",
    "policy_lag_p50": ".3g",
    "policy_lag_p99": ".3g",
    "steps": ",d",
    "updates": ",d",
    "lapped": ",.0f",
    "redrawn": ",.0f",
    "waited_s": ",.1f",
    "pid": "d",
}
OF_NODES = {  # further columns for a run on a cluster
    "rows_per_s": ",.0f",
    "bytes_per_s": ",.0f",
    "delay_ms_p50": ".3g",
    "delay_ms_p99": ".3g",
    "lag": ".0f",
    "in_flight": ".0f",
    "gaps": ",.0f",
    "lease_age_s": ".2f",
}
RETURNS = 100  # episodes in an agent's mean return
POLL_S = 0.2  # seconds between searches for a run that is about to start
REPORTED = ("policy_lag_p50", "policy_lag_p99", "lapped", "redrawn", "waited_s")


@dataclass(frozen=True)
class TopOptions(Declared):
    """Show a live run: each process's rates and restarts, each policy's updates and samples, each agent's returns.

    The command waits for a run that is about to start; Ctrl-C ends the command. The return is the mean of an agent's
    last 100 episodes. The replay ratio is the number of transitions drawn per transition written. Policy lag is the
    number of versions by which a batch's rows were behind the newest weights in the learner's last report. Lapped rows,
    redrawn rows and seconds waited are counted from the learner's start. A worker that is "down" has no process: it has
    taken all its steps, or it failed and is about to be restarted.

    In a run on a cluster, each node has a row with the steps of its actors, the rows and bytes that it sends, the delay
    in milliseconds until a row arrives, the versions by which the node's weights are behind, messages in flight, rows
    lost in gaps, and the seconds since its last message.

    A terminal too narrow for one table shows several, without the pids; --json has every figure. Without a terminal,
    tables are printed as columns with tabs between them. With --once, a run that is not live yet is an error: "run_dir:
    expected one live run, got none in 'runs/two'"; without it, the command waits.
    """

    run_dir: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="[RUN]")]] = ""
    """Directory of the run; may be omitted if only one run is live."""
    once: bool = False
    """Show one table of a live run, and exit."""
    json: bool = False
    """Print lines of JSON instead of tables."""
    interval: Annotated[float, Number(0.05)] = 1.0
    """Seconds over which rates are measured, and between tables; at least 0.05."""


def main(arguments: list[str]) -> int:
    options = CommandLine("top", arguments).parse(TopOptions, positional="run_dir")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(KeyboardInterrupt), closing(_find(options.run_dir, options.once)) as run, ExitStack() as stack:
        live = None
        if sys.stdout.isatty() and not options.json and not options.once:
            live = stack.enter_context(Live(auto_refresh=False))
        while True:
            time.sleep(options.interval)
            figures = run.figures()
            if options.json:
                sys.stdout.write(json.dumps(figures) + "\n")
                sys.stdout.flush()
            elif live:
                live.update(_table(figures, run.policy_of), refresh=True)
            else:
                print_fitted(_table(figures, run.policy_of))
            if options.once or not run.alive:
                break
        stack.close()
        if not run.alive:
            say(f"{run.about['run_dir']} has ended")
    return 0


class WatchedRun:
    """A live run, seen from another process; `close` releases it."""

    def __init__(self, control: Control) -> None:
        self.about = control.about
        self.policy_of: dict[str, str] = self.about["learners"]  # by learner; "" if it may train several policies
        self._nodes: list[str] = self.about.get("nodes", [])
        self._control = control
        self._parent = Path(f"/proc/{self.about['pid']}")
        self._telemetry = Telemetry.watch(SegmentHandle(**self.about["telemetry"]))
        self._newest: dict[str, dict[str, float]] = {}
        self._returns: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RETURNS))
        self._last: dict[tuple[str, str], tuple[float, int]] = {}  # time and value of each count in the last figures
        self.figures()  # rates count from now

    def close(self) -> None:
        self._telemetry.close()
        self._control.close()

    @property
    def alive(self) -> bool:
        """Whether the run's parent lives and has not stopped all workers."""
        return self._parent.exists() and not self._control.stopping

    def figures(self) -> dict[str, Any]:
        """Returns the figures of the run, of each worker, policy and agent; rates are since the last call."""
        for metric in self._telemetry.tail():
            self._newest.setdefault(metric.agent, {})[metric.name] = metric.value
            if metric.name == "episode_return":
                self._returns[metric.agent].append(metric.value)
        steps = self._control.steps
        policies = {name: self._of_policy(name, steps) for name in self.about["policies"]}
        return {
            "run_dir": self.about["run_dir"],
            **self._counted("steps", "of the run", steps),
            "total_steps": self.about["total_steps"],
            "workers": {name: self._of_worker(name, policies) for name in self._control.workers},
            "policies": policies,
            "returns": {
                agent: sum(self._returns[agent]) / len(self._returns[agent])
                for agent in sorted(self._returns, key=agent_order)
            },
        }

    def _of_worker(self, name: str, policies: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        pid, restarts = (self._control.notes[name].load(word) for word in (PID, RESTARTS))
        counters = self._control.workers[name]
        ready = counters.load(READY)
        if pid or (ready and name in self._nodes):
            state = "running" if ready == restarts + 1 or not pid else "starting"
        else:
            state = "down" if restarts or ready else "starting"
        figures = {"state": state, "pid": pid, "restarts": restarts}
        if name in self.about["actors"]:
            figures |= self._counted("steps", name, counters.load(STEPS))
            newest = self._newest.get("", {})
            figures |= {label: newest[key] for label in OF_NODES if (key := f"{label}/{name}") in newest}
        elif policy := self.policy_of.get(name):
            figures |= policies[policy]
        elif name in self.policy_of:
            figures |= self._counted("updates", name, counters.load(UPDATES))
        return figures

    def _of_policy(self, name: str, steps: int) -> dict[str, Any]:
        about, newest = self.about["policies"][name], self._newest.get(name, {})
        figures = self._counted("updates", f"of {name}", self._control.tallies[name].load(UPDATES))
        if about["batch_size"]:  # 0 if the policy reads a queue
            figures["replay_ratio"] = figures["updates"] * about["batch_size"] / max(about["share"] * steps, 1.0)
        return figures | {label: newest[label] for label in REPORTED if label in newest}

    def _counted(self, what: str, owner: str, count: int) -> dict[str, Any]:
        """Returns a count and its rate since the last call of `figures`."""
        now = time.monotonic()
        last, last_count = self._last.get((what, owner), (now, count))
        self._last[what, owner] = now, count
        return {what: count, f"{what}_per_s": (count - last_count) / max(now - last, 1e-9)}


def _find(run_dir: str, once: bool) -> WatchedRun:
    """Returns the live run in `run_dir`, by default the only one; waits for it unless `once`. Raises ValueError."""
    if is_address(run_dir):
        raise ValueError(f"run_dir: expected the run's directory on this machine, got {run_dir!r}")
    notified = False
    while not (runs := _live(run_dir)):
        if run_dir and has_ended(run_dir):
            expected = "run_dir: expected a run that is live or about to start"
            raise ValueError(f"{expected}, got {run_dir!r}, which has ended")
        if once:
            raise ValueError(f"run_dir: expected one live run, got none{f' in {run_dir!r}' if run_dir else ''}")
        if not notified:
            missing = "" if not run_dir or Path(run_dir).exists() else "; this directory does not exist yet"
            say(f"waiting for {run_dir or 'a run'} to start{missing}")
            notified = True
        time.sleep(POLL_S)
    if len(runs) > 1:
        for run in runs:
            run.close()
        raise ValueError(f"run_dir: expected one live run, got {', '.join(run.about['run_dir'] for run in runs)}")
    return runs[0]


def _live(run_dir: str) -> list[WatchedRun]:
    wanted = str(Path(run_dir).resolve()) if run_dir else ""
    runs: list[WatchedRun] = []
    for path in sorted(SHM_DIR.glob(Control.files)):
        try:
            run = WatchedRun(Control.watch(path))
        except (MarlcoreError, TypeError, KeyError):  # the segment is gone, another user's, or not a run's
            continue
        if run.alive and wanted in ("", run.about["run_dir"]):
            runs.append(run)
        else:
            run.close()
    return runs


def _table(figures: dict[str, Any], policy_of: Mapping[str, str]) -> FittedTable:
    """Makes a table with the run as headline, and rows of workers, of policies that share a learner, and of agents."""
    headline = [
        figures["run_dir"],
        f"{figures['steps']:,} of {figures['total_steps']:,} steps",
        f"{figures['steps_per_s']:,.0f} steps/s",
    ]
    shared = {name: row for name, row in figures["policies"].items() if name not in policy_of.values()}
    returns = {agent: {"return": value} for agent, value in figures["returns"].items()}
    known = {name: row | returns.pop(policy_of.get(name, ""), {}) for name, row in figures["workers"].items()}
    known |= {name: row | returns.pop(name, {}) for name, row in shared.items()}
    forms = COLUMNS | {name: form for name, form in OF_NODES.items() if any(name in row for row in known.values())}
    titles = [name.replace("_per_s", "/s").replace("_", " ") for name in forms]
    rows = {
        name: [
            format(row[column], form) if column in row and (column, row[column]) != ("pid", 0) else ""
            for column, form in forms.items()
        ]
        for name, row in (known | returns).items()
    }
    return FittedTable(headline, "worker", titles, rows, optional=["pid"])
