"""All rows of the benchmark, the libraries taking turns: `python -m bench.report`.

`--store` keeps the figures as those of this machine, and `--compare` puts a run beside them: by ratios, each of times
of the same round, since a busy machine changes both.
"""

import argparse
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from . import adding_work, params_work, queue_work, sampling_work, save_work
from .adding_while_sampled import LIBRARIES, Rates, measure_rates
from .figures import FOLDER, file_name, load
from .machine import describe_machine, load_since, parse_if_idle, processor, publish
from .save_work import SaveFigures
from .work import FULL, Row, time_row

ROWS = (*adding_work.ROWS, *sampling_work.ROWS, *queue_work.ROWS, *params_work.ROWS)
SAVE_ROUNDS = 5
KEPT = 0.9  # of its rate alone a writer must keep while it is sampled


@dataclass(frozen=True)
class Effort:
    rounds: int
    round_s: float
    rate_rounds: int
    rate_s: float


QUICK = Effort(rounds=15, round_s=0.003, rate_rounds=5, rate_s=0.2)
THOROUGH = Effort(rounds=100, round_s=0.005, rate_rounds=15, rate_s=0.5)


@dataclass(frozen=True)
class Result:
    """A row's median times in seconds by library, ratios to marlcore's, and each budget with whether it was reached."""

    row: str
    times: dict[str, float]
    ratios: dict[str, list[float]]  # by peer, 5th percentile, median and 95th percentile of the rounds' ratios
    budgets: dict[str, bool]


def measure(row: Row, effort: Effort) -> Result:
    rounds = time_row(row, FULL, effort.rounds, effort.round_s)
    times = {name: median(seconds) for name, seconds in rounds.items()}
    ours = times["marlcore"]
    ratios = {
        name: np.percentile(np.divide(seconds, rounds["marlcore"]), [5, 50, 95]).tolist()
        for name, seconds in rounds.items()
        if name != "marlcore"
    }
    reached = {str(b): ours <= b.limit * times[b.peer] for b in row.budgets if b.peer in times}
    return Result(row.name, times, ratios, reached)


def name_of_machine() -> str:
    """The stored figures of this machine: report-<processor and cores>."""
    return file_name("report", processor())


def comparison(results: list[Result], stored: dict[str, dict[str, list[float]]]) -> Table:
    """The peers' times as multiples of marlcore's: a median outside the stored rounds' spread is marked."""
    table = table_of(
        "ratios to marlcore's time", "work", "peer", "stored", "their 5 to 95 %", "now", "now / stored", ""
    )
    for result in results:
        for peer, (_, now, _) in result.ratios.items():
            if peer not in stored.get(result.row, {}):
                table.add_row(result.row, peer, "", "", _number(now), "", "not stored")
                continue
            low, middle, high = stored[result.row][peer]
            mark = "" if low <= now <= high else "[red]outside[/]"
            spread = f"{_number(low)} to {_number(high)}"
            table.add_row(result.row, peer, _number(middle), spread, _number(now), f"{now / middle:.2f}", mark)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__.partition(":")[0] + ".")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: noisier figures, and no saves")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures")
    parser.add_argument("--store", action="store_true", help="keep the figures as this machine's, in docs/figures")
    parser.add_argument("--compare", action="store_true", help="compare with those kept of this machine")
    options = parse_if_idle(parser)
    stored_file = FOLDER / f"{name_of_machine()}.json"
    if options.compare and not stored_file.exists():
        parser.error(f"compare: expected a stored run of {processor()}, got none; --store makes one")
    effort = QUICK if options.quick else THOROUGH
    torch.set_num_threads(1)  # an actor and a learner have a core each
    machine, before = describe_machine(), os.getloadavg()[0]
    with Console().status("measuring") as status:
        results = []
        for row in ROWS:
            status.update(row.name)
            results.append(measure(row, effort))
        status.update("writer's rate while sampled")
        rates = {name: measure_rates(name, effort.rate_rounds, effort.rate_s) for name in LIBRARIES}
        saves = {}
        if not options.quick:
            status.update("saving and loading 1 GB")
            rows = save_work.GIGABYTE_ROWS
            saves = {name: save_work.measure_saves(name, rows, SAVE_ROUNDS) for name in save_work.LIBRARIES}
    tables = [times_table(results), rates_table(rates), *([saves_table(saves)] if saves else [])]
    if options.compare:
        tables.append(comparison(results, load(name_of_machine())["ratios"]))
    publish(
        machine, tables, 200, options.json, stored_file if options.store else None,
        command="python -m bench.report" + " --quick" * options.quick + " --anyway" * options.anyway,
        load=load_since(before),
        microseconds={r.row: {name: time * 1e6 for name, time in r.times.items()} for r in results},
        ratios={r.row: r.ratios for r in results},
        budgets={r.row: r.budgets for r in results},
        adds_per_s={name: asdict(r) for name, r in rates.items()},
        saves={name: asdict(figures) for name, figures in saves.items()},
    )  # fmt: skip
    if options.plot:
        draw(options.plot, machine, results)


def table_of(title: str, *columns: str, **options: Any) -> Table:
    """A table whose first column is of names, and all others of numbers."""
    table = Table(title=title, **options)
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", no_wrap="show_edge" in options)
    return table


def times_table(results: list[Result]) -> Table:
    libraries = list(dict.fromkeys(name for result in results for name in result.times))
    title = "median time in microseconds, and as a multiple of marlcore's"
    table = table_of(title, "work", *libraries, "at most", "reached", show_edge=False)
    for result in results:
        cells = [_time_cell(result, name) for name in libraries]
        reached = "\n".join(_verdict(met) for met in result.budgets.values())
        table.add_row(result.row, *cells, "\n".join(result.budgets), reached)
    return table


def _time_cell(result: Result, library: str) -> str:
    if library not in result.times:
        return ""
    time = _number(result.times[library] * 1e6)
    ratio = result.times[library] / result.times["marlcore"]
    return time if library == "marlcore" else f"{time} {f'x {ratio:.2g}':>7}"


def rates_table(rates: dict[str, Rates]) -> Table:
    beside = "sleeping", "computing", "sampling 256", "of sleeping", "of computing"
    title = "a writer's thousand adds/s (4 x float32), another process doing this beside it"
    table = table_of(title, "library", *beside, "at least", "reached")
    for name, r in rates.items():
        cells = [_number(value / 1e3) for value in (r.alone, r.beside_spinning, r.beside_sampling)]
        budget = (f"{KEPT:g} of sleeping", _verdict(r.kept >= KEPT)) if name == "marlcore" else ()
        table.add_row(name, *cells, f"{r.kept:.2f}", f"{r.kept_of_busy:.2f}", *budget)
    return table


def saves_table(saves: dict[str, SaveFigures]) -> Table:
    figures = "GB", "save s", "on disk s", "load s", "longest add alone ms", "during the save ms"
    title = "a replay of frames saved and loaded, another process adding a frame a millisecond"
    table = table_of(title, "library", *figures)
    for name, f in saves.items():
        longest = f.longest_add_s * 1e3, f.longest_add_saving_s * 1e3
        table.add_row(name, *map(_number, (f.nbytes / 1e9, f.save_s, f.on_disk_s, f.load_s, *longest)))
    return table


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _verdict(met: bool) -> str:
    return "[green]yes[/]" if met else "[red]no[/]"


# By library: its colour, and its name in the picture where that is another one
BARS = {
    "marlcore": ("#0b6e4f", ""),
    "locks": ("#c8963e", "lock + shared arrays or load_state_dict"),
    "memcpy": ("#b8b8b8", "memcpy of the same bytes"),
    "floor": ("#7f7f7f", "plain C, the same bytes from random places"),
    "cpprb": ("#7d6b91", "cpprb, several processes"),
    "cpprb single": ("#b5a6c4", "cpprb, one process"),
    "torchrl": ("#a04668", "torchrl, shared"),
    "64 writers": ("#5fa98f", "marlcore, an add of each lane's writer"),
    "add_batch": ("#a8d5c2", "marlcore, 64 rows to one lane"),
    "mp.Queue": ("#3d6b99", "multiprocessing.Queue, a step a put"),
    "mp.Queue 128": ("#8fb3d1", "multiprocessing.Queue, 128 steps a put"),
}


def draw(path: Path, machine: dict[str, str], results: list[Result]) -> None:
    """Bars of the median times, one group a row."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    bars: dict[str, list[tuple[float, float]]] = {name: [] for result in results for name in result.times}
    middles, at = [], 0.0
    for result in results:
        middles.append(at + (len(result.times) - 1) / 2)
        for name, time in result.times.items():
            bars[name].append((at, time * 1e6))
            at += 1.0
        at += 0.8
    figure, axes = plt.subplots(figsize=(10, 0.2 * at + 1.6), layout="constrained")
    for name, places in bars.items():
        colour, label = BARS[name]
        plotted = axes.barh(*zip(*places, strict=True), height=0.9, color=colour, label=label or name)
        axes.bar_label(plotted, [_number(time) for _, time in places], padding=3, fontsize=8)
    axes.set_yticks(middles, [result.row for result in results])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.1, y=0.01)
    axes.set_xlabel("median time, microseconds, logarithmic: shorter is better")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    axes.set_title("marlcore beside locks and beside a plain memcpy", fontweight="bold")
    figure.supxlabel("\n".join(machine.values()), fontsize=8, color="#555555")
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
