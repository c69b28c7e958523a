"""`marlcore doctor`: tests the parts of this machine that marlcore needs, and gives advice on each.

A check is a function without required arguments that returns a Finding; tests replace the machine by its parameters.
A check itself imports the parts that may be broken, such as the core.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import tyro

from .. import __version__, cgroup
from ..errors import MarlcoreError
from ..training import Config
from .kernel_features import FEATURES
from .options import parse

SHM_DIR = Path("/dev/shm")
MACHINES = ("x86_64", "aarch64")
_FAILURES = (AttributeError, ImportError, LookupError, OSError, RuntimeError, ValueError, MarlcoreError)
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}

State = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        state: "ok"; "warning": it works, but may be slow or small; "problem": a part of marlcore does not work.
        found: the facts.
        advice: the fix, in one line; "" if there is nothing to fix.
    """

    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True)
class DoctorOptions:
    """Check this machine: shared memory, memory limit, kernel, processors, threads, kernel cache, GPU.

    The exit code is 1 if there is a problem, otherwise 0.
    """

    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print a list of objects with name, state, found and advice."""


def main(arguments: list[str]) -> int:
    """Runs `marlcore doctor` with these arguments and prints the findings; 1 if one is a problem, otherwise 0.

    Raises: ValueError: an option is unknown, in one line.
    """
    options = parse(DoctorOptions, arguments, "doctor")
    findings = examine(CHECKS)
    if options.json:
        rows = [{"name": name, **asdict(finding)} for name, finding in findings.items()]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        _draw(findings)
    return int(any(finding.state == "problem" for finding in findings.values()))


def examine(checks: Mapping[str, Callable[[], Finding]]) -> dict[str, Finding]:
    """By name: the finding of each check; a check that raises becomes a problem."""
    return {name: _attempt(check) for name, check in checks.items()}


def _attempt(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except _FAILURES as error:
        text = f"could not be checked: {_one_line(error)}"
        return Finding("problem", text, "fix the problems above, then rerun")


def _one_line(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _draw(findings: Mapping[str, Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for title in ("check", "state", "found", "what to do"):
        table.add_column(title, overflow="fold")
    for name, finding in findings.items():
        state = Text(finding.state, style=_COLOURS[finding.state])
        table.add_row(Text(name), state, Text(finding.found), Text(finding.advice))
    Console().print(table)


# ---- software ----


def check_python(system: str = sys.platform, machine: str = platform.machine()) -> Finding:
    """The interpreter and its platform."""
    found = f"Python {platform.python_version()} on {system}, {machine}"
    if system != "linux" or machine not in MACHINES:
        return Finding("problem", found, f"use Linux on one of {', '.join(MACHINES)}")
    return Finding("ok", found)


def check_core(module: str = "marlcore.memory.native") -> Finding:
    """Whether the C core loads."""
    try:
        import_module(module)
    except ImportError as error:
        return Finding(
            "problem",
            f"marlcore {__version__}; the core does not load: {_one_line(error)}",
            "python -m pip install --force-reinstall --no-deps marlcore",
        )
    return Finding("ok", f"marlcore {__version__}; the core loads")


def check_packages(names: Sequence[str] = ("numpy", "numba", "torch", "cffi")) -> Finding:
    """Whether marlcore's numeric packages can be imported."""
    versions, failed = [], []
    for name in names:
        try:
            versions.append(f"{name} {import_module(name).__version__}")
        except _FAILURES as error:
            failed.append(f"{name}: {_one_line(error)}")
    if failed:
        return Finding("problem", "; ".join(failed), "python -m pip install --upgrade marlcore, which brings them")
    return Finding("ok", ", ".join(versions))


# ---- memory ----


def check_shared_memory(
    directory: Path = SHM_DIR,
    mounts: Path = Path("/proc/self/mountinfo"),
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
) -> Finding:
    """Whether /dev/shm is memory, is writable, and has room for replays."""
    if not directory.is_dir():
        return Finding("problem", f"{directory} is no directory", f"mount a tmpfs at {directory}")
    if not os.access(directory, os.W_OK | os.X_OK):
        return Finding("problem", f"{directory} cannot be written", "mount it read-write, with mode 1777")
    kind = _file_system(directory, mounts)
    status = statvfs(directory)
    state, room = _room_for_replays(status.f_bavail * status.f_frsize)
    found = f"{kind} of {_size(status.f_blocks * status.f_frsize)}, {room}"
    if kind != "tmpfs":
        return Finding(max(state, "warning", key=_severity), found, f"mount a tmpfs at {directory}")
    if state == "ok":
        return Finding("ok", found)
    return Finding(state, found, f"in docker, raise --shm-size; else mount -o remount,size=8G {directory}")


def check_memory_limit(limit: Callable[[], cgroup.MemoryLimit | None] = cgroup.memory_limit) -> Finding:
    """Whether the control group leaves room for replays; shared memory counts towards its limit."""
    found = limit()
    if found is None:
        return Finding("ok", "no limit")
    state, room = _room_for_replays(found.left)
    advice = "" if state == "ok" else "in docker, raise --memory; shared memory counts towards it"
    return Finding(state, f"{_size(found.limit)}, {room}", advice)


def check_orphans(directory: Path = SHM_DIR) -> Finding:
    """Segments that killed processes left in shared memory."""
    from ..memory import survey_segments

    orphans = [file.nbytes for file in survey_segments(directory) if not file.held]
    if not orphans:
        return Finding("ok", "no orphaned segments")
    found = f"orphaned segments: {len(orphans)}, {_size(sum(orphans))}"
    return Finding("warning", found, "marlcore gc")


def _room_for_replays(free: int) -> tuple[State, str]:
    """Whether the default replay of frames fits, or at least its warm-up, without which training never starts."""
    from ..spec import Field, TransitionSpec
    from ..transitions import RecordLayout

    spec = TransitionSpec(obs=Field((84, 84), "uint8"), action=Field((), "int64"))
    config = Config()
    fits = free // sum(RecordLayout.of(spec).columns)
    found = f"{_size(free)} free: {fits:,} transitions of 84x84 frames, a replay has {config.replay.capacity:,}"
    if fits < config.learner.warmup:
        return "problem", found
    return ("ok" if fits >= config.replay.capacity else "warning"), found


def _file_system(directory: Path, mounts: Path) -> str:
    """The type of the file system that holds a directory."""
    kinds = {}
    for line in mounts.read_text().splitlines():
        before, _, after = line.partition(" - ")
        kinds[Path(before.split()[4])] = after.split()[0]  # a later mount hides an earlier one
    path = directory.resolve()
    return next((kinds[place] for place in (path, *path.parents) if place in kinds), "an unknown file system")


def _severity(state: State) -> int:
    return list(_COLOURS).index(state)


def _size(nbytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.1f} GiB"


# ---- kernel, processors and accelerators ----


def check_feature(name: str, directory: Path = SHM_DIR) -> Finding:
    """Whether the kernel has the feature."""
    feature = FEATURES[name]
    try:
        feature.attempt(directory)
    except (OSError, MarlcoreError) as error:
        # Without a directory to try it in, the attempt tells nothing about the kernel.
        advice = feature.advice if os.access(directory, os.W_OK | os.X_OK) else f"first fix {directory}"
        return Finding("problem", f"{_one_line(error)}; needed: {feature.purpose}", advice)
    return Finding("ok", f"works: {feature.purpose}")


def processors() -> float:
    """The processors that this process may use, by its affinity and its control group."""
    return min(float(len(os.sched_getaffinity(0))), cgroup.cpu_quota() or float("inf"))


def check_processors(available: Callable[[], float] = processors) -> Finding:
    """Whether each process of a default run has a processor."""
    from ..envs import TreasureHunt

    count, actors, learners = available(), Config().actor.processes, len(TreasureHunt().agents)
    found = f"{count:g} for {actors} actors and {learners} learners of a default run"
    if count >= actors + learners:
        return Finding("ok", found)
    return Finding(
        "warning", found, "give it more (affinity, docker's --cpus), or expect workers to wait for each other"
    )


def check_threads(
    torch: Any = None, available: Callable[[], float] = processors, environment: Mapping[str, str] = os.environ
) -> Finding:
    """Whether torch starts more threads than there are processors; `marlcore train` sets the threads itself."""
    count = (torch or import_module("torch")).get_num_threads()
    limit = max(1, int(available()))
    found = f"torch uses {count} a process, OMP_NUM_THREADS is {environment.get('OMP_NUM_THREADS', 'not set')}"
    if count <= limit:
        return Finding("ok", found)
    return Finding(
        "warning", f"{found}, for {limit} processors", "set OMP_NUM_THREADS=1 for programs of several processes"
    )


def check_numba_cache(cache: Callable[[], Path] | None = None, environment: Mapping[str, str] = os.environ) -> Finding:
    """Whether compiled kernels are kept between starts."""
    if environment.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return Finding(
            "problem", "NUMBA_DISABLE_JIT is set, but marlcore needs compiled kernels", "unset NUMBA_DISABLE_JIT"
        )
    advice = "set NUMBA_CACHE_DIR to a directory that can be written"
    try:
        path = (cache or _numba_cache)()
        tempfile.TemporaryFile(dir=path).close()
    except (OSError, RuntimeError) as error:
        return Finding("problem", f"kernels cannot be cached: {_one_line(error)}", advice)
    asked = environment.get("NUMBA_CACHE_DIR")
    if asked and not path.is_relative_to(Path(asked).absolute()):
        return Finding("warning", f"{asked} cannot be written; kernels are cached in {path}", advice)
    return Finding("ok", f"kernels are cached in {path}")


def _numba_cache() -> Path:
    """Numba's directory for the kernels. Raises RuntimeError: there is none."""
    from ..kernels import jit

    path = jit.cache_directory()
    if path is None:
        raise RuntimeError("none of Numba's directories can be written")
    return path.absolute()


def check_gpu(torch: Any = None) -> Finding:
    """The accelerators that torch can use; having none is fine."""
    torch = torch or import_module("torch")
    with warnings.catch_warnings(record=True) as said:  # torch warns of a driver that does not work
        warnings.simplefilter("always")
        names = _gpus(torch)
    if names:
        for device in names:
            try:
                torch.ones(1, device=device).item()
            except RuntimeError as error:
                advice = "use the torch build for this GPU and driver, or --learner.device cpu"
                return Finding("problem", f"{device} ({names[device]}): {_one_line(error)}", advice)
        return Finding("ok", ", ".join(f"{device} {name}" for device, name in names.items()))
    if said:
        return Finding("warning", _one_line(said[0].message), "repair the driver, or use the torch build for the CPU")
    return Finding("ok", "none; learners train on the CPU")


def _gpus(torch: ModuleType) -> dict[str, str]:
    """The GPUs: device name to model name."""
    if torch.cuda.is_available():
        return {f"cuda:{i}": torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
    return {"mps": "Metal"} if torch.backends.mps.is_available() else {}


CHECKS: dict[str, Callable[[], Finding]] = {
    "python": check_python,
    "packages": check_packages,
    "core": check_core,
    "/dev/shm": check_shared_memory,
    "memory limit": check_memory_limit,
    "orphans": check_orphans,
    **{name: partial(check_feature, name) for name in FEATURES},
    "processors": check_processors,
    "threads": check_threads,
    "numba cache": check_numba_cache,
    "gpu": check_gpu,
}
