"""What `ps` and `top` call a process."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import suppress_failed_calls

ARG_START = 45  # among the fields of /proc/self/stat behind the command's name; the next is its end


def show_title(name: str) -> None:
    """Makes `ps aux` call this process "marlcore NAME", and `ps` NAME, cut to 15 bytes.

    The kernel shows the command line from this process's memory. It writes there itself, through /proc/self/mem, so a
    wrong address is an error, never a signal. A last byte that is not 0 tells it that the line is a title.
    """
    title = name.encode(errors="replace")
    with suppress_failed_calls():  # /proc is not mounted, or not the kernel's
        Path("/proc/self/comm").write_bytes(title[:15])
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(fields[ARG_START]), int(fields[ARG_START + 1])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            os.pwrite(
                memory.fileno(), (b"marlcore " + title)[: end - start - 2].ljust(end - start - 1, b"\0") + b" ", start
            )
