"""Figures of docs/figures on the pages of docs: `python -m bench pages` renews what stands between two marks.

<!-- figures: table calls -->
...
<!-- end -->
"""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ..figures import FOLDER, by_name, four_digits, load, markdown, origin, origins, picture, rounded
from ..machine import say

DOCS = FOLDER.parent
NAMES = "cluster", "drop-ins", "gallery", "performance", "planning", "reliability", "results", "embed"
PAGES = [DOCS / f"{name}.md" for name in (*NAMES, "guides/gpus", "guides/psro")]
SIDES = {  # of `python -m bench gpu`
    "marlcore": "marlcore, us",
    "locks": "`load_state_dict` under a lock, us",
    "in turn": "draw, then `torch.as_tensor`, us",
    "CPU only": "the draw alone, us",
    "PCIe": "copy of the bytes from or to pinned memory, us",
}
WATCHED = {
    "steps_per_s": "steps/s", "updates_per_s": "updates/s", "busy_percent": "GPU busy, %", "gpu_mb": "memory on it, MB",
}  # fmt: skip
REGION = re.compile(r"(<!-- figures: (\w+) ?([\w ]*) -->)(\n?).*?(<!-- end -->)", re.DOTALL)
RATES = "steps_per_s", "steps_per_cpu_s"  # of a side of `python -m bench peers`
MEASURES = "rss_mb", "anonymous_mb", "descriptors"  # of a soak's processes


def table(name: str) -> str:
    """A table that its command stored, or that was measured before its command stored figures."""
    stored = load("earlier").get(name) or load(name)
    return markdown(stored["columns"], stored["rows"]) + "\n" + origin(stored["origin"])


def results(names: str) -> str:
    """Tables of `python -m bench results`, for tasks whose names begin with one of `names`."""
    shown = {task: record for task, record in load("results").items() if task.startswith(tuple(names.split()))}
    notes = (f"{task}: {record['note']}.\n" for task, record in shown.items() if "note" in record)
    return "\n".join([results_table(shown), *origins(shown, "date", "machine", "software"), *notes])


def results_table(records: Mapping[str, Any]) -> str:
    titles = {"algorithm": "algorithm", "steps": "steps", "random": "random play", "returns": "returns by seed"}
    titles |= {"median": "median", "whole": "means of whole runs", "greedy": "greedy returns by seed"}
    titles |= {"updates": "updates", "seconds": "seconds, median", "load": "load"}
    records = four_digits({task: {**row, "median": median(row["returns"])} for task, row in records.items()})
    shown = [name for name in titles if any(record.get(name) is not None for record in records.values())]
    rows = ([task, *(record.get(name) for name in shown)] for task, record in records.items())
    return markdown(["task", *(titles[name] for name in shown)], rows)


def gallery(example: str) -> str:
    stored = load("gallery")[example]
    columns = "seed", "return in the last tenth", "seconds", "CPU seconds"
    rows = ([seed, *map(rounded, run)] for seed, run in stored["seeds"].items())
    return markdown(columns, rows) + "\n" + origin(stored)


def long(name: str) -> str:
    """A cell: what the last run of a long form found."""
    stored = load("long")[name]
    return f"{stored['found']} ({stored['date']})"


def long_origins(_: str) -> str:
    return "\n".join(origins(load("long"), "machine", "load"))


def ratios(_: str) -> str:
    """Tables of each machine."""
    machines = [load(path.stem) for path in sorted(FOLDER.glob("report-*.json"))]
    return "\n".join(f"{ratios_table(stored['ratios'])}\n{origin(stored)}" for stored in machines)


def ratios_table(rows: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Peers' times as multiples of marlcore's: medians of the rounds' ratios."""
    return by_name("work", {work: {peer: spread[1] for peer, spread in row.items()} for work, row in rows.items()})


def peers(first: str) -> str:
    """Rows of `python -m bench peers` whose names begin with `first`."""
    shown = {name: row for name, row in load("peers").items() if name.startswith(first)}
    return peers_table(shown) + "\n" + "\n".join(origins(shown, "date", "machine", "software"))


def peers_table(rows: Mapping[str, Any]) -> str:
    """A line for each side: its rates, and their ratios to the row's first side."""
    columns = "work", "side", "steps/s", "steps per CPU-second", "both rates, first = 1", "processes: cores of each"
    lines = []
    for name, row in rows.items():
        first = next(iter(row["sides"].values()), None)
        for side, figures in row["sides"].items():
            own = [rounded(figures[rate]) for rate in RATES]
            ratios = [rounded(figures[rate] / first[rate]) for rate in RATES]
            cores = f"{figures['processes']}: {', '.join(figures['busy'])}"
            title = f"{name} (load {row['load']})" if figures is first else None
            lines.append([title, side, *own, ratios, cores])
    return markdown(columns, lines)


def growth(part: str) -> str:
    stored = load(f"growth-{part}" if part else "growth")
    return growth_tables(stored) + "\n" + origin(stored)


def growth_tables(figures: Mapping[str, Any]) -> str:
    parts = []
    for name, works in figures["seconds"].items():
        microseconds = {work: {size: of * 1e6 for size, of in by_size.items()} for work, by_size in works.items()}
        parts.append(by_name(f"microseconds of CPU time, by number of {name}", microseconds))
    columns = ["start, s", "its CPU time, s", "steps in a CPU second of the actor", "memory of all processes, MB"]
    columns += ["processes", "segments", "descriptors of one process", "steps in a CPU second of all"]
    for name, sizes in figures["runs"].items():
        rows = [[size, *(v if isinstance(v, int) else rounded(v) for v in run.values())] for size, run in sizes.items()]
        parts.append(markdown([name, *columns], rows))
    return "\n".join(parts)


def gpu(_: str) -> str:
    """Tables of each GPU."""
    cards = [load(path.stem) for path in sorted(FOLDER.glob("gpu-*.json"))]
    return "\n".join(f"{gpu_tables(stored)}\n{origin(stored)}" for stored in cards)


def gpu_tables(figures: Mapping[str, Any]) -> str:
    """Times of calls, and figures of runs."""
    runs = (by_name(title, watched, WATCHED) for title, watched in figures["runs"].items())
    return "\n".join([by_name("work", figures["microseconds"], SIDES), *runs])


def instructions(_: str) -> str:
    parts = []
    for compiler, stored in load("instructions").items():
        parts.append(markdown(["call", "instructions"], stored["counts"].items()))
        parts.append(f"`python -m bench instructions`; {stored['date']}; {compiler}.\n")
    return "\n".join(parts)


def soak(name: str) -> str:
    """What the processes of a soak held, and by how much that grew."""
    stored = load(f"soak-{name}")
    loads = stored["load"]
    between = f"{min(loads):.0f} to {max(loads):.0f}, median {median(loads):.0f}"
    return creep_table(stored) + "\n" + origin({**stored, "load": between})


def rates(figures: Mapping[str, Any]) -> dict[str, list[float]]:
    """Calls a second in each minute, by name."""
    seconds = np.diff(figures["seconds"])
    return {name: (np.diff(counts) / seconds).tolist() for name, counts in figures["counts"].items()}


def rates_table(figures: Mapping[str, Any]) -> str:
    percentiles = {call: np.percentile(values, [5, 50, 95]).tolist() for call, values in rates(figures).items()}
    rows = ([f"{call}/s", *map(rounded, values)] for call, values in percentiles.items())
    return markdown(["by minute", "5th percentile", "median", "95th percentile"], rows)


def draw_soak(path: Path, figures: Mapping[str, Any]) -> None:
    """Memory, descriptors, rates and load over the minutes."""
    minutes = [seconds / 60 for seconds in figures["seconds"]]
    with picture(path, 5, figsize=(9, 13)) as (_, panels):
        for axes, measure in zip(panels, MEASURES, strict=False):
            for name, values in figures[measure].items():
                axes.plot(minutes, [float("nan") if value is None else value for value in values], label=name)
        for name, values in rates(figures).items():
            if middle := median(values):
                panels[3].plot(minutes[1:], [value / middle for value in values], label=f"{name}, {middle:,.3g}/s")
        panels[4].plot(minutes, figures["load"], color="#555555", label="load of the machine")
        labels = "resident MB", "anonymous MB", "descriptors", "rate / its median", "load"
        for axes, label in zip(panels, labels, strict=True):
            axes.set(ylabel=label, xlim=(0, minutes[-1]), ylim=(0, None))
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
        panels[4].set_xlabel("minutes")


def creep_table(figures: Mapping[str, Any]) -> str:
    """What the processes had at the end, and by how much it grew after the warm-up."""
    rows = []
    for process, growth in figures["growth"].items():
        held = [figures[measure][process][-1] for measure in MEASURES]
        rows.append([process, *(f"{rounded(end):g} ({grown:+.3g})" for end, grown in zip(held, growth, strict=True))])
    return markdown(["process", "resident MB", "anonymous MB", "descriptors"], rows)


def embed(part: str) -> str:
    """Tables of the codebases: "buffers", edits and buffers side by side; "runs", whole runs by seed."""
    stored = load("embed")
    tabled = {"buffers": _buffers, "runs": _runs}[part]
    shown = {name: record for name, record in stored.items() if ("runs" in record) >= (part == "runs")}
    made = {name: record["runs_made" if part == "runs" else "made"] for name, record in shown.items()}
    loads = dict.fromkeys(record["load"] for record in made.values())
    return "\n".join([tabled(shown), *origins(made, "date", "machine", "software"), f"Load {', '.join(loads)}.\n"])


def _buffers(records: Mapping[str, Any]) -> str:
    rows = []
    for name, record in records.items():
        cells = []
        if values := record.get("values"):
            cells = [values["ours"]["of"]]
            cells += [[values[side]["drawn"], values[side]["wrong"]] for side in ("theirs", "ours")]
            cells += [rounded(record[work]["theirs"] / record[work]["ours"]) for work in ("add", "sample")]
        rows.append([name, "+{}, -{}".format(*record["lines"]), *(cells or [None] * 5)])
    columns = "", "lines", "rows given", "drawn, wrong: its own", "with marlcore", "`add`: times as fast", "`sample`"
    return markdown(columns, rows)


def _runs(records: Mapping[str, Any]) -> str:
    rows = []
    for name, record in records.items():
        runs = record["runs"].values()
        sides = [[run[side] for run in runs] for side in ("theirs", "ours")]
        returns = ([run["returns"] for run in side] for side in sides)
        last = ([rounded(float(np.mean(of_run[-max(5, len(of_run) // 4) :]))) for of_run in side] for side in returns)
        spent = (rounded(median(run["cpu_s"] for run in side if run["cpu_s"])) for side in sides)
        rows.append([name, *last, *spent])
    columns = "", "its own buffer", "with marlcore", "CPU seconds: its own", "with marlcore"
    return markdown(columns, rows)


BY_NAME = embed, table, results, gallery, peers, long, long_origins, ratios, growth, gpu, instructions, soak
RENDERERS: dict[str, Callable[[str], str]] = {each.__name__: each for each in BY_NAME}


def filled(text: str, renderers: Mapping[str, Callable[[str], str]] = RENDERERS) -> str:
    """The page with every region as its renderer gives it; a region within a line, such as a table's cell, stays so."""

    def fill(region: re.Match[str]) -> str:
        begin, renderer, argument, newline, end = region.groups()
        return f"{begin}{newline}{newline}{renderers[renderer](argument)}{newline}{end}"

    return REGION.sub(fill, text)


def main(options: argparse.Namespace) -> None:
    for page in PAGES:
        if (renewed := filled(page.read_text())) != page.read_text():
            page.write_text(renewed)
            say(f"{page.name}: renewed by the stored figures")
