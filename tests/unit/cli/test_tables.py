"""The tables of a run and of `marlcore top` fit the terminal, narrow ones too."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from marlcore.cli import options
from marlcore.cli import top as command
from marlcore.processes import Metric
from marlcore.record import Progress
from marlcore.tables import FittedTable, print_fitted

METRICS = {"episode_return": -1234.567, "loss": 0.0123456, "epsilon": 0.05, "policy_lag": 12.0, "updates_per_s": 1234.5}
LEARNER = {
    "state": "starting", "return": -12345.25, "pid": 4194304, "restarts": 12, "updates": 123456789,
    "updates_per_s": 12345.0, "replay_ratio": 0.0123, "policy_lag_p50": 1.0, "policy_lag_p99": 2345.0, "lapped": 12.0,
    "redrawn": 123456.0, "waited_s": 12345.6,
}  # fmt: skip
ACTOR = {"state": "running", "pid": 4194303, "restarts": 0, "steps": 10**9, "steps_per_s": 123456.0}


def training(console: Console, agents: list[str]) -> FittedTable:
    progress = Progress(console)
    for agent in agents:
        for name, value in METRICS.items():
            progress.update(Metric(0.0, 1, agent, name, value))
    progress._step, progress._total, progress._rate = 12_345_678, 200_000_000, 12_345.0
    return progress._table()


def top(agents: list[str]) -> FittedTable:
    workers = {"actor-0": ACTOR} | {f"learner-{agent}": LEARNER for agent in agents}
    run_dir = "/home/somebody/experiments/2026/runs/2026-01-01_12-00-00-treasure_hunt-iqn"
    counts = {"steps": 10**8, "total_steps": 10**9, "steps_per_s": 1e5}
    return command._table({"run_dir": run_dir, **counts, "workers": workers, "policies": {}, "returns": {}}, {})


def console(width: int, height: int = 24) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None, _environ={})


def drawn(console: Console, table: FittedTable) -> list[str]:
    console.print(table)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("count", [3, 12])
@pytest.mark.parametrize("kind", ["training", "top"])
def test_nothing_is_wrapped_or_cut_off_at_any_width(kind, count, width):
    agents = [f"agent_{i}" for i in range(count)]
    out = console(width, height=24 if count == 3 and kind == "training" else 400)
    table = training(out, agents) if kind == "training" else top(agents)
    lines = drawn(out, table)
    assert all(cell_len(line) <= width for line in lines)
    assert "…" not in "".join(lines)
    cells = {cell.strip() for line in lines for cell in line.replace("┃", "│").split("│")}
    assert set(table.titles) - set(table.optional) <= cells, "a header is not whole"
    for name, row in table.rows.items():
        needed = {cell for title, cell in zip(table.titles, row, strict=True) if title not in table.optional}
        assert {name, *needed} - {""} <= cells, f"a number of {name} is not whole"


def test_the_training_table_is_one_at_80_columns():
    out = console(80)
    assert sum("agent_0" in line for line in drawn(out, training(out, ["agent_0", "agent_11"]))) == 1


def test_long_names_are_shortened_and_markup_is_text():
    out = console(60)
    lines = drawn(out, training(out, ["[red]" + "x" * 100, "b"]))
    assert all(cell_len(line) <= 60 for line in lines)
    assert any("[red]xxx" in line and "…" in line for line in lines)


@pytest.mark.parametrize(("width", "shown"), [(80, False), (200, True)])
def test_pids_are_shown_where_one_table_has_room_for_them(width, shown):
    out = console(width)
    assert (" pid " in "".join(drawn(out, top(["agent_0"])))) == shown


def test_every_column_of_top_is_one_that_a_worker_reports():
    assert set(command.COLUMNS) == LEARNER.keys() | ACTOR.keys()


@pytest.mark.parametrize("rows", [{"add": ["0.50", "a copy"], "sample": ["1,234.50", ""]}, {}])
def test_a_table_for_a_pipe_is_plain(rows, capsys):
    """At any width; without rows, only the headline is printed."""
    print_fitted(FittedTable(["a processor", "load 0.3"], "call", ["us", "bound " + "x" * 300], rows))
    lines = ["a processor  load 0.3", "call\tus\tbound " + "x" * 300, "add\t0.50\ta copy", "sample\t1,234.50\t"]
    assert capsys.readouterr().out.splitlines() == lines[: 1 if not rows else None]


@pytest.mark.parametrize(("width", "plain"), [(20, True), (80, False)])
def test_a_very_narrow_terminal_gets_findings_without_a_frame(width, plain, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    options.print_table({"check": "left", "state": "left", "found": "left"}, [["python", "ok", "3.11"]])
    assert (capsys.readouterr().out == "python\tok\t3.11\n") == plain
