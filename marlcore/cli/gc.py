"""`marlcore gc`: removes segments that no live process holds, and caches of kernels that are no longer used."""

import os
import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from ..kernels.cache import stale_directories
from ..memory import SHM_DIR, survey_segments
from .options import CommandLine, print_table


@dataclass(frozen=True)
class GcOptions:
    """Remove segments in /dev/shm that no live process holds, as kernel locks prove, and stale kernel caches.

    A cache of compiled kernels is stale if the installation that made it is gone or has changed its version or sources
    since, or if no program has used the cache for 90 days.

    On a terminal the command draws a table. Otherwise it prints a line for each segment with tab-separated fields:
    "removed", "orphaned" (with --dry-run) or "kept"; bytes; seconds since the last write that the file system recorded;
    name; the holders' process ids, separated by commas, or "-". The line of a stale cache has the seconds since the
    cache's last use, and its path as name. The last line is "total", the bytes removed or orphaned, and the number of
    these segments and caches.
    """

    dry_run: bool = False
    """Only list what would be removed."""


def main(arguments: list[str], directory: Path = SHM_DIR) -> int:
    options = CommandLine("gc", arguments).parse(GcOptions)
    files = survey_segments(directory, remove=not options.dry_run)
    pids = holders(directory, {file.inode for file in files if file.held})
    verb = "orphaned" if options.dry_run else "removed"
    now = time.time()
    rows: list[tuple[str, ...]] = []
    for file in files:
        age, held_by = max(0, round(now - file.written)), ",".join(map(str, pids.get(file.inode, []))) or "-"
        name = ascii(file.name)[1:-1]  # a file name may contain newlines
        rows.append(("kept" if file.held else verb, str(file.nbytes), str(age), name, held_by))
    freed = [file.nbytes for file in files if not file.held]
    caption = f"{verb}: {len(freed)} of {len(files)} segments"
    for cache in stale_directories():
        nbytes, age = sum(file.lstat().st_size for file in cache.iterdir()), round(now - cache.stat().st_mtime)
        rows.append((verb, str(nbytes), str(age), ascii(str(cache))[1:-1], "-"))
        freed.append(nbytes)
        if not options.dry_run:
            shutil.rmtree(cache)
    caption += f", {len(rows) - len(files)} kernel caches, {sum(freed):,} bytes"
    columns = {"": "left", "bytes": "right", "age in s": "right", "segment or cache": "left", "held by": "left"}
    print_table(columns, rows, ("total", str(sum(freed)), str(len(freed))), caption)
    return 0


def holders(directory: Path, inodes: Collection[tuple[int, int]]) -> dict[tuple[int, int], list[int]]:
    """Returns, by (device, inode), the ids of the processes that have these files of the directory open."""
    pids: dict[tuple[int, int], set[int]] = {}
    for link in glob("/proc/[0-9]*/fd/*") if inodes else ():
        with suppress(OSError):  # closed meanwhile, or another user's process
            # The link first, since stat of an unrelated file could block on a network file system.
            if os.readlink(link).startswith(f"{directory}/"):
                status = os.stat(link)
                pids.setdefault((status.st_dev, status.st_ino), set()).add(int(link.split("/")[2]))
    return {inode: sorted(pids[inode]) for inode in pids.keys() & inodes}
