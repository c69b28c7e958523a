"""Every sink gets the same stream, and no sink can delay, break or end the run that feeds it."""

import io
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from processes import until
from refused import Refused, refusals
from rich.console import Console
from whole_runs import Runs

import marlcore
import marlcore as mc
from marlcore.config import SINKS, MetricsConfig
from marlcore.processes import EPISODES, PID, STEPS, Control, Metric, Telemetry
from marlcore.record import Monitor, Progress, RunDirectory, open_sinks, read_metrics
from marlcore.record import monitor as monitors
from marlcore.record.sinks import Background, CsvSink, Sinks, TensorBoardSink
from marlcore.record.sinks.wandb import WandbSink, check_wandb
from marlcore.run import roles
from marlcore.run.session import Session

STREAM = [
    Metric(0.5, 10, "agent_0", "loss", 1 / 3),
    Metric(1.5, 10, "agent_1", "loss", -2.5),
    Metric(2.5, 20, "agent_0", "loss", 0.25),
    Metric(2.5, 20, "", "env_steps_per_s", 1234.5),
]
PATIENCE_S = 600.0  # for events that come at once unless something is broken


def tag_of(metric: Metric) -> str:
    return f"{metric.agent}/{metric.name}" if metric.agent else metric.name


def accumulated(run_dir: Path) -> Any:
    """A run's events, read by TensorBoard itself."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def events_of(run_dir: Path) -> dict[tuple[str, int], Any]:
    events = accumulated(run_dir)
    return {(tag, event.step): event for tag in events.Tags()["scalars"] for event in events.Scalars(tag)}


def calling(function: Callable[[Metric], object]) -> Background:
    return Background("callback", lambda: Mock(record=function))


class Held:
    """A sink that hangs in `record` until it is released."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()
        self.taken: list[Metric] = []
        self.flushes, self.closed = 0, False

    def record(self, metric: Metric) -> None:
        self.entered.set()
        assert self.release.wait(PATIENCE_S), "nobody released the sink"
        self.taken.append(metric)

    def flush(self) -> None:
        self.flushes += 1

    def close(self) -> None:
        self.closed = True


def faulty(*methods: str) -> Mock:
    """A sink whose `methods` raise; its attribute `make` is a function that returns it."""

    def fail(*_: object) -> None:
        raise RuntimeError("the server\nsaid no")

    sink = Mock(**{f"{method}.side_effect": fail for method in methods})
    sink.make.return_value = sink
    return sink


@contextmanager
def monitored(
    path: Path, *others: Background, total_steps: int = 1000, workers: Any = ("learner-0",), table: Any = None,
    **about: Any,
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    """A monitor of workers, the first worker's report, and the monitor's sinks."""
    with (
        RunDirectory.create(path, {}) as run,
        closing(Telemetry.create([*workers])) as telemetry,
        closing(Control.create([*workers], **about)) as control,
        closing(telemetry.reporter(workers[0])) as reporter,
        closing(Sinks(run.csv, [*others])) as sinks,
    ):
        yield Monitor(run, sinks, control, telemetry, table, total_steps, monitors.monotonic()), reporter.report, sinks


def test_every_sink_gets_the_same_numbers(tmp_path):
    called: list[Metric] = []
    tensorboard = Background("tensorboard", lambda: TensorBoardSink(tmp_path / "run"))
    with monitored(tmp_path / "run", tensorboard, calling(called.append)) as (monitor, report, sinks):
        for metric in STREAM:
            report(metric)
        monitor.tick()
        sinks.close(PATIENCE_S)
        assert sinks.lost == {"tensorboard": 0, "callback": 0}
    assert called == STREAM == read_metrics(tmp_path / "run" / "metrics.csv")
    events = events_of(tmp_path / "run")
    values = {(tag_of(metric), metric.step): metric.value for metric in STREAM}
    assert {place: event.value for place, event in events.items()} == pytest.approx(values, rel=1e-6)
    first, second = (events["agent_0/loss", step].wall_time for step in (10, 20))
    assert second - first == pytest.approx(2.0, abs=1e-3)
    assert abs(time.time() - first) < PATIENCE_S


def test_tensorboard_has_hyperparameters_and_final_returns(tmp_path):
    from tensorboard.plugins.hparams import metadata as plugin

    config = {"env": "chain", "learner": {"gamma": 0.5, "compile": None}, "hyperparameters": {"hidden": [64, 64]}}
    with RunDirectory.create(tmp_path / "run", {**config, "run_dir": "x", "mask": True}) as run:
        for offset in (0, 1000):  # the run, and the same resumed
            with closing(TensorBoardSink(run.path)) as sink:
                for i in range(150):
                    sink.record(Metric(i / 10, i + offset, "agent_0", "episode_return", i))
    events = accumulated(run.path)
    content = events.PluginTagToContent(plugin.PLUGIN_NAME)[plugin.SESSION_START_INFO_TAG]
    named = plugin.parse_session_start_info_plugin_data(content).hparams
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in named.items()}
    assert values == {"learner.gamma": 0.5, "env": "chain", "hyperparameters.hidden": "[64, 64]", "mask": True}
    final = events.Scalars("final/agent_0/episode_return")
    assert [(end.step, end.value) for end in final] == [(149, 99.5), (1149, 99.5)]


def test_a_flush_reaches_the_readers_of_a_live_run(tmp_path):
    run_dir = tmp_path / "run"
    with monitored(run_dir, Background("tensorboard", lambda: TensorBoardSink(run_dir))) as (*_, sinks):
        sinks.record(STREAM[0])
        sinks.flush()
        assert len(read_metrics(run_dir / "metrics.csv")) == 1
        until(lambda: [*run_dir.glob("tensorboard/*")] and ("agent_0/loss", 10) in events_of(run_dir))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monitor's time, in seconds."""
    now = [100.0]
    monkeypatch.setattr(monitors, "monotonic", lambda: now[0])
    return now


def test_rates_and_flushes_come_by_time(tmp_path, clock):
    """For any number of steps, and also if no worker reports anything; a rate is measured over 10 s."""
    run_dir, held = tmp_path / "run", Held()
    taken = [0, 0, 0, 300, 600, 900, *range(1500, 6000, 600)]  # workers start in the first seconds
    held.release.set()
    with monitored(run_dir, Background("held", lambda: held), total_steps=10**9) as (monitor, _, _):
        assert clock[0] < monitor.due_at
        for steps in taken:
            monitor.control.workers["learner-0"].store(STEPS, steps)
            clock[0] += 1.0
            assert clock[0] >= monitor.due_at
            monitor.tick()
            monitor.tick()
        metrics = read_metrics(run_dir / "metrics.csv")
        assert [m.time_s for m in metrics if m.name == "rss_mib/parent"] == [4.0, 9.0, 14.0]
        rates = [(m.time_s, m.step, m.name, m.value) for m in metrics if m.name == "env_steps_per_s"]
        windows = [(seconds, max(3, seconds - 10)) for seconds in range(4, 15)]
        assert rates == [
            (end, taken[end - 1], "env_steps_per_s", (taken[end - 1] - taken[begin - 1]) / (end - begin))
            for end, begin in windows
        ]
        until(lambda: held.flushes >= 3)


def test_the_memory_of_each_living_process_is_reported(tmp_path, clock):
    """A worker without a process or whose process has ended is left out; in serial mode the process counts once."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    with monitored(tmp_path / "run") as (monitor, *_), subprocess.Popen(["cat"], stdin=subprocess.PIPE) as cat:
        for steps, pid in enumerate([cat.pid, 0, ended.pid, os.getpid()], 1):
            monitor.control.notes["learner-0"].store(PID, pid)
            monitor.control.workers["learner-0"].store(STEPS, steps)
            clock[0] += 5.0
            monitor.tick()
        cat.stdin.close()
    memory = [(m.time_s, m.name, m.value) for m in read_metrics(tmp_path / "run" / "metrics.csv") if "rss" in m.name]
    assert [name for *_, name, _ in memory] == ["rss_mib/parent", "rss_mib/learner-0", *["rss_mib/parent"] * 3]
    status = Path("/proc/self/status").read_text()
    assert memory[-1][2] == pytest.approx(int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024, rel=0.2)


def test_a_worker_reports_its_gpu_at_intervals(monkeypatch):
    reports: list[Any] = []
    worker: Any = SimpleNamespace(name="actor-0", _weighed=-math.inf, report=lambda *metric: reports.append(metric))
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 3 * 2**19)
    monkeypatch.setattr("torch.cuda.utilization", lambda device: 85)
    monkeypatch.setattr("marlcore.run.roles.role.find_spec", lambda name: name == "pynvml" or None)
    for device in ("cpu", "cuda:0", "cuda:0"):
        roles.Role.report_gpu(worker, torch.device(device))
    assert reports == [("", "gpu_mib/actor-0", 1.5), ("", "gpu_percent/actor-0", 85)]


def test_episodes_of_actors_and_successors_are_counted(tmp_path, clock):
    names, seen = ["actor-0", "actor-1"], io.StringIO()
    with (
        Progress(Console(file=seen, width=200), interval=0.0) as table,
        monitored(tmp_path / "run", workers=[*names, "evaluator"], table=table, actors=names) as (monitor, report, _),
    ):
        control = monitor.control
        control.workers["evaluator"].store(EPISODES, 1)
        for second, counts in enumerate([(0, 0), (0, 0), (4, 2), (9, 2), (3, 2)]):  # the last is a successor's
            for name, count in zip(names, counts, strict=True):
                control.workers[name].store(EPISODES, count)
            control.workers["actor-0"].store(STEPS, 100 * second)
            report(Metric(0.0, 100 * second, "a", "episode_return", second))
            clock[0] += 1.0
            monitor.tick()
            assert monitor.status.returns == {"a": second}
    rates = [m.value for m in read_metrics(tmp_path / "run" / "metrics.csv") if m.name == "episodes_per_s"]
    assert rates == [6 / 2, 11 / 3, 14 / 4]
    assert "100 env steps/s  3.5 episodes/s  elapsed" in seen.getvalue()


def test_a_serial_run_of_slow_rounds_reports_by_time(tmp_path, clock, undrawn, monkeypatch, capfd):
    about, original = [], Session._about
    monkeypatch.setattr(Session, "_about", lambda self: about.append(original(self)) or about[0])

    class Slow(mc.TreasureHunt):
        def step(self, action: Any) -> None:
            clock[0] += 0.5
            super().step(action)

    result = Runs(total_steps=30, actor={"envs": 1}, updates_per_step=1, learner={"warmup": 1}).train(tmp_path, Slow)
    assert result.updates == {"agent_0": 9, "agent_1": 8, "agent_2": 8}, "of 10, 9 and 9 rows, the last at the cut"
    assert {own["batch_size"] for own in about[0]["policies"].values()} == {16} and capfd.readouterr().err == ""
    times = [m.time_s for m in read_metrics(result.run_dir / "metrics.csv") if m.name == "env_steps_per_s"]
    assert len(times) > 5 and all(1.0 <= after - before <= 2.0 for before, after in pairwise(times[:-1]))


def test_a_tick_returns_while_a_sink_hangs(tmp_path):
    held = Held()
    with monitored(tmp_path / "run", Background("held", lambda: held)) as (monitor, report, sinks):
        report(STREAM[0])
        monitor.tick()
        assert held.entered.wait(PATIENCE_S)
        for metric in STREAM[1:]:
            report(metric)
            monitor.tick()
        assert held.taken == []  # every tick returned while the sink was in its first `record`
        sinks.flush()
        assert read_metrics(tmp_path / "run" / "metrics.csv") == STREAM
        held.release.set()
    assert held.taken == STREAM and held.closed


def test_what_finds_no_room_is_dropped_and_counted():
    """Flushes are dropped too, but not counted."""
    held = Held()
    with closing(Background("held", lambda: held, capacity=5)) as sink:
        sink.record(STREAM[0])
        assert held.entered.wait(PATIENCE_S)
        for metric in 3 * STREAM:
            sink.record(metric)
            sink.flush()
        held.release.set()
    assert held.taken == [STREAM[0], *STREAM[:3]] and held.flushes == 2
    assert sink.lost == 9


def test_no_event_is_dropped_for_want_of_room():
    """At the end, waiting events are delivered; metrics for which there is no time are dropped and counted."""
    held, announced = Held(), []
    held.announce = announced.append
    events = [mc.EvaluationEvent(step, 1.0, {"a": 1.0}, {("a", "eval_return"): 1.0}) for step in range(3)]
    sink = Background("held", lambda: held, capacity=2)
    sink.record(STREAM[0])
    assert held.entered.wait(PATIENCE_S)
    for event in events:
        for metric in STREAM:
            sink.record(metric)
        sink.announce(event)
    join, waits = sink._thread.join, [lambda: None, held.release.set]

    def pass_time(timeout: float) -> None:
        """The sink stays blocked during the first wait, and continues in the second."""
        waits.pop(0)()
        if not waits:
            join(PATIENCE_S)

    sink._thread.join = pass_time
    sink.close()
    assert announced == events and held.taken == STREAM[:1] and held.closed
    assert sink.lost == 12


def test_a_monitor_announces_whole_evaluations_and_checkpoints(tmp_path):
    values = {("agent_0", "eval_return"): 2.0, ("agent_0", "eval_length"): 5.0, ("agent_1", "eval_return"): 3.0}
    metrics = [
        Metric(1.0, 10, "agent_0", "checkpoint_s", 0.1),
        *(Metric(2.0, 20, agent, name, value) for (agent, name), value in values.items()),
        Metric(2.0, 21, "", "eval_s", 0.5),
        Metric(3.0, 30, "agent_0", "eval_return", 4.0),
        Metric(4.0, 31, "", "eval_s", 0.5),
    ]
    announced: list[Any] = []
    callback = Background("callback", lambda: Mock(announce=announced.append))
    with monitored(tmp_path / "run", callback) as (monitor, report, sinks):
        for metric in metrics:
            report(metric)
        monitor.tick()
        sinks.close(PATIENCE_S)
    assert announced == [
        mc.CheckpointEvent("agent_0", 10, 1.0, tmp_path / "run" / "checkpoints" / "agent_0.pt"),
        mc.EvaluationEvent(21, 2.0, {"agent_0": 2.0, "agent_1": 3.0}, values),
        mc.EvaluationEvent(31, 4.0, {"agent_0": 4.0}, {("agent_0", "eval_return"): 4.0}),
    ]


def test_a_hanging_sink_is_left_behind_at_the_end(tmp_path, caplog):
    """Closing waits for a bounded time; the log counts what is lost, and the sink takes no more when it wakes."""
    held, taken = Held(), []
    hanging, callback = Background("held", lambda: held), calling(taken.append)
    with monitored(tmp_path / "run", hanging, callback) as (*_, sinks):
        for metric in STREAM:
            sinks.record(metric)
        assert held.entered.wait(PATIENCE_S)
        callback.close(PATIENCE_S)  # before the hanging one has used up their time
        sinks.close(timeout=0.01)
        assert sinks.lost == {"held": 4, "callback": 0}
        assert held.taken == [] and not held.closed
        assert hanging._thread.daemon, "it would keep the interpreter"
    assert [record.getMessage() for record in caplog.records] == [
        "metrics: the sink held did not close in time; the run ended without it",
        "metrics: the sink held lost 4 metrics, which metrics.csv holds",
    ]
    held.release.set()
    until(lambda: held.closed)
    assert held.taken == STREAM[:1] and hanging.lost == 3


def test_hanging_sinks_share_one_time_limit(tmp_path):
    """The second sink gets the time that the first has left."""
    sinks, left = [Held() for _ in range(2)], []

    class Watched(Background):
        def close(self, timeout: float) -> None:
            left.append(timeout)
            super().close(timeout)

    with closing(CsvSink(tmp_path / "metrics.csv", "x")) as csv:
        both = Sinks(csv, [Watched(f"held-{i}", lambda held=held: held) for i, held in enumerate(sinks)])
        both.record(STREAM[0])
        both.close(timeout=0.05)
    assert left[0] <= 0.05 and left[1] == 0.0
    for held in sinks:
        held.release.set()
        until(lambda held=held: held.closed)


@pytest.mark.parametrize(
    ("fault", "taken", "closed"),
    [("make", 0, 0), ("record", 0, 1), ("flush", 1, 1), ("close", 1, 1), ("record close", 0, 1)],
)
def test_a_sink_that_raises_is_reported_once(tmp_path, caplog, fault, taken, closed):
    """It is then left alone, its later metrics count as lost, and the other sinks and the run continue."""
    sink, called = faulty(*fault.split()), []
    others = Background("faulty", sink.make), calling(called.append)
    with monitored(tmp_path / "run", *others) as (monitor, report, sinks):
        report(STREAM[0])
        monitor.tick()
        sinks.flush()
        if fault != "close":
            until(lambda: "failed" in caplog.text)
        rest = STREAM[1:] if fault != "close" else []
        for metric in rest:
            report(metric)
            monitor.tick()
        sinks.close()
        assert sinks.lost == {"faulty": 1 + len(rest) - taken, "callback": 0}
    assert called == [STREAM[0], *rest] == read_metrics(tmp_path / "run" / "metrics.csv")
    assert (sink.record.call_count - ("record" in fault), sink.close.call_count) == (taken, closed)
    (said,) = (record.getMessage() for record in caplog.records if "failed" in record.getMessage())
    says = f"metrics: the sink faulty failed and gets no more metrics: RuntimeError: the server said no ({__file__}:"
    assert said.startswith(says) and re.fullmatch(r"\d+\)", said.removeprefix(says))


def test_a_failure_is_reported_before_a_close_that_hangs(caplog):
    release, stuck = threading.Event(), faulty("record")
    stuck.close = lambda: release.wait(PATIENCE_S)
    with closing(Background("stuck", stuck.make)) as sink:
        sink.record(STREAM[0])
        until(lambda: "the server said no" in caplog.text)
        sink.close(timeout=0.01)
        release.set()
    assert len(caplog.records) == 1 and sink.lost == 1


@pytest.mark.parametrize("threads", [True, False])
def test_a_callback_that_exits_is_reported_once(monkeypatch, caplog, threads):
    """The same holds if the system cannot start its thread."""
    if not threads:
        monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    with closing(calling(lambda metric: sys.exit(3))) as sink:
        for metric in STREAM:
            sink.record(metric)
    assert sink.lost == 4 and len(caplog.records) == 1
    assert ("SystemExit: 3" if threads else "can't start new thread") in caplog.text


def test_a_closed_sink_takes_nothing():
    """A sink that gets no metric is never made."""
    taken: list[Metric] = []
    sink = calling(taken.append)
    for metric in STREAM[:2]:
        sink.record(metric)
        sink.flush()
        sink.close()
    assert taken == STREAM[:1] and sink.lost == 1
    with closing(Background("held", lambda: pytest.fail("it was made"))) as sink:
        sink.flush()
        assert "marlcore-sink-held" not in [thread.name for thread in threading.enumerate()]
    assert sink.lost == 0


def test_a_failed_start_leaves_no_directory_of_a_sink(tmp_path):
    with pytest.raises(RuntimeError), RunDirectory.create(tmp_path / "run", {}) as run:
        with closing(open_sinks(run.csv, run.path, MetricsConfig())) as sinks:
            sinks.record(STREAM[0])
        assert list((run.path / "tensorboard").iterdir())
        raise RuntimeError("no worker starts")
    assert list(tmp_path.iterdir()) == []


def opened(sink: str) -> Any:
    return partial(open_sinks, None, Path("run"), MetricsConfig(("csv", sink)))


REFUSED: dict[str, Refused] = {
    "misspelt": (lambda: MetricsConfig(["csv", "tensorbord"]), "got 'tensorbord'; did you mean tensorb"),
    "shortened": (lambda: MetricsConfig(["csv", "wanb"]), "did you mean wandb?"),
    "unknown": (lambda: MetricsConfig(["csv", "xyz"]), "sinks: expected csv, tensorboard, wandb or module:Class, got"),
    "no csv": (lambda: MetricsConfig(["tensorboard"]), "sinks: expected each sink once and csv, the run's own rec"),
    "twice": (lambda: MetricsConfig(["csv", "csv"]), "and csv, the run's own record, among them, got 'csv csv'"),
    "text": (lambda: MetricsConfig("csv"), TypeError, "sinks: expected names of sinks, got 'csv'"),
    "a class": (lambda: MetricsConfig((CsvSink,)), TypeError, "sinks: expected names of sinks, got (<class"),
    "mode": (lambda: MetricsConfig(wandb_mode="on"), "wandb_mode: expected online or offline, got 'on'"),
    "nowhere": (opened("nowhere:Sink"), "metrics.sinks: expected something that can be imported, got 'nowhere:Sink'"),
    "no class": (opened("math:pi"), "metrics.sinks: expected module:Class, got 'math:pi', which is not a class"),
}
test_a_wrong_sink_is_refused_in_one_line = refusals(REFUSED)


def test_every_named_sink_can_be_opened(tmp_path, monkeypatch):
    (tmp_path / "wandb.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with RunDirectory.create(tmp_path / "run", {}) as run:
        sinks = open_sinks(run.csv, run.path, MetricsConfig(SINKS, wandb_mode="offline"), Mock())
        assert list(sinks.lost) == ["tensorboard", "wandb", "callback"]


def test_the_documented_sink_writes_the_stream(tmp_path, monkeypatch):
    """The example of docs/training.md, as a module named in the settings."""
    guide = (Path(marlcore.__file__).parents[1] / "docs" / "training.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "class JsonLines" in block)
    (tmp_path / "jsonl_example.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    config = MetricsConfig(("csv", "jsonl_example:JsonLines"))
    with RunDirectory.create(tmp_path / "run", {}) as run, closing(open_sinks(run.csv, run.path, config)) as sinks:
        for metric in STREAM:
            sinks.record(metric)
        sinks.flush()
        sinks.close()
        assert sinks.lost == {"jsonl_example:JsonLines": 0}
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [Metric(**json.loads(line)) for line in lines] == STREAM


WANDB = """
import json, sys
from contextlib import closing
from pathlib import Path
from marlcore.processes import Metric
from marlcore.config import MetricsConfig
from marlcore.record.run_directory import RunDirectory
from marlcore.record.sinks import open_sinks
path, config = Path(sys.argv[1]), MetricsConfig(("csv", "wandb"), wandb_project="forest", wandb_mode="offline")

def part(run, metrics):
    with run, closing(open_sinks(run.csv, run.path, config)) as sinks:
        for metric in metrics:
            sinks.record(Metric(*metric))
        sinks.close(60)
        print(json.dumps(sinks.lost))

metrics = json.loads(sys.argv[2])
part(RunDirectory.create(path, {"seed": 3}), metrics[:2])
part(RunDirectory.resume(path), metrics[2:])
"""

READ_WANDB = """
import json, sys
from pathlib import Path
from wandb.proto import wandb_internal_pb2

def records(path):
    # A .wandb file: 7 bytes, then records in blocks of 32 KiB, each piece behind its checksum, length and kind.
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole, at = whole + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record

def items(given):
    return {".".join([item.key] if item.key else item.nested_key): json.loads(item.value_json) for item in given}

runs, history = [], []
for file in sorted(Path(sys.argv[1]).glob("wandb/offline-run-*/*.wandb")):
    for record in records(file):
        if record.WhichOneof("record_type") == "history":
            history.append(items(record.history.item))
        if record.WhichOneof("record_type") == "run":
            run = record.run
            runs.append([run.run_id, run.project, run.display_name, run.run_group, items(run.config.update)["seed"]])
print(json.dumps([runs, history]))
"""


@pytest.mark.long
def test_wandb_offline_gets_the_same_numbers(program, tmp_path):
    """The files are read after the writer's exit: wandb's own process writes them on after `finish` has returned."""
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'marlcore[wandb]'")
    run_dir = tmp_path / "sweep" / "run-7"
    stream = json.dumps([[m.time_s, m.step, m.agent, m.name, m.value] for m in STREAM])
    lost = program(WANDB, args=[run_dir, stream]).finish().splitlines()
    assert [json.loads(line) for line in lost] == [{"wandb": 0}] * 2
    runs, history = json.loads(program(READ_WANDB, args=[run_dir]).finish())
    assert [run[1:] for run in runs] == [["forest", "run-7", "sweep", 3]] * 2
    assert runs[0][0] == runs[1][0] == (run_dir / "wandb" / "run-id").read_text()
    logged = [{name: value for name, value in row.items() if not name.startswith("_")} for row in history]
    assert logged == [{tag_of(m): m.value, "step": m.step, "time_s": m.time_s} for m in STREAM]


def test_a_missing_wandb_is_named_before_a_run(tmp_path, monkeypatch):
    """A folder `wandb` of earlier runs in the current directory is not taken for the package."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(ValueError, match=r"^metrics.sinks: wandb is not installed; try: pip install"):
        open_sinks(None, tmp_path, MetricsConfig(("csv", "wandb"), wandb_mode="offline"))  # type: ignore[arg-type]


def test_wandb_gets_edited_settings_and_is_asked_for_credentials(tmp_path, monkeypatch):
    fake = Mock(run=None, __spec__=Mock(origin="wandb.py"), **{"login.return_value": False})
    monkeypatch.setitem(sys.modules, "wandb", fake)
    (tmp_path / "config.json").write_text('{"seed": 3}')
    WandbSink(tmp_path, "forest", "offline")
    assert fake.init.call_args.kwargs["config"] == {"seed": 3}
    with pytest.raises(ValueError, match="wandb has no credentials"):
        check_wandb("online")


def test_wandb_without_credentials_is_refused_before_a_run(program, tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'marlcore[wandb]'")
    code = """
    import os, sys
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        del os.environ[name]
    os.environ.update(HOME=sys.argv[1], NETRC=sys.argv[1] + "/netrc")
    from marlcore.record.sinks.wandb import check_wandb
    try:
        check_wandb(None)
    except ValueError as error:
        print(error)
    check_wandb("offline")
    os.environ["WANDB_MODE"] = "offline"
    check_wandb(None)
    """
    expected = "metrics.sinks: wandb has no credentials; run `wandb login`, or set WANDB_MODE=offline"
    assert program(code, args=[tmp_path]).finish() == expected
