"""The parent's side of the fork server, which has imported the workers' modules and starts a worker in milliseconds.

The server is a new program or, on request, a fork of the parent, which is ready at once. If the parent dies, the kernel
kills the server and every worker, stopped ones included (`PR_SET_PDEATHSIG`).
"""

import errno
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing import resource_tracker, util
from multiprocessing.spawn import get_executable
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import MarlcoreError, suppress_failed_calls
from .serve import FORK, NUMBER, fork, open_child, readable, receive, serve
from .signals import stop_signals_blocked

START_S = 120.0  # seconds that the imports may take
REPLY_S = 10.0  # seconds that an answer may take, after which the server is killed
STARTS = 4  # number of times that the server is started before `fork` raises
BACKOFF_S = 0.2  # seconds before the second start; doubled before each further start
KILL_S = 10.0  # seconds in which the kernel ends a killed process and frees its memory, unless it is stuck
LOOK_S = 0.05
STATUS_S = 1.0  # seconds in which a dead process's exit status arrives
CLOSED = (errno.EPIPE, errno.ECONNRESET)  # errors of a call on a channel whose other end is closed
_PROGRAM = """
import sys
sys.path[:] = sys.argv[5:]
from marlcore.processes.serve import serve
serve(int(sys.argv[1]), [*map(int, sys.argv[2].split())], sys.argv[3].split(), sys.argv[4].split())
"""
_GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dri")
_SIGNALS = {signum.value: signum.name for signum in signal.Signals}
Program: TypeAlias = "subprocess.Popen[bytes] | ForkOfThis"
log = logging.getLogger(__name__)


class _Gone(Exception):
    """The server died or does not answer."""


class ForkServer:
    """Starts a server that imports `preload`: on first use, and again if the server has died.

    The server first imports the modules `early`, and then forks a second server, which has only these modules and so is
    ready sooner. Once `hurry` returns True, no call waits for a starting server. With `fork`, the server is a fork of
    this process; None: only if `is_safe_to_fork`.
    """

    def __init__(
        self, preload: Sequence[str] = (), hurry: Callable[[], bool] = lambda: False, fork: bool | None = False,
        early: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._preload, self._early = preload, early
        self._hurry = hurry
        self._forks = fork
        self._process: Program | None = None
        self._channels: list[socket.socket] = []  # to the server and to the second server
        self._answered: set[socket.socket] = set()  # channels of servers that are ready, and owe no answer
        self._lock = threading.Lock()  # several runs may share the server
        self.environ: dict[str, str] = {}  # of this process when the server began

    def begin(self) -> None:
        """Starts the server if it was not started yet. Does not wait until it is ready; `fork` does."""
        if self._channels:
            return
        with ExitStack() as stack:
            theirs = []
            for _ in range(1 + bool(self._early)):
                ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self._channels.append(ours)
                theirs.append(stack.enter_context(other).fileno())
            self.environ = dict(os.environ)
            forks = is_safe_to_fork() if self._forks is None else self._forks
            start = ForkOfThis if forks else start_program
            self._process = start_child(partial(start, theirs, self._preload, self._early))

    @property
    def ready(self) -> bool:
        """Whether the server was started and has finished its imports (or has died)."""
        first = self._channels[:1]  # one snapshot, since another thread may close the server meanwhile
        return isinstance(self._process, ForkOfThis) or any(map(self._is_ready, first))

    @property
    def pid(self) -> int | None:
        """The server's process id, if it was started."""
        return self._process.pid if self._process else None

    def fork(self, report: int, function: Callable[..., None], *args: Any, early: bool = False) -> tuple[int, int, int]:
        """Runs function(connection, *args) in a new process; `report` is the descriptor of its connection.

        With `early`, the second server, if there is one, forks the process. The function and its arguments must be
        picklable, and importable without `__main__`.

        Returns: the process's pid, its pidfd, and a pipe from which `read_status` reads its exit status.

        Raises OSError if the system starts no process or `hurry` returns True, MarlcoreError if all servers died.
        """
        with ExitStack() as at_end, ExitStack() as unless_forked:
            task = os.memfd_create("marlcore-task")
            at_end.callback(os.close, task)
            ended, status = os.pipe()
            at_end.callback(os.close, status)
            unless_forked.callback(os.close, ended)
            with os.fdopen(os.dup(task), "wb") as file:
                pickle.dump((function, args), file)
            # multiprocessing's resources in a worker get the parent's tracker, as in a spawned process.
            tracker = resource_tracker.getfd()
            assert tracker is not None
            with self._lock:
                number, fds = self._ask(early, [task, report, status, tracker])
            if number < 0:
                raise OSError(-number, os.strerror(-number))
            if not fds:
                raise OSError(errno.EMFILE, "no descriptor is left for a worker's process")
            unless_forked.pop_all()
            return number, fds[0], ended

    def _ask(self, early: bool, fds: list[int]) -> tuple[int, list[int]]:
        """Asks for a fork and returns the server's answer; restarts the server if it has died."""
        for failed in range(1, STARTS + 1):
            try:
                self.begin()
                channel = self._channels[-1 if early else 0]
                if channel not in self._answered:
                    self._answer(channel, START_S)
                    self._answered.add(channel)
                socket.send_fds(channel, [FORK], fds)
                return self._answer(channel, REPLY_S)
            except BaseException as error:
                self._answered.clear()
                self.close()  # a late answer would be taken for the next request's
                self._forks = False  # a fork made now would hold the ends of this request's pipes
                if not isinstance(error, _Gone) and getattr(error, "errno", None) not in CLOSED:
                    raise
                reason = error
            if failed < STARTS:
                for _ in range(round(BACKOFF_S * 2 ** (failed - 1) / LOOK_S)):
                    self._check_hurry()
                    time.sleep(LOOK_S)
        raise MarlcoreError(f"the process that forks workers died {STARTS} times, the last time: {reason}")

    def _answer(self, channel: socket.socket, seconds: float) -> tuple[int, list[int]]:
        """Reads the server's answer. Raises _Gone; InterruptedError if `hurry` returns True."""
        for _ in range(round(seconds / LOOK_S)):  # not by the clock, which runs while this process is stopped
            if readable(LOOK_S, channel.fileno()):
                answer, fds = receive(channel, NUMBER.size, 1)
                if not answer:
                    raise _Gone(f"it ended{self._status()}")
                return NUMBER.unpack(answer)[0], fds
            if channel not in self._answered:
                self._check_hurry()
        raise _Gone(f"it did not answer within {seconds:g} s")

    def _status(self) -> str:
        """Returns how a server that closed its channel ended, in words; "" if that is unknown."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STATUS_S)
        code = getattr(self._process, "returncode", None)
        return "" if code is None else f" with {cause_of(code)}"

    def _check_hurry(self) -> None:
        if self._hurry():
            raise InterruptedError(errno.EINTR, "told to stop before the process that forks workers was ready")

    def close(self) -> None:
        """Ends the server, its forks, and the second server with its forks. If it was interrupted, call it again.

        Servers that are ready end when their channel closes, and only then does the CPU time of the second server's
        forks count as that of this process's children. Others, whose imports may take long, are killed. The kernel
        then kills their forks.
        """
        process = self._process
        if process is not None and not all(map(self._is_ready, self._channels)):
            process.kill()
        while self._channels:
            with self._channels.pop() as channel:
                channel.shutdown(socket.SHUT_RDWR)  # a server that is a fork of this process holds this end too
        if process is not None and not _ends(process):
            process.kill()
            if not _ends(process):
                log.error("process %d did not end within %g s of SIGKILL and is left alone", process.pid, KILL_S)
        self._process, self._answered = None, set()

    def _is_ready(self, channel: socket.socket) -> bool:
        """Whether its server is ready and has answered all requests, or has died."""
        fd = channel.fileno()  # -1 if another thread has just closed the channel
        return channel in self._answered or fd < 0 or bool(readable(0.0, fd))


def _ends(process: Program) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILL_S)
        return True
    return False


def start_child(start: Callable[[], Program]) -> Program:
    """Calls `start` in a thread that outlives the child, since that thread's end would kill it (PR_SET_PDEATHSIG).

    In the main thread, calls it directly. Raises the errors of `start`; OSError if the system starts no thread.
    """
    if threading.get_native_id() == os.getpid():
        return start()
    started: Future[Program] = Future()

    def start_and_stay() -> None:
        try:
            started.set_result(start())
        except BaseException as error:
            started.set_exception(error)
            return
        with suppress(ChildProcessError):  # the owner has already reaped the child
            os.waitid(os.P_PID, started.result().pid, os.WEXITED | os.WNOWAIT)

    try:
        threading.Thread(target=start_and_stay, name="marlcore-parent", daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    return started.result()


def start_program(channels: Sequence[int], preload: Sequence[str], early: Sequence[str]) -> Program:
    # The server blocks signals to the whole process group; its forks unblock them when they have handlers.
    flags: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    with stop_signals_blocked():
        return subprocess.Popen(
            [get_executable(), *flags, "-c", _PROGRAM]
            + [str(os.getpid()), " ".join(map(str, channels)), " ".join(preload), " ".join(early)]
            + [path for path in sys.path if isinstance(path, str)],
            stdin=subprocess.DEVNULL,
            # Otherwise a file that the server opens would get the number of a closed stream.
            stdout=None if _is_inherited(1) else subprocess.DEVNULL,
            stderr=None if _is_inherited(2) else subprocess.DEVNULL,
            pass_fds=channels,
        )


class ForkOfThis:
    """A fork of this process that serves as a fork server, with everything that this process has imported."""

    def __init__(self, channels: Sequence[int], preload: Sequence[str], early: Sequence[str]) -> None:
        parent = os.getpid()
        util._flush_std_streams()  # type: ignore[attr-defined]  # otherwise both would write the buffered text
        with stop_signals_blocked():
            self.pid = fork()
            if self.pid == 0:
                try:
                    self._serve(parent, channels, preload, early)
                finally:
                    os._exit(1)
        self._pidfd = open_child(self.pid)

    def _serve(self, parent: int, channels: Sequence[int], preload: Sequence[str], early: Sequence[str]) -> None:
        signal.set_wakeup_fd(-1)  # the parent's event loop would wake up
        for signum in signal.valid_signals():
            if callable(signal.getsignal(signum)):  # the parent's handler
                signal.signal(signum, signal.SIG_DFL)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        if torch := sys.modules.get("torch"):  # a forked process would wait for OpenMP's threads forever
            torch.set_num_threads(1)
        serve(parent, channels, preload, early)

    def kill(self) -> None:
        if self._pidfd >= 0:
            with suppress_failed_calls(errno.ESRCH):  # other code has reaped it
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the fork's end. Raises subprocess.TimeoutExpired."""
        if self._pidfd < 0:
            return
        if not readable(timeout, self._pidfd):
            raise subprocess.TimeoutExpired("fork server", timeout or 0.0)
        with suppress(ChildProcessError):  # other code has reaped it
            os.waitpid(self.pid, 0)
        os.close(self._pidfd)
        self._pidfd = -1


def is_safe_to_fork() -> bool:
    """Whether a fork of this process can work: it has no GPU open, and no threads that may hold locks.

    Two kinds of threads are harmless: those of array libraries, which have this process's name and handle forks (a fork
    must then run OpenMP on one thread), and TensorBoard's, which wait only for their own queue.
    """
    numba_threads = getattr(sys.modules.get("numba.np.ufunc.parallel"), "_is_initialized", False)
    harmless = {
        str(thread.native_id) for thread in threading.enumerate() if type(thread).__module__.startswith("tensorboard.")
    }
    if numba_threads or len(sys._current_frames()) - len(harmless) > 1 or threading.get_native_id() != os.getpid():
        return False
    try:
        tasks = [task for task in Path("/proc/self/task").iterdir() if task.name not in harmless]
        names = {(task / "comm").read_bytes() for task in tasks}
        with os.scandir("/proc/self/fd") as entries:
            files = [os.readlink(entry) for entry in entries]
    except OSError:  # a thread ended meanwhile, or /proc is not mounted
        return False
    return len(names) == 1 and not any(file.startswith(_GPUS) for file in files)


def _is_inherited(fd: int) -> bool:
    with suppress_failed_calls(errno.EBADF):
        return os.get_inheritable(fd)
    return False


def cause_of(code: int) -> str:
    """Returns an exit status, given as `Popen.returncode`, in words."""
    return f"signal {_SIGNALS.get(-code, -code)}" if code < 0 else f"exit code {code}"


def read_status(pipe: int) -> int | None:
    """Reads a process's exit status, in the form of `Popen.returncode`; None if the server died before it wrote one."""
    data = os.read(pipe, NUMBER.size)
    return NUMBER.unpack(data)[0] if data else None
