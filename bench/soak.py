"""Memory, descriptors and rates of long work, minute by minute, and whether any of them creeps: `python -m bench.soak`.

A process's resident memory and its descriptors may not grow: from its first minutes after the warm-up to its last
ones, at most MOST_MB_AN_HOUR and no descriptor. Ctrl-C ends the soak early, and reports what was seen until then.
"""

import argparse
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from .cpu_time import cpu_of_descendants, title
from .figures import FOLDER
from .machine import describe_machine, publish
from .soak_figures import draw, tables
from .soak_work import PROGRAMS, Counts

EVERY_S = 10.0
WARM_UP = 0.1  # of the time: memory is touched for the first time, kernels are compiled
MOST_MB_AN_HOUR = 4.0
LEAST_MB = 1.0  # of growth is no growth, however short the soak: the kernel counts pages in bundles


@dataclass(frozen=True)
class Process:
    """One process of a sample."""

    pid: int
    rss_mb: float
    anonymous_mb: float  # of it, without pages of files: the kernel takes those back, which hides growth
    descriptors: int
    cpu_s: float


@dataclass(frozen=True)
class Sample:
    seconds: float
    load: float
    processes: dict[str, Process]  # by title and number
    counts: dict[str, int]  # calls until now, by name


@dataclass(frozen=True)
class Soak:
    """The samples, and what follows from them."""

    samples: list[Sample] = field(default_factory=list)

    @property
    def settled(self) -> list[Sample]:
        """Those after the warm-up."""
        begin = self.samples[0].seconds + WARM_UP * (self.samples[-1].seconds - self.samples[0].seconds)
        return [sample for sample in self.samples if sample.seconds >= begin]

    def lasting(self) -> list[str]:
        """The processes that lived from the end of the warm-up to the end of the soak."""
        pids = [{name: process.pid for name, process in sample.processes.items()} for sample in self.settled]
        return [name for name, pid in pids[0].items() if all(later.get(name) == pid for later in pids)]

    def growth(self, name: str) -> list[float]:
        """[resident MB, anonymous MB, descriptors] from the end of the warm-up to the end."""
        return [self._change(name, measure) for measure in ("rss_mb", "anonymous_mb", "descriptors")]

    def _change(self, name: str, measure: str) -> float:
        """From the first tenth of a process's settled samples to the last one, medians of each."""
        values = [getattr(sample.processes[name], measure) for sample in self.settled]
        part = max(1, len(values) // 10)
        return float(median(values[-part:]) - median(values[:part]))

    def creeping(self) -> list[str]:
        """A line for each process whose memory or descriptors grew by more than they may."""
        hours = (self.settled[-1].seconds - self.settled[0].seconds) / 3600
        most_mb = max(LEAST_MB, MOST_MB_AN_HOUR * hours)
        lines = []
        for name in self.lasting():
            for measure, memory in (("rss_mb", "resident"), ("anonymous_mb", "anonymous")):
                if (grown := self._change(name, measure)) > most_mb:
                    lines.append(f"{name}: expected at most {most_mb:.1f} MB more {memory} memory, got {grown:.1f}")
            if (more := self._change(name, "descriptors")) > 0:
                lines.append(f"{name}: expected no further descriptor, got {more:g}")
        return lines

    def minutes(self) -> list[Sample]:
        """A sample a minute; of a soak that ended sooner, the first and the last one."""
        samples, due = [], 0.0
        for sample in self.samples:
            if sample.seconds >= due:
                samples.append(sample)
                due = sample.seconds + 60.0 - EVERY_S / 2
        return samples if len(samples) > 1 else [self.samples[0], self.samples[-1]]


def look(root: int) -> dict[str, Process]:
    """The process and its descendants, by title; those of the same title are numbered by their age."""
    found: dict[str, Process] = {}
    numbers: Counter[str] = Counter()
    ages = sorted(cpu_of_descendants(root).items(), key=lambda item: item[0][1])
    for (pid, _), cpu_s in [((root, 0), time.process_time()), *ages]:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended
        if "VmRSS:" not in status:
            continue  # it is ending
        name = "parent" if pid == root else title(pid)
        numbers[name] += 1
        rss_mb, anonymous_mb = (int(status.partition(f"{key}:")[2].split()[0]) / 1024 for key in ("VmRSS", "RssAnon"))
        found[f"{name} {numbers[name]}" if numbers[name] > 1 else name] = Process(
            pid, rss_mb, anonymous_mb, descriptors, cpu_s
        )
    return found


def take(counts: Counts, seconds: float) -> Soak:
    soak, began, due, interrupted = Soak(), time.monotonic(), 0.0, False
    while True:
        passed = time.monotonic() - began
        soak.samples.append(Sample(passed, os.getloadavg()[0], look(os.getpid()), dict(counts())))
        if interrupted or passed >= seconds:
            return soak
        due += EVERY_S
        try:
            time.sleep(max(0.0, began + due - time.monotonic()))
        except (KeyboardInterrupt, SystemExit):
            interrupted = True


def figures_of(soak: Soak) -> dict[str, Any]:
    """A sample a minute, as columns; a process that did not live then has None."""
    samples = soak.minutes()
    seen = Counter(name for sample in samples for name in sample.processes)
    names = [name for name, times in seen.items() if times > 1]  # others had not yet taken their title

    def columns(measure: str) -> dict[str, list[float | None]]:
        return {name: [getattr(sample.processes.get(name), measure, None) for sample in samples] for name in names}

    return {
        "seconds": [sample.seconds for sample in samples],
        "load": [sample.load for sample in samples],
        "counts": {name: [sample.counts.get(name, 0) for sample in samples] for name in samples[-1].counts},
        "rss_mb": columns("rss_mb"),
        "anonymous_mb": columns("anonymous_mb"),
        "descriptors": columns("descriptors"),
        "cpu_s": columns("cpu_s"),
        "growth": {name: soak.growth(name) for name in soak.lasting()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=(__doc__ or "").partition(":")[0] + ".")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--program", choices=list(PROGRAMS), default="core")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures")
    parser.add_argument(
        "--store", action="store_true", help="renew docs/figures/soak-PROGRAM.json and docs/soak-PROGRAM.png"
    )
    options = parser.parse_args()
    if options.store:
        options.json = options.json or FOLDER / f"soak-{options.program}.json"
        options.plot = options.plot or FOLDER.parent / f"soak-{options.program}.png"
    machine = describe_machine()
    with PROGRAMS[options.program]() as counts:
        soak = take(counts, 60.0 * options.minutes)
    called = f"nice -n {os.nice(0)} python -m bench.soak --program {options.program}"
    command = f"{called} --minutes {soak.samples[-1].seconds / 60:.0f}"
    figures = figures_of(soak)
    publish(machine, tables(figures), 0, options.json, command=command, **figures)
    if options.plot:
        draw(options.plot, figures)
    creeping = soak.creeping()
    sys.stderr.writelines(f"{line}\n" for line in creeping)
    return 1 if creeping else 0


if __name__ == "__main__":
    sys.exit(main())
