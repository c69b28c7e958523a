"""The limits of this process's control groups on memory and processor time, for cgroup versions 1 and 2."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import suppress_failed_calls

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIPS = Path("/proc/self/cgroup")
_UNLIMITED = 1 << 62  # version 1 writes about 2^63 for "no limit"
# For version 2, then 1: the files of the limit and the use, and memory.stat's field for memory that can be reclaimed.
_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True)
class MemoryLimit:
    """A memory limit; beyond it the kernel kills the process. Shared memory counts towards it."""

    limit: int  # bytes
    left: int  # bytes of it that may still be used


def memory_limit(root: Path = ROOT, memberships: Path = MEMBERSHIPS) -> MemoryLimit | None:
    """Returns the tightest limit of this process's group and of the group's ancestors; None without a limit."""
    limits = [limit for group in _groups("memory", root, memberships) for limit in _memory_limits(group)]
    return min(limits, key=lambda limit: limit.left, default=None)


def cpu_quota(root: Path = ROOT, memberships: Path = MEMBERSHIPS) -> float | None:
    """Returns the number of processors whose time this process's group may use; None without a limit."""
    return min((quota for group in _groups("cpu", root, memberships) for quota in _cpu_quotas(group)), default=None)


def cores() -> float:
    """Returns the number of processors, such as 2.5, that affinity and control group give this process."""
    return min(float(len(os.sched_getaffinity(0))), cpu_quota() or math.inf)


def processors() -> int:
    """Returns the whole number of processors on which this process may run at a time, at least 1."""
    return max(1, math.ceil(cores()))


def _groups(controller: str, root: Path, memberships: Path) -> Iterator[Path]:
    """Yields the directories, for one controller, of this process's groups and of the groups' ancestors."""
    lines: list[str] = []
    with suppress_failed_calls():  # no /proc, or a kernel without control groups
        lines = memberships.read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts = [root, root / "unified"]
        elif controller in controllers.split(","):
            mounts = [root / name for name in dict.fromkeys((controllers, controller))]
        else:
            continue
        inner = Path(path.lstrip("/"))
        if ".." in inner.parts:  # outside this process's cgroup namespace
            inner = Path()
        for mount in mounts:
            # A container may see its group's path on the host while the group is mounted at the top.
            yield from (mount / group for group in (inner, *inner.parents))


def _memory_limits(group: Path) -> Iterator[MemoryLimit]:
    for limit_file, used_file, cache_key in _MEMORY_FILES:
        with suppress_failed_calls():  # a group of the other version, or one without this controller
            text = (group / limit_file).read_text().strip()
            if text == "max" or int(text) >= _UNLIMITED:
                continue
            used = int((group / used_file).read_text())
            stats = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            yield MemoryLimit(int(text), max(0, int(text) - used + int(stats.get(cache_key, 0))))


def _cpu_quotas(group: Path) -> Iterator[float]:
    with suppress_failed_calls():
        quota, period = (group / "cpu.max").read_text().split()
        if quota != "max":
            yield int(quota) / int(period)
    with suppress_failed_calls():
        us = int((group / "cpu.cfs_quota_us").read_text())
        if us > 0:
            yield us / int((group / "cpu.cfs_period_us").read_text())
