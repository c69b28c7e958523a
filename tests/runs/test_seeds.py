"""Runs with several seeds side by side: one fork server, one table, one picture."""

import io
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crowd import Corridor, collapse
from hunt import HUNT
from processes import until
from refused import check_refused
from rich.console import Console
from whole_runs import LONG, Runs, checkpoint, finished, marlcore, metrics_of, steps_of

import marlcore as mc
from marlcore.processes import ForkServer, Metric
from marlcore.record import SharedProgress

pytestmark = pytest.mark.usefixtures("undrawn")

runs = Runs(mode="async", total_steps=800)


@LONG
def test_seeds_run_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two runs at a time, forked by one server; each is the run of its seed."""
    servers: list[Any] = []

    class Counted(ForkServer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            servers.append(self)

    monkeypatch.setattr("marlcore.processes.children.ForkServer", Counted)
    results = mc.train_seeds(HUNT, "dqn", runs.configured(tmp_path), [3, 1, 2], parallel=2, progress=False)
    assert [result.run_dir.name for result in results] == ["seed-3", "seed-1", "seed-2"] and len(servers) == 1
    assert all(800 <= result.steps < 802 and min(result.updates.values()) > 10 for result in results)
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
    first, last = (set(map(repr, metrics_of(result.run_dir))) for result in results[:2])
    assert first != last


@pytest.mark.usefixtures("shared_fork_server")
def test_a_run_that_fails_stops_the_others(tmp_path: Path) -> None:
    once = mc.SupervisionConfig(max_restarts=0)
    config = runs.configured(tmp_path, total_steps=10**9, supervision=once)
    with pytest.raises(mc.WorkerFailed, match="the floor gave way"):
        mc.train_seeds(partial(Corridor, 1, collapse), "dqn", config, [0, 1], parallel=2, progress=False)


def test_bad_input_is_refused_before_a_table_is_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = runs.configured(tmp_path, mode="serial")
    check_refused(lambda: mc.train_seeds("nowhere", "dqn", config, [0, 1]), mc.EnvironmentFailed, "got 'nowhere'")
    check_refused(lambda: mc.train_seeds(Corridor, "dqn", config, 3), TypeError, "seeds: expected a sequence of integ")
    twice = np.array([1, 1])
    check_refused(lambda: mc.train_seeds(Corridor, "dqn", config, twice), ValueError, "each seed once, got [1, 1]")
    assert capfd.readouterr().err == "" and not any(tmp_path.iterdir())


def test_a_seed_whose_directory_is_in_use_is_refused_before_the_first_run(tmp_path: Path) -> None:
    config, used = runs.configured(tmp_path, mode="serial"), tmp_path / "run" / "seed-1"
    used.mkdir(parents=True)
    (used / "notes").touch()
    says = f"run_dir: expected a new or empty directory, got {str(used)!r}, which holds files"
    check_refused(lambda: mc.train_seeds(HUNT, "dqn", config, [0, 1], progress=False), ValueError, says)
    assert [*used.parent.iterdir()] == [used]


@LONG
def test_ctrl_c_stops_all_seeds(tmp_path: Path) -> None:
    folders = [tmp_path / "all" / f"seed-{seed}" for seed in (0, 1)]
    options = "--env hunt:Calm --algo dqn --learner.warmup 50 --seeds 0 1 2 --parallel 2 --run-dir all"
    parent = marlcore("train", *options.split(), cwd=tmp_path)
    until(lambda: all(map(steps_of, folders)), lambda: parent.poll() is None)
    parent.send_signal(signal.SIGINT)
    code, output = finished(parent)
    assert code == 128 + signal.SIGINT, output
    assert output.endswith(f"train --resume {folders[0]}, and likewise {folders[1]}\n")
    assert all(checkpoint(folder)["updates"] >= 0 for folder in folders)
    assert not (tmp_path / "all" / "seed-2").exists()


def test_serial_seeds_work_in_the_main_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Some environments set handlers of signals, as pygame does, which only a program's first thread may.

    And a warning of all runs is logged once.
    """
    monkeypatch.setattr("marlcore.meta.several.plot_runs", lambda *_: None)
    before = signal.getsignal(signal.SIGUSR2)
    set_handler = partial(signal.signal, signal.SIGUSR2, signal.SIG_IGN)
    config = runs.configured(tmp_path, mode="serial", total_steps=100, learner={"warmup": 9_000})
    try:
        results = mc.train_seeds(partial(Corridor, 1, set_handler), "dqn", config, [0, 1], progress=False)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert [result.steps for result in results] == [100, 100]
    assert caplog.text.count("that it needs to begin to learn") == 1


@pytest.mark.usefixtures("shared_fork_server")
def test_a_signal_after_a_failure_waits_for_no_other_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run fails; the other one does not end before it is told to hurry."""
    made: list[Any] = []

    class Half:
        def __init__(self, **_: object) -> None:
            self.done = not made
            made.append(self)

        def wait(self) -> None:
            raise KeyError("mine")

        def stop(self) -> None:
            if self is made[-1]:
                os.kill(os.getpid(), signal.SIGINT)

        def hurry(self) -> None:
            self.done = True

        def close(self) -> None: ...

    monkeypatch.setattr("marlcore.meta.several.start", Half)
    with pytest.raises(KeyError, match="mine"):
        mc.train_seeds(HUNT, "dqn", runs.configured(tmp_path), [0, 1], parallel=2, progress=False)
    assert len(made) == 2


def test_a_shared_table_has_a_row_for_each_agent_of_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rate is that of all runs, also of one that ends before its own rate is known; seed 7 is resumed."""
    now = 100.0
    monkeypatch.setattr("marlcore.record.progress.monotonic", lambda: now)
    shown = io.StringIO()
    shared = SharedProgress(400, console=Console(file=shown, width=200), interval=0.0)
    parts = [shared.part("seed 4", 0), shared.part("seed 7", 20)]
    for part, value in zip(parts, (1.5, 2.5), strict=True):
        part.update(Metric(1.0, 50, "agent_0", "episode_return", value))
        part.update(Metric(1.0, 50, "", "episodes_per_s", value))
        now += 2.0
        part.tick(50, 200, 0.0)
    assert "20 env steps/s  4.0 episodes/s" in shown.getvalue().splitlines()[-1]
    parts[1].say("hello")
    shared.end("seed 4")
    now += 8.0
    parts[1].tick(150, 200, 0.0)
    line = shown.getvalue().splitlines()[-1]
    assert "step 200/400 (50.0%)  15 env steps/s  2.5 episodes/s" in line
    assert "marlcore: seed 7: hello" in shown.getvalue()
    assert "seed 4 agent_0: return (last 100) 1.50" in line and "seed 7 agent_0: return (last 100) 2.50" in line
