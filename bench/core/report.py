"""All rows of the benchmark, the libraries taking turns: `python -m bench report`.

`--compare` puts a run beside the stored one by ratios of times of the same round, since a busy machine changes both.
"""

import argparse
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console

from ..figures import FOLDER, by_name, cell, file_name, load, markdown, picture, rounded
from ..machine import processor, publish, software, system
from ..pages.pages import ratios_table
from . import adding, queues, sampling, weights
from .meanwhile import GIGABYTE_ROWS, SAMPLED, SAVED, measure_rates, measure_saves
from .work import FULL, Row, time_row

ROWS = (*adding.ROWS, *sampling.ROWS, *queues.ROWS, *weights.ROWS)
ROUNDS, ROUND_S = 100, 0.005
RATE_ROUNDS, RATE_S, SAVE_ROUNDS = 15, 0.5, 5
STORE = "keep the figures as this machine's, in docs/figures, and draw docs/speed.png"
IDLE = True
KEPT = 0.9  # of its rate alone a writer must keep while it is sampled


def measure(row: Row, count: int = ROUNDS, round_s: float = ROUND_S) -> dict[str, dict[str, Any]]:
    """A row's median microseconds by library, ratios to marlcore's, and each budget with whether it was reached.

    Ratios are, by peer, the 5th percentile, median and 95th percentile of the rounds' ratios.
    """
    rounds = time_row(row, FULL, count, round_s)
    times = {name: 1e6 * median(seconds) for name, seconds in rounds.items()}
    ratios = {
        name: np.percentile(np.divide(seconds, rounds["marlcore"]), [5, 50, 95]).tolist()
        for name, seconds in rounds.items()
        if name != "marlcore"
    }
    reached = {
        f"{peer} / {1 / most:g}" if most < 1 else f"{peer} x {most:g}": times["marlcore"] <= most * times[peer]
        for peer, most in row.budgets.items()
        if peer in times
    }
    return {"microseconds": times, "ratios": ratios, "budgets": reached}


def comparison(ratios: Mapping[str, Mapping[str, list[float]]], stored: Mapping[str, Mapping[str, list[float]]]) -> str:
    """The peers' times as multiples of marlcore's: a median outside the stored rounds' spread is marked."""
    rows = []
    for row, peers in ratios.items():
        for peer, (_, now, _) in peers.items():
            if peer not in stored.get(row, {}):
                rows.append([row, peer, None, None, rounded(now), None, "not stored"])
                continue
            low, middle, high = stored[row][peer]
            change = f"{rounded(low)} to {rounded(high)}", rounded(now), f"{now / middle:.2f}"
            rows.append([row, peer, rounded(middle), *change, "" if low <= now <= high else "outside"])
    columns = "ratios to marlcore's time", "peer", "stored", "their 5 to 95 %", "now", "now / stored", ""
    return markdown(columns, rows)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--compare", action="store_true", help="compare with the times stored for this machine")


def main(options: argparse.Namespace) -> None:
    stored = file_name("report", processor())
    if options.compare and not (FOLDER / f"{stored}.json").exists():
        sys.exit(f"compare: expected a stored run of {processor()}, got none; --store makes one")
    torch.set_num_threads(1)  # an actor and a learner have a core each
    with Console().status("measuring") as status:
        results = {}
        for row in ROWS:
            status.update(row.name)
            results[row.name] = measure(row)
        status.update("writer's rate while sampled")
        rates = {name: measure_rates(name, RATE_ROUNDS, RATE_S) for name in SAMPLED}
        status.update("saving and loading 1 GB")
        saves = {name: measure_saves(name, GIGABYTE_ROWS, SAVE_ROUNDS) for name in SAVED}
    kept = rates["marlcore"]["kept"]
    goal = f"marlcore's writer keeps {kept:.2f} of its rate, at least {KEPT:g}: {'yes' if kept >= KEPT else 'no'}"
    kinds = "microseconds", "ratios", "budgets"
    figures = {kind: {row: record[kind] for row, record in results.items()} for kind in kinds}
    tables = [by_name("median time in us", figures["microseconds"]), ratios_table(figures["ratios"])]
    tables += [budgets_table(figures["budgets"]), by_name("library", rates), goal, "", by_name("library", saves)]
    if options.compare:
        tables.append(comparison(figures["ratios"], load(stored)["ratios"]))
    peers = (f"{name} {metadata.version(name)}" for name in ("cpprb", "torchrl") if find_spec(name))
    versions = ", ".join([software(), *peers])
    publish(options, "\n".join(tables), stored, software=versions, **figures, adds_per_s=rates, saves=saves)
    if options.store:
        draw(FOLDER.parent / "speed.png", f"{system()}\n{versions}", figures["microseconds"])


def budgets_table(budgets: Mapping[str, Mapping[str, bool]]) -> str:
    lines = ([row, most, "yes" if met else "no"] for row, reached in budgets.items() for most, met in reached.items())
    return markdown(["work", "marlcore's time is at most", "reached"], lines)


# By library: its colour, and its name in the picture where that is another one
BARS = {
    "marlcore": ("#0b6e4f", ""),
    "marlcore separate": ("#5d9c86", "marlcore, obs and next_obs apart"),
    "marlcore shared": ("#8cc2ad", "marlcore, obs and next_obs in one block"),
    "locks": ("#c8963e", "lock + shared arrays or load_state_dict"),
    "memcpy": ("#b8b8b8", "memcpy of the same bytes"),
    "floor": ("#7f7f7f", "plain C, the same bytes from random places"),
    "cpprb": ("#7d6b91", "cpprb, several processes"),
    "cpprb single": ("#b5a6c4", "cpprb, one process"),
    "torchrl": ("#a04668", "torchrl, shared"),
    "rlox": ("#c27c95", "rlox, one process"),
    "stable_baselines3": ("#5b7f95", "Stable-Baselines3, one process"),
    "64 writers": ("#5fa98f", "marlcore, an add of each lane's writer"),
    "add_batch": ("#a8d5c2", "marlcore, 64 rows to one lane"),
    "mp.Queue": ("#3d6b99", "multiprocessing.Queue, a step a put"),
    "mp.Queue 128": ("#8fb3d1", "multiprocessing.Queue, 128 steps a put"),
}


def draw(path: Path, machine: str, microseconds: Mapping[str, Mapping[str, float]]) -> None:
    """Bars of the median times, one group a row."""
    bars: dict[str, list[tuple[float, float]]] = {name: [] for times in microseconds.values() for name in times}
    middles, at = [], 0.0
    for times in microseconds.values():
        middles.append(at + (len(times) - 1) / 2)
        for name, time in times.items():
            bars[name].append((at, time))
            at += 1.0
        at += 0.8
    with picture(path, dpi=150, figsize=(10, 0.2 * at + 1.6)) as (figure, (axes,)):
        for name, places in bars.items():
            colour, label = BARS[name]
            plotted = axes.barh(*zip(*places, strict=True), height=0.9, color=colour, label=label or name)
            axes.bar_label(plotted, [cell(rounded(time)) for _, time in places], padding=3, fontsize=8)
        axes.set_yticks(middles, list(microseconds))
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.margins(x=0.1, y=0.01)
        axes.set_xlabel("median time, microseconds, logarithmic: shorter is better")
        axes.tick_params(axis="y", length=0)
        axes.set_title("marlcore beside locks and beside a plain memcpy", fontweight="bold")
        figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=9)
        figure.supxlabel(machine, fontsize=8, color="#555555")
