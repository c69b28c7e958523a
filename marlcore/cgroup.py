"""What this process's control groups allow it: memory and processor time, in version 1 and version 2 alike."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MemoryLimit", "cpu_quota", "memory_limit"]

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_UNLIMITED = 1 << 62  # version 1 has a number of about 2^63 for no limit
# limit, use, and in memory.stat what the kernel gives up before it kills: version 2, then version 1
_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True)
class MemoryLimit:
    """A limit past which the kernel kills instead of failing; shared memory counts towards it.

    Attributes:
        limit: bytes. left: how many of them may still be used.
    """

    limit: int
    left: int


def memory_limit(root: Path = ROOT, own: Path = OWN) -> MemoryLimit | None:
    """Of this process's group and those around it, the limit that leaves least; None where none has one."""
    found = [limit for group in _groups("memory", root, own) for limit in _memory_limits(group)]
    return min(found, key=lambda limit: limit.left, default=None)


def cpu_quota(root: Path = ROOT, own: Path = OWN) -> float | None:
    """The processors whose time this process's group may use; None where none has a limit."""
    found = [quota for group in _groups("cpu", root, own) for quota in _cpu_quotas(group)]
    return min(found, default=None)


def _groups(controller: str, root: Path, own: Path) -> Iterator[Path]:
    """The directories of this process's groups that a controller may rule, and of those around them."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # there is no /proc, or no control group in it
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts = [root, root / "unified"]
        elif controller in controllers.split(","):
            mounts = [root / name for name in dict.fromkeys((controllers, controller))]
        else:
            continue
        inner = Path(path.lstrip("/"))
        if ".." in inner.parts:  # outside of what this process's namespace shows
            inner = Path()
        for mount in mounts:
            # A container may see the path that its group has on the host, and find itself at the mount's top.
            yield from (mount / group for group in (inner, *inner.parents))


def _memory_limits(group: Path) -> Iterator[MemoryLimit]:
    for limit_file, used_file, cache_key in _MEMORY_FILES:
        with contextlib.suppress(OSError):  # a group of the other version, or one without this controller
            text = (group / limit_file).read_text().strip()
            if text == "max" or int(text) >= _UNLIMITED:
                continue
            used = int((group / used_file).read_text())
            stats = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            yield MemoryLimit(int(text), max(0, int(text) - used + int(stats.get(cache_key, 0))))


def _cpu_quotas(group: Path) -> Iterator[float]:
    with contextlib.suppress(OSError):
        quota, period = (group / "cpu.max").read_text().split()
        if quota != "max":
            yield int(quota) / int(period)
    with contextlib.suppress(OSError):
        us = int((group / "cpu.cfs_quota_us").read_text())
        if us > 0:
            yield us / int((group / "cpu.cfs_period_us").read_text())
