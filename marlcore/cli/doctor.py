"""`marlcore doctor`: tests the parts of this machine that marlcore needs, and gives advice on each.

A check is a function that returns a Finding; its optional parameters let tests replace parts of the machine. Modules
that may be broken, such as the core, are imported within the checks.
"""

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
from typing import Any, Literal

from .. import __version__, cgroup
from ..errors import MarlcoreError
from ..shm import SHM_DIR
from .linux_features import FEATURES
from .options import CommandLine, print_table

MOUNTS = Path("/proc/self/mountinfo")
MACHINES = ("x86_64", "aarch64")
ROWS, WARMUP = 100_000, 500  # of a default replay, which must at least hold its warm-up
ACTORS, LEARNERS = 1, 3  # of a default run
_FAILURES = (AttributeError, ImportError, LookupError, OSError, RuntimeError, ValueError, MarlcoreError)
_NO_TORCH = "torch is not installed, which only training needs"

State = Literal["ok", "warning", "problem"]
Count = Callable[[], float]
Environment = Mapping[str, str]


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    state: State  # warning: marlcore works, but may be slow or short of memory; problem: a part of it does not work
    found: str
    advice: str = ""  # the fix, in one line


@dataclass(frozen=True)
class DoctorOptions:
    """Check this machine: shared memory, memory limit, kernel, processors, threads, kernel cache, GPU, Ray's niceness.

    The exit code is 1 if there is a problem, otherwise 0.
    """

    json: bool = False
    """Print a list of objects with name, state, found and advice."""


def main(arguments: list[str]) -> int:
    options = CommandLine("doctor", arguments).parse(DoctorOptions)
    rows = [{"name": name, **asdict(finding)} for name, finding in examine(CHECKS).items()]
    cells = [list(row.values()) for row in rows]
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        print_table(dict.fromkeys(("check", "state", "found", "what to do"), "left"), cells)
    return int(any(row["state"] == "problem" for row in rows))


def examine(checks: Mapping[str, Callable[[], Finding]]) -> dict[str, Finding]:
    """Returns each check's finding by name; an error in a check becomes a problem."""
    findings = {}
    for name, check in checks.items():
        try:
            findings[name] = check()
        except _FAILURES as error:
            found = f"could not be checked: {_one_line(error)}"
            findings[name] = Finding("problem", found, "fix the problems above, then rerun")
    return findings


def _one_line(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def check_python(system: str = sys.platform, machine: str = platform.machine()) -> Finding:
    found = f"Python {platform.python_version()} on {system}, {machine}"
    if system != "linux" or machine not in MACHINES:
        return Finding("problem", found, f"use Linux on one of {', '.join(MACHINES)}")
    return Finding("ok", found)


def check_core(module: str = "marlcore.memory.native") -> Finding:
    try:
        import_module(module)
    except ImportError as error:
        found = f"marlcore {__version__}; the core does not load: {_one_line(error)}"
        advice = "cffi" if error.name == "cffi" else "--force-reinstall --no-deps marlcore"
        return Finding("problem", found, f"python -m pip install {advice}")
    return Finding("ok", f"marlcore {__version__}; the core loads")


def check_packages(names: Sequence[str] = ("numpy", "numba", "torch", "cffi")) -> Finding:
    versions, failed = [], []
    for name in names:
        try:
            versions.append(f"{name} {import_module(name).__version__}")
        except _FAILURES as error:
            if name == "torch" and isinstance(error, ModuleNotFoundError):
                versions.append(_NO_TORCH)
            else:
                failed.append(f"{name}: {_one_line(error)}")
    advice = "python -m pip install --upgrade marlcore, which brings them"
    return Finding("problem", "; ".join(failed), advice) if failed else Finding("ok", ", ".join(versions))


def check_shared_memory(directory: Path = SHM_DIR, mounts: Path = MOUNTS, statvfs: Any = os.statvfs) -> Finding:
    """Checks whether /dev/shm is a tmpfs, is writable, and has room for replays."""
    if not directory.is_dir():
        return Finding("problem", f"{directory} is not a directory", f"mount a tmpfs at {directory}")
    if not os.access(directory, os.W_OK | os.X_OK):
        return Finding("problem", f"{directory} cannot be written", "mount it read-write, with mode 1777")
    kind, status = _file_system(directory, mounts), statvfs(directory)
    state, room = _room_for_replays(status.f_bavail * status.f_frsize)
    found = f"{kind} of {_size(status.f_blocks * status.f_frsize)}, {room}"
    if kind != "tmpfs":
        return Finding("warning" if state == "ok" else state, found, f"mount a tmpfs at {directory}")
    advice = f"in docker, raise --shm-size; else mount -o remount,size=8G {directory}"
    return Finding(state, found, "" if state == "ok" else advice)


def check_memory_limit(limit: Callable[[], cgroup.MemoryLimit | None] = cgroup.memory_limit) -> Finding:
    """Checks whether the control group leaves room for replays; shared memory counts towards its limit."""
    memory = limit()
    if memory is None:
        return Finding("ok", "no limit")
    state, room = _room_for_replays(memory.left)
    advice = "in docker, raise --memory; shared memory counts towards it"
    return Finding(state, f"{_size(memory.limit)}, {room}", "" if state == "ok" else advice)


def check_orphans(directory: Path = SHM_DIR) -> Finding:
    """Looks for segments that killed processes left in shared memory."""
    from ..memory import survey_segments

    orphans = [file.nbytes for file in survey_segments(directory) if not file.held]
    if not orphans:
        return Finding("ok", "no orphaned segments")
    return Finding("warning", f"orphaned segments: {len(orphans)}, {_size(sum(orphans))}", "marlcore gc")


def _room_for_replays(free: int) -> tuple[State, str]:
    """Checks whether `free` bytes can hold a default replay of 84x84 frames, or at least its warm-up."""
    from ..spec import Field, TransitionSpec
    from ..transitions import RecordLayout

    spec = TransitionSpec(obs=Field((84, 84), "uint8"), action=Field((), "int64"))
    fits = free // sum(RecordLayout.of(spec).columns)
    state: State = "ok" if fits >= ROWS else "warning" if fits >= WARMUP else "problem"
    return state, f"{_size(free)} free: {fits:,} transitions of 84x84 frames, a replay has {ROWS:,}"


def _file_system(directory: Path, mounts: Path) -> str:
    kinds = {}
    for line in mounts.read_text().splitlines():
        mount, _, source = line.partition(" - ")
        kinds[Path(mount.split()[4])] = source.split()[0]  # a later mount hides an earlier one
    path = directory.resolve()
    return next((kinds[place] for place in (path, *path.parents) if place in kinds), "an unknown file system")


def _size(nbytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.1f} GiB"


def check_feature(name: str, directory: Path = SHM_DIR) -> Finding:
    feature = FEATURES[name]
    try:
        feature.attempt(directory)
    except (OSError, MarlcoreError) as error:
        # In a directory that cannot be written, the attempt says nothing about the kernel.
        advice = feature.advice if os.access(directory, os.W_OK | os.X_OK) else f"first fix {directory}"
        return Finding("problem", f"{_one_line(error)}; needed: {feature.purpose}", advice)
    return Finding("ok", f"works: {feature.purpose}")


def check_processors(available: Count = cgroup.cores) -> Finding:
    """Checks whether each process of a default run has a processor."""
    count = available()
    found = f"{count:g} for {ACTORS} actors and {LEARNERS} learners of a default run"
    advice = "allow more (affinity, docker's --cpus), or expect workers to wait for each other"
    return Finding("ok", found) if count >= ACTORS + LEARNERS else Finding("warning", found, advice)


def check_threads(torch: Any = None, available: Count = cgroup.cores, environ: Environment = os.environ) -> Finding:
    """Checks whether torch starts more threads than there are processors, in programs other than `marlcore train`."""
    if (torch := torch or _torch()) is None:
        return Finding("ok", _NO_TORCH)
    count, limit = torch.get_num_threads(), max(1, int(available()))
    found = f"torch uses {count} a process, OMP_NUM_THREADS is {environ.get('OMP_NUM_THREADS', 'not set')}"
    if count <= limit:
        return Finding("ok", found)
    advice = "set OMP_NUM_THREADS=1 for programs of several processes"
    return Finding("warning", f"{found}, for {limit} processors", advice)


def _torch() -> Any:
    try:
        return import_module("torch")
    except ModuleNotFoundError:
        return None


def check_numba_cache(cache: Callable[[], Path | None] | None = None, environ: Environment = os.environ) -> Finding:
    """Checks whether compiled kernels are kept between starts."""
    if environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        found = "NUMBA_DISABLE_JIT is set, but marlcore needs compiled kernels"
        return Finding("problem", found, "unset NUMBA_DISABLE_JIT")
    advice = "set NUMBA_CACHE_DIR to a directory that can be written"
    try:
        from ..kernels import jit

        path = (cache or jit.cache_directory)()
        if path is None:
            raise RuntimeError("no directory can be written")
        tempfile.TemporaryFile(dir=path).close()
    except (OSError, RuntimeError) as error:
        return Finding("problem", f"kernels cannot be cached: {_one_line(error)}", advice)
    asked = environ.get("NUMBA_CACHE_DIR")
    path = path.absolute()
    if asked and not path.is_relative_to(Path(asked).absolute()):
        return Finding("warning", f"{asked} cannot be written; kernels are cached in {path}", advice)
    return Finding("ok", f"kernels are cached in {path}")


def check_kernels() -> Finding:
    """Names the kernels that compiled networks use on this processor."""
    from ..compiled import level, widest  # imported here, since another check reports a broken core

    return Finding("ok", f"{level()} for layers of up to {widest()} units; torch computes wider ones")


def check_gpu(torch: Any = None) -> Finding:
    """Lists the accelerators that torch can use; having none is fine."""
    if (torch := torch or _torch()) is None:
        return Finding("ok", _NO_TORCH)
    with warnings.catch_warnings(record=True) as said:  # torch warns if a driver does not work
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            names = {f"cuda:{i}": torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
        else:
            names = {"mps": "Metal"} if torch.backends.mps.is_available() else {}
    for device in names:
        try:
            torch.ones(1, device=device).item()
        except RuntimeError as error:
            advice = "use the torch build for this GPU and driver, or --learner.device cpu"
            return Finding("problem", f"{device} ({names[device]}): {_one_line(error)}", advice)
    if said and not names:
        return Finding("warning", _one_line(said[0].message), "repair the driver, or use the torch build for the CPU")
    return Finding("ok", ", ".join(map(" ".join, names.items())) or "none; learners train on the CPU")


def check_niceness(ray: bool | None = None, environ: Environment = os.environ) -> Finding:
    """Checks whether actors that Ray starts get their share of the cores: by default Ray gives them niceness 15."""
    address = Path(environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")  # exists while Ray runs
    if not ("RAY_ADDRESS" in environ or address.exists() if ray is None else ray):
        return Finding("ok", "no Ray runs here; only runs on many machines need it")
    niceness = environ.get("RAY_worker_niceness", "15")
    found = f"Ray, started from here, gives actors niceness {niceness}"
    if niceness == "0":
        return Finding("ok", found)
    return Finding("warning", found, "start Ray with RAY_worker_niceness=0, or give it the machine alone")


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
    "networks": check_kernels,
    "gpu": check_gpu,
    "niceness": check_niceness,
}
