"""`marlcore gc`: removes segments that no living process holds, and says which ones it left to whom."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import tyro

from ..memory import SHM_DIR, SegmentFile, survey_segments
from .options import parse

__all__ = ["holders", "main"]


@dataclass(frozen=True)
class GcOptions:
    """Remove segments in /dev/shm that no living process holds; the kernel's lock is the proof.

    On a terminal it draws a table. Elsewhere it prints a line for each segment, and one for all, with tabs between:
    "removed", "orphaned" (with --dry-run) or "kept"; bytes; seconds since it was last written to, as far as its file
    system noted; name; the processes that hold it, with commas between, or "-". The last line is "total", the bytes
    removed or orphaned, and the count of those segments.
    """

    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Only say what would be removed."""


def main(arguments: list[str], directory: Path = SHM_DIR) -> int:
    """Runs `marlcore gc` with these arguments and prints what it found in a directory; 0.

    Raises: ValueError: an option is unknown, in one line.
    """
    options = parse(GcOptions, arguments, "gc")
    files = survey_segments(directory, remove=not options.dry_run)
    pids = holders(directory, {file.inode for file in files if file.held})
    verb = "orphaned" if options.dry_run else "removed"
    now = time.time()
    rows = [_row(file, verb, now, pids.get(file.inode, [])) for file in files]
    freed = [file.nbytes for file in files if not file.held]
    if sys.stdout.isatty():
        _draw(rows, f"{verb}: {len(freed)} of {len(files)} segments, {sum(freed):,} bytes")
    else:
        rows.append(("total", str(sum(freed)), str(len(freed))))
        sys.stdout.writelines("\t".join(row) + "\n" for row in rows)
    return 0


def holders(directory: Path, inodes: Collection[tuple[int, int]]) -> dict[tuple[int, int], list[int]]:
    """By (device, inode) of files in a directory: the processes that have them open, as far as /proc shows them."""
    found: dict[tuple[int, int], list[int]] = {}
    if not inodes:
        return found
    for pid in sorted(int(entry) for entry in os.listdir("/proc") if entry.isdecimal()):
        for inode in _open_files(pid, directory) & set(inodes):
            found.setdefault(inode, []).append(pid)
    return found


def _open_files(pid: int, directory: Path) -> set[tuple[int, int]]:
    """(device, inode) of the files in a directory that a process has open; none when it is not this user's."""
    found = set()
    descriptors = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):  # it ended, or is another user's
        for fd in os.listdir(descriptors):
            with contextlib.suppress(OSError):  # closed meanwhile
                # By its link first: to ask for the status of another file could wait for another machine.
                if os.readlink(f"{descriptors}/{fd}").startswith(f"{directory}/"):
                    status = os.stat(f"{descriptors}/{fd}")
                    found.add((status.st_dev, status.st_ino))
    return found


def _row(file: SegmentFile, verb: str, now: float, pids: list[int]) -> tuple[str, ...]:
    age = max(0, round(now - file.written))
    name = ascii(file.name)[1:-1]  # a file may be named anything, line ends included
    return "kept" if file.held else verb, str(file.nbytes), str(age), name, ",".join(map(str, pids)) or "-"


def _draw(rows: list[tuple[str, ...]], total: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(caption=total)
    for title in ("", "bytes", "age in s", "segment", "held by"):
        table.add_column(title, justify="right" if title in ("bytes", "age in s") else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
