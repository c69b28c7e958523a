"""Hosts with a network between them: each has addresses, processes, shared memory and clocks of its own.

A host is a set of Linux namespaces of this machine, held by its first process. That process ends with the test's,
even if the test's is killed; with it, the kernel ends all other processes of the host, and removes its interfaces and
file systems.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import wires
from processes import children, family

from marlcore.closing import ClosedAfterError, Closing

UNSHARE = ["unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--net", "--uts", "--time"]
FIRST = """
mount -t tmpfs marlcore /dev/shm && mount -t tmpfs marlcore "$1" && hostname "host$2" && ip link set lo up &&
echo ready && exec env --ignore-signal=CHLD cat  # so that it leaves no zombies
"""


class Network(Closing):
    """The hosts 0, 1, ... and the wires between them; a context manager. Skips the test where it may not make any.

    Attributes:
        folder: a directory with a short path, whose contents are each host's own.
        directories: each host's directory of segments.
    """

    def __init__(self, hosts: int, clocks: Sequence[int] = ()) -> None:
        """`clocks` has, by host, the seconds by which its monotonic clock differs from this machine's; else 0."""
        _skip_without_rights()
        self._stack = ExitStack()
        with ClosedAfterError(self):
            self.folder = Path(tempfile.mkdtemp(prefix="net", dir="/tmp"))
            self._stack.callback(shutil.rmtree, self.folder)
            self._hosts = [
                self._started(
                    [f"--monotonic={clock}", f"--boottime={clock}"], "sh", "-c", FIRST, "-", self.folder, number
                )
                for number, clock in enumerate([*clocks, *[0] * (hosts - len(clocks))])
            ]
            self._wires = self._started([], sys.executable, wires.__file__, hosts)
            self.directories = [Path(f"/proc/{host}/root/dev/shm") for host, _ in self._hosts]
            for number, (host, _) in enumerate(self._hosts):
                self._connect(number, host)
            self._tell("begin")

    def address_of(self, host: int) -> str:
        return f"10.7.0.{host + 1}"

    def within(self, host: int) -> list[str]:
        """Returns the beginning of a command, which then runs on a host."""
        return _within(self._hosts[host][0])

    def processes(self, host: int | None = None) -> list[int]:
        """Returns the processes of a host, or of all hosts, except the first ones, which hold them."""
        hosts = self._hosts if host is None else [self._hosts[host]]
        return [pid for first, _ in hosts for pid in family(first)]

    def segments(self, host: int) -> list[str]:
        return sorted(path.name for path in self.directories[host].glob("marlcore-*"))

    def set(self, source: int, target: int, **way: Any) -> None:
        """Sets how frames pass from one host to another, anew; `Way` of wires.py says what can be set."""
        self._tell(json.dumps([source, target, way]))

    def set_all(self, *hosts: int, **way: Any) -> None:
        """Sets how frames pass between some hosts, or those that are not given, and all others."""
        for source in range(len(self._hosts)):
            for target in range(len(self._hosts)):
                if source != target and (not hosts or source in hosts or target in hosts):
                    self.set(source, target, **way)

    def close(self) -> None:
        self._stack.close()

    def _started(self, options: list[str], *command: object) -> tuple[int, subprocess.Popen[str]]:
        """Starts the first process of new namespaces, which says that it is ready; returns its pid and handle."""
        process = subprocess.Popen(
            [*UNSHARE, *options, *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._stack.enter_context(process)  # waits for its end
        self._stack.callback(process.kill)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        (inner,) = children(process.pid)
        return inner, process

    def _connect(self, number: int, host: int) -> None:
        """Gives a host a network card, which a wire leads to its port of the wires' program."""
        switch = self._wires[0]
        card = f"eth0 address 02:00:00:00:00:{number + 1:02x} netns {host} type veth"
        subprocess.run(["ip", "link", "add", *f"{card} peer name port{number} netns {switch}".split()], check=True)
        for inside, command in (
            (switch, f"link set port{number} up"),
            (host, f"address add {self.address_of(number)}/24 dev eth0"),
            (host, "link set eth0 gso_max_segs 1 up"),  # frames of a real wire's size
            (host, "route add default dev eth0"),  # by which programs find their own address
        ):
            subprocess.run([*_within(inside), "ip", *command.split()], check=True)

    def _tell(self, line: str) -> None:
        stdin, stdout = self._wires[1].stdin, self._wires[1].stdout
        assert stdin is not None and stdout is not None
        stdin.write(line + "\n")
        stdin.flush()
        assert stdout.readline() == "done\n"


def _within(pid: int) -> list[str]:
    return ["nsenter", "--all", f"--target={pid}", f"--wdns={os.getcwd()}", "setpriv", "--pdeathsig=KILL"]


def _skip_without_rights() -> None:
    if missing := [name for name in ("unshare", "nsenter", "setpriv", "ip") if shutil.which(name) is None]:
        pytest.skip(f"hosts of a test need {', '.join(missing)} (Debian: util-linux, iproute2)")
    tried = subprocess.run([*UNSHARE, "ip", "link", "add", "type", "veth"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"this kernel or container lets no test make hosts: {tried.stderr.strip()}")
