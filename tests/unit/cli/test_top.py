"""`marlcore top` shows a live run, and changes nothing of it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from processes import until
from refused import check_refused

from marlcore.cli.top import REPORTED, WatchedRun, _find, _table, main
from marlcore.notices import shown_with
from marlcore.processes import READY, STEPS, UPDATES, Control, Metric, Telemetry
from marlcore.record import RunDirectory, has_ended
from marlcore.testing import victim

MARLCORE = [sys.executable, "-m", "marlcore"]


def top(*arguments: str | Path) -> str:
    """What the command prints, in this process: each start of Python would take the run's processors for seconds."""
    with redirect_stdout(StringIO()) as printed:
        assert main([*map(str, arguments)]) == 0
    return printed.getvalue()


def figures_of(run_dir: Path) -> dict[str, Any]:
    return json.loads(top(run_dir, "--once", "--json"))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A run whose learners have reported something; it trains until it is stopped."""
    path = tmp_path / "run"
    options = ["--env", "hunt:Calm", "--total-steps", "100000000"]
    options += ["--learner.warmup", "100", "--learner.log-interval", "5"]
    process = subprocess.Popen(
        [*MARLCORE, "train", *options, "--run-dir", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    csv = path / "metrics.csv"
    try:
        until(lambda: csv.exists() and "policy_lag_p99" in csv.read_text(), lambda: process.poll() is None)
        yield path, process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


@pytest.mark.long
def test_one_look_at_a_live_run(run):
    path, process = run
    figures = figures_of(path)
    assert figures["run_dir"] == str(path) and figures["steps"] > 0 and figures["total_steps"] == 100_000_000
    assert figures["steps_per_s"] > 0
    workers = figures["workers"]
    assert workers.keys() == {"actor-0", "learner-agent_0", "learner-agent_1", "learner-agent_2"}
    for name, worker in workers.items():
        assert (worker["state"], worker["restarts"]) == ("running", 0)
        server = victim.parent_of(worker["pid"])  # of an actor without torch the second one, a child of the first
        assert process.pid in (victim.parent_of(server), victim.parent_of(victim.parent_of(server)))
        counted = ("steps",) if name == "actor-0" else ("updates", "replay_ratio")
        assert all(worker[count] > 0 for count in (*counted, f"{counted[0]}_per_s"))
        if name != "actor-0":
            assert 0 <= worker["policy_lag_p50"] <= worker["policy_lag_p99"]
            assert worker["lapped"] >= 0 and worker["redrawn"] >= 0 and worker["waited_s"] >= 0
            assert worker["replay_ratio"] == pytest.approx(64 * worker["updates"] / (figures["steps"] / 3), rel=0.01)
    # Killed workers and their restarts are seen; a look leaves the run as it was.
    pid = workers["learner-agent_1"]["pid"]
    os.kill(pid, signal.SIGKILL)
    again = until(lambda: (row := figures_of(path)["workers"]["learner-agent_1"])["restarts"] and row)
    assert again["restarts"] == 1 and again["pid"] != pid
    table = top(path, "--once", "--interval", "0.1")
    assert "learner-agent_2" in table and "policy lag p99" in table
    # It ends with the run and with Ctrl-C.
    command = [*MARLCORE, "top", path, "--json"]
    follows, interrupted = (subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2))
    for process_of_top in (follows, interrupted):
        json.loads(process_of_top.stdout.readline())
    interrupted.send_signal(signal.SIGINT)
    interrupted.communicate()
    assert interrupted.returncode == 0
    process.send_signal(signal.SIGINT)
    lines = follows.communicate()[0].splitlines()
    assert follows.returncode == 0 and all(json.loads(line)["steps"] > 0 for line in lines)


@contextmanager
def live(
    run_dir: Path | str,
    learners: dict[str, str] | None = None,
    policies: tuple[str, ...] = ("agent_0", "team"),
    nodes: tuple[str, ...] = (),
) -> Iterator[tuple[Control, Telemetry]]:
    """The shared memory of a live run with an actor, an evaluator, and these learners and nodes."""
    actors = ["actor-0", *nodes]
    about = {"run_dir": str(run_dir), "pid": os.getpid(), "total_steps": 1, "actors": actors, "nodes": nodes}
    about |= {"learners": learners or {}, "policies": {name: {"batch_size": 4, "share": 0.5} for name in policies}}
    with Telemetry.create(actors) as telemetry:
        about["telemetry"] = vars(telemetry.handle)
        with Control.create([*actors, *about["learners"], "evaluator"], policies, **about) as control:
            yield control, telemetry


def test_the_last_returns_of_each_agent_are_shown():
    """A return is in the row of the policy's learner; agents that share a policy have rows of their own."""
    with live("x", {"learner-agent_0": "agent_0", "learner-team": "team"}) as (control, telemetry):
        with closing(telemetry.reporter("actor-0")) as reporter:
            for value in range(104):
                reporter.report(Metric(float(value), value, "agent_0", "episode_return", float(value)))
            for agent in ("agent_10", "agent_2"):
                reporter.report(Metric(200.0, 200, agent, "episode_return", 7.0))
        with closing(WatchedRun(Control.watch(control.handle))) as run:
            figures = run.figures()
    assert figures["returns"] == {"agent_0": 53.5, "agent_2": 7.0, "agent_10": 7.0}
    table = _table(figures, run.policy_of)
    at = table.titles.index("return")
    assert {name: row[at] for name, row in table.rows.items()} == {
        "actor-0": "", "learner-agent_0": "53.50", "learner-team": "", "evaluator": "", "agent_2": "7.00",
        "agent_10": "7.00",
    }  # fmt: skip


def test_steps_updates_and_lags_are_shown():
    with live("x", {"learner-team": "team"}) as (control, telemetry):
        control.workers["actor-0"].store(STEPS, 40)
        control.tallies["team"].store(UPDATES, 10)
        with closing(telemetry.reporter("actor-0")) as reporter:
            for i, name in enumerate(REPORTED):
                reporter.report(Metric(0.0, 0, "team", name, 0.5 + i))
        with closing(WatchedRun(Control.watch(control.handle))) as run:
            figures = run.figures()
    shown = figures["workers"]["learner-team"]
    assert figures["steps"] == 40 and {name: shown[name] for name in ("updates", "replay_ratio", *REPORTED)} == {
        "updates": 10, "replay_ratio": 4 * 10 / (40 * 0.5), **{name: 0.5 + i for i, name in enumerate(REPORTED)}
    }  # fmt: skip


def test_a_policy_named_as_a_shared_learner_keeps_its_own_row():
    """The first of two learner processes trains the policies "0" and "2": its updates are not those of "0"."""
    learners = {"learner-0": "", "learner-1": ""}
    with (
        live("x", learners, ("0", "1", "2")) as (control, _),
        closing(WatchedRun(Control.watch(control.handle))) as run,
    ):
        control.workers["learner-0"].store(UPDATES, 7)
        for policy, updates in {"0": 3, "1": 5, "2": 4}.items():
            control.tallies[policy].store(UPDATES, updates)
        figures = run.figures()
        table = _table(figures, run.policy_of)
    assert {name: row.get("updates") for name, row in figures["workers"].items()} == {
        "actor-0": None, "learner-0": 7, "learner-1": 0, "evaluator": None,
    }  # fmt: skip
    at = table.titles.index("updates")
    assert {name: table.rows[name][at] for name in "012"} == {"0": "3", "1": "5", "2": "4"}


def test_a_node_has_a_row_with_its_traffic():
    with (
        live("x", nodes=("node-0", "node-1")) as (control, telemetry),
        closing(WatchedRun(Control.watch(control.handle))) as run,
        closing(telemetry.reporter("node-0")) as reporter,
    ):
        control.workers["node-0"].store(READY, 1)
        for name, value in {"rows_per_s": 1234.4, "delay_ms_p99": 9.5, "lag": 2.0}.items():
            reporter.report(Metric(0.0, 5, "", f"{name}/node-0", value))
        figures = run.figures()
    rows, table = figures["workers"], _table(figures, {})
    assert (rows["node-0"]["state"], rows["node-1"]["state"]) == ("running", "starting")
    assert rows["node-0"]["rows_per_s"] == 1234.4 and "lag" not in rows["node-1"]
    assert {"rows/s", "delay ms p99", "lag"} < {*table.titles} and "1,234" in table.rows["node-0"]


@pytest.mark.long
def test_a_run_that_is_about_to_start_is_waited_for(tmp_path, monkeypatch, capsys):
    """At first its directory is missing; then it is made, and only then the run's shared memory."""
    path, looks = tmp_path / "run", []
    with ExitStack() as stack:

        def meanwhile(seconds):
            looks.append(seconds)
            if len(looks) == 2:
                stack.enter_context(RunDirectory.create(path, {})).keep()
            if len(looks) == 3:
                stack.enter_context(live(path))

        monkeypatch.setattr("time.sleep", meanwhile)
        with shown_with(True), closing(_find(str(path), once=False)) as run:
            assert run.about["run_dir"] == str(path)
    assert len(looks) == 3
    assert capsys.readouterr().err == f"marlcore: waiting for {path} to start; this directory does not exist yet\n"


@pytest.mark.parametrize("once", [True, False])
def test_a_run_that_has_ended_or_is_none_says_so(tmp_path, once):
    says = "run_dir: expected the run's directory on this machine, got 's3://bucket/demo'"
    check_refused(lambda: _find("s3://bucket/demo", once), ValueError, says)
    says = "run_dir: expected one live run, got none in 'runs/nope'"
    check_refused(lambda: _find("runs/nope", once=True), ValueError, says)
    with RunDirectory.create(tmp_path / "run", {}) as run:
        run.keep()
        assert not has_ended(tmp_path / "run")
    path = str(tmp_path / "run")
    says = f"run_dir: expected a run that is live or about to start, got {path!r}, which has ended"
    check_refused(lambda: _find(path, once), ValueError, says)


def test_whoever_looks_cannot_write():
    with live("x") as (control, _):
        looking = Control.watch(control.handle)
        assert not looking._segment.body.flags.writeable
        run = WatchedRun(looking)
        assert run.alive and run.figures()["workers"]["actor-0"]["state"] == "starting"
        assert run.figures()["workers"]["evaluator"] == {"state": "starting", "pid": 0, "restarts": 0}
        control.workers["actor-0"].store(READY, 1)
        assert run.figures()["workers"]["actor-0"]["state"] == "down"
        control.stop()
        assert not run.alive
        run.close()
