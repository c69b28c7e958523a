"""Programs as forks of a server that has imported torch, which each of them would else import anew."""

import atexit
import os
import select
import signal
import socket
import sys
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection

from marlcore.processes import ForkServer
from marlcore.processes.fork_server import read_status


def run(streams: Connection, code: str, args: Sequence[str]) -> None:
    """Runs code as `python -W error -c` does, with both standard streams on one socket."""
    for fd in (0, 1):
        os.dup2(streams.fileno(), fd)
    streams.close()
    sys.argv[1:] = args
    warnings.resetwarnings()
    warnings.simplefilter("error")
    try:
        exec(code, vars(sys.modules["__main__"]))
    finally:
        atexit._run_exitfuncs()


class ForkedCode:
    """What conftest's `Program` uses of a `subprocess.Popen`."""

    returncode: int | None = None

    def __init__(self, server: ForkServer, code: str, args: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair()
        with self._socket, theirs:  # ours stays open until its file is closed
            self.pid, self._pidfd, self._status = server.fork(theirs.fileno(), run, code, args)
            self.stdin = self.stdout = self._socket.makefile("rw")

    def poll(self) -> int | None:
        ended = self.returncode is not None or select.select([self._pidfd], [], [], 0.0)[0]
        return self.wait() if ended else None

    def wait(self) -> int | None:
        if self.returncode is None:
            self.returncode = read_status(self._status)  # once the process has ended
            os.close(self._pidfd)
            os.close(self._status)
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def communicate(self) -> tuple[str, None]:
        self._socket.shutdown(socket.SHUT_WR)
        said = self.stdout.read()
        self.wait()
        return said, None
