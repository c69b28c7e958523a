"""The fork server: its forks work like new processes, die with it, and report how they ended."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from forked import Child, attach, end, linger, tell, work
from processes import await_ends
from tiers import long_but
from victims import fork, reap

from marlcore.errors import MarlcoreError
from marlcore.processes import PRELOAD, ForkServer
from marlcore.processes.signals import STOPPING
from marlcore.testing import victim


def tell_of_gpus(report: Connection) -> None:
    import torch

    report.send(torch.cuda._is_in_bad_fork())  # what keeps torch from opening the driver of NVIDIA's GPUs


def run_helpers(report: Connection) -> None:
    """Starts three kinds of helpers, sends each a signal at once, and reports how they end."""
    sleep = [sys.executable, "-c", "import signal; signal.pause()"]
    codes = []
    for signum in sorted(STOPPING):
        with subprocess.Popen(sleep) as program:
            program.send_signal(signum)
        pid = fork(time.sleep, 600.0)
        os.kill(pid, signum)
        codes.append((program.returncode, reap(pid)))
        process = get_context("fork").Process(target=time.sleep, args=(600.0,))
        process.start()
        process.terminate()
        process.join()
        assert process.exitcode == -signal.SIGTERM
    report.send(codes)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[ForkServer]:
    """A server of the test's own that imports little, or is a fork of the test's process."""
    with closing(ForkServer(fork=getattr(request, "param", False))) as one:
        yield one


EITHER = pytest.mark.parametrize("server", [False, True], indirect=True, ids=["program", "fork"])


def told(server: ForkServer, what: str, early: bool = False) -> Any:
    with closing(Child(server, tell, what, early=early)) as child:
        answer = child.receive()
        assert child.status() == 0
    return answer


@pytest.mark.long
@EITHER
def test_a_child_has_its_requesters_environment_and_mask(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARLCORE_TEST", "set")
    assert told(server, "environment") == "set"
    assert told(server, "blocked") == signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.long
def test_signals_to_the_group_do_not_end_children(fork_server: ForkServer) -> None:
    with closing(Child(fork_server, linger)) as child:
        pid = child.receive()
        status = Path(f"/proc/{pid}/status")
        for signum in STOPPING:
            os.kill(pid, signum)
        pending = {"SigPnd:", "ShdPnd:"}
        while any(int(line.split()[1], 16) for line in status.read_text().splitlines() if line.split()[0] in pending):
            os.sched_yield()
        assert not select.select([child.pidfd], [], [], 0.0)[0]
        os.kill(pid, signal.SIGKILL)
        assert child.status() == -signal.SIGKILL


def test_signals_end_what_a_worker_starts(fork_server: ForkServer) -> None:
    with closing(Child(fork_server, run_helpers)) as child:
        assert child.receive() == [(-signum, -signum) for signum in sorted(STOPPING)]


def test_what_is_forked_may_open_a_gpu(fork_server: ForkServer) -> None:
    """If the server had only counted the GPUs, a fork could not use them."""
    pytest.importorskip("torch")
    with closing(Child(fork_server, tell_of_gpus)) as child:
        assert child.receive() is False


def test_a_child_holds_nothing_of_the_server(fork_server: ForkServer) -> None:
    """It has no descriptor of the server or of the server's other children."""
    with closing(Child(fork_server, linger)) as other:
        other.receive()
        held = told(fork_server, "descriptors")
    kinds = [kind.partition(":")[0] for kind in held if "/libffi.so" not in kind]  # which opens its own file
    assert kinds == ["pipe", "pipe"]  # to the tracker, and what it reports through


@pytest.mark.parametrize("servers", [(False, True), (True,)], ids=["both", "the second"])
def test_the_cpu_time_of_all_forks_counts_once_the_server_is_closed(servers: tuple[bool, ...]) -> None:
    """Such as in what `time marlcore train` prints. The servers fork this process, so they take no time for imports."""
    seconds, before = 0.5, sum(os.times()[2:4])
    with closing(ForkServer(fork=True, early=["wave"])) as server:
        for early in servers:
            with closing(Child(server, work, seconds, early=early)) as child:
                assert child.status() == 0
    assert sum(os.times()[2:4]) - before > 0.95 * seconds * len(servers)


@EITHER
def test_an_interrupted_close_can_be_repeated(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(server, "environment") is None
    process = server._process
    assert process is not None
    with monkeypatch.context() as patch:
        patch.setattr(process, "wait", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            server.close()
    server.close()
    process.wait(0.0)
    assert told(server, "environment") is None


@pytest.mark.parametrize("how", [0, 3, int(-signal.SIGKILL), int(-signal.SIGSEGV)])
def test_the_exit_status_of_a_process_is_reported(fork_server: ForkServer, how: int) -> None:
    with closing(Child(fork_server, end, how)) as child:
        assert child.status() == how


@pytest.mark.long
@EITHER
def test_a_killed_servers_children_die_and_it_restarts(server: ForkServer) -> None:
    children = [Child(server, linger) for _ in range(2)]
    try:
        for child in children:
            child.receive()
        os.kill(children[1].pid, signal.SIGSTOP)  # one that could not end by itself
        first = server.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert [child.status() for child in children] == [None, None]
        assert told(server, "environment") is None
        assert server.pid != first
    finally:
        for child in children:
            child.close()


@pytest.mark.long
@EITHER
def test_a_stopped_server_is_replaced(server: ForkServer) -> None:
    assert told(server, "environment") is None
    stopped = server.pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    with closing(Child(server, linger)) as child:
        child.receive()
        assert server.pid != stopped


def test_a_second_server_has_the_early_modules_alone() -> None:
    """The second server, used or not, dies with the first, and so do all forks of both."""
    with closing(ForkServer(["wave"], early=["colorsys"])) as server:
        children = [Child(server, linger, early=early) for early in (True, False)]
        assert [told(server, "modules", early=early) for early in (True, False)] == [[], ["wave"]]
        assert len({victim.parent_of(child.receive()) for child in children}) == 2
        os.kill(server.pid or 0, signal.SIGKILL)
        assert [child.status() for child in children] == [None, None]
        assert told(server, "modules", early=True) == []
        for child in children:
            child.close()


def test_a_hurried_parent_does_not_wait_for_a_server() -> None:
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        with closing(ForkServer(PRELOAD, hurry=lambda: bool(came))) as server:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(InterruptedError, match="told to stop"):
                Child(server, tell, "environment")
            assert server.pid is None
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("python", "error", "says"),
    [
        ("/bin/false", MarlcoreError, "the process that forks workers died 4 times, the last time: "),
        ("/nowhere/python", FileNotFoundError, "/nowhere/python"),
    ],
)
def test_a_server_that_cannot_start_is_an_error(
    python: str, error: type[Exception], says: str, server: ForkServer, python_is: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_is(python)
    monkeypatch.setattr("marlcore.processes.fork_server.BACKOFF_S", 0.0)
    with pytest.raises(error, match=says):
        Child(server, tell, "environment")
    assert server.pid is None


@pytest.mark.long
def test_a_server_killed_while_it_starts_is_restarted(server: ForkServer, tmp_path: Path, python_is: Any) -> None:
    program, starts = tmp_path / "python", tmp_path / "starts"
    program.write_text(
        f'#!/bin/sh\necho >> {starts}\n[ $(wc -l < {starts}) -gt 3 ] || kill -9 $$\nexec {sys.executable} "$@"\n'
    )
    program.chmod(0o700)
    python_is(str(program))
    assert told(server, "environment") is None
    assert starts.read_text() == 4 * "\n"


@EITHER
def test_only_a_fork_of_the_caller_has_its_imports(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imported_by_the_caller", sys)
    assert told(server, "imported") is server._forks
    assert server.ready and server.pid is not None
    pidfd = os.pidfd_open(server.pid)
    server.close()
    assert select.select([pidfd], [], [], 0.0)[0]
    os.close(pidfd)


def test_stacks_need_no_stderr_of_the_programs_own(program: Any) -> None:
    """In a fork of a program that captures its output, sys.stderr has no descriptor."""
    captured = program("""
        import io, sys
        from marlcore.processes.signals import write_stacks_when_asked
        sys.stderr = io.StringIO()
        write_stacks_when_asked()
        print("set up", flush=True)
    """)
    assert captured.line() == "set up"


def test_the_thread_for_stacks_ends_before_a_fork(program: Any) -> None:
    """Python 3.12 and later warn of forks beside threads, as the kernel counts them."""
    forking = program("""
        import os, threading

        def tasks():
            return sorted(map(int, os.listdir("/proc/self/task")))

        from marlcore.processes.signals import write_stacks_when_asked
        before = tasks()
        os.register_at_fork(before=lambda: print(tasks() == before, flush=True))  # after hooks that come later
        write_stacks_when_asked()
        for _ in range(2):
            if os.fork() == 0:
                os._exit(0)
            os.wait()
    """)
    assert [forking.line() for _ in range(2)] == ["True", "True"]


def test_torch_has_one_thread_in_a_fork() -> None:
    """OpenMP's other threads do not exist in a fork, and torch would wait for them for ever."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with closing(ForkServer(fork=True)) as server:
            assert told(server, "torch's threads") == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_process_is_forked_only_where_that_is_safe(program: Any) -> None:
    """The threads of NumPy's library, which every program here has, do not count."""
    asked = program("""
        import ctypes, sys, threading, types
        from marlcore.processes import fork_server

        def ask(what):
            print(what, fork_server.is_safe_to_fork(), flush=True)

        def wait():
            ctypes.CDLL(None).prctl(15, b"xla", 0, 0, 0)
            named.set()
            over.wait()

        ask("alone")
        sys.modules["numba.np.ufunc.parallel"] = types.SimpleNamespace(_is_initialized=True)
        ask("numba")
        del sys.modules["numba.np.ufunc.parallel"]
        with open("/dev/zero") as file:
            fork_server._GPUS = ("/dev/zero",)
            ask("gpu")
        named, over = threading.Event(), threading.Event()

        class Writer(threading.Thread):
            __module__ = "tensorboard.summary"

        Writer(target=over.wait).start()
        ask("writer")
        threading.Thread(target=wait).start()
        named.wait()
        ask("thread")
        sys._current_frames = dict
        ask("name")
        over.set()
    """)
    said = [asked.line() for _ in range(6)]
    assert said == ["alone True", "numba False", "gpu False", "writer True", "thread False", "name False"]


@pytest.mark.parametrize(
    ("thread", "how"),
    long_but(
        [("thread that has ended", "program"), ("main thread", "fork")],
        product(["main thread", "thread that has ended"], ["program", "fork"]),
    ),
)
def test_a_killed_parent_takes_server_and_children_along(program: Any, thread: str, how: str) -> None:
    """Stopped processes die too. The end of the thread that started the server ends neither."""
    parent = program(
        """
        import os, signal, sys, threading
        from forked import Child, end, linger
        from marlcore.processes.fork_server import ForkServer

        server = ForkServer(fork=sys.argv[2] == "fork")
        if sys.argv[1] == "main thread":
            server.begin()
        else:
            starter = threading.Thread(target=Child, args=(server, end, 0))  # returns once the server is ready
            starter.start()
            while os.path.exists(f"/proc/self/task/{starter.native_id}"):
                os.sched_yield()
        first = server.pid
        child = Child(server, linger)
        child.receive()
        for pid in (first, child.pid):
            os.kill(pid, signal.SIGSTOP)
        print(first, child.pid, flush=True)
        sys.stdin.read()
        """,
        args=[thread, how],
    )
    pidfds = [os.pidfd_open(int(pid)) for pid in parent.line().split()]
    assert len(pidfds) == 2, "the server or its child did not start"
    parent.kill()
    await_ends(pidfds)  # never, if they outlive it


# By case: the flags of a Python program, its beginning, and the results of the children that it forks.
PROGRAMS = {
    "SIGCHLD ignored": (
        [], "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "[Child(server, end, how).status() for how in (3, -9, 0)]", "[3, -9, 0]",
    ),
    "flags and closed standard streams": (
        ["-O", "-B"], "import os; os.close(1); os.close(2)",
        "Child(server, tell_flags).receive()", "(1, 1, [True, True, True])",
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", PROGRAMS)
def test_a_child_has_what_its_program_would_give_it(case: str, tmp_path: Path) -> None:
    flags, beginning, results, expected = PROGRAMS[case]
    code = f"""
        import sys
        from forked import Child, end, tell_flags
        from marlcore.processes import ForkServer

        {beginning}
        server = ForkServer()
        open(sys.argv[1], "w").write(str({results}))
        server.close()
    """
    subprocess.run([sys.executable, *flags, "-c", textwrap.dedent(code), str(tmp_path / "results")], check=True)
    assert (tmp_path / "results").read_text() == expected


def test_memory_shared_by_python_outlives_a_child(fork_server: ForkServer) -> None:
    """A process with a resource tracker of its own would remove the name at its end."""
    memory = SharedMemory(create=True, size=4)
    try:
        memory.buf[:4] = b"here"
        for _ in range(2):
            with closing(Child(fork_server, attach, memory.name)) as child:
                assert child.receive() == b"here"
                assert child.status() == 0
    finally:
        memory.close()
        memory.unlink()


def test_an_error_in_a_fork_ends_that_alone(fork_server: ForkServer, capfd: pytest.CaptureFixture[str]) -> None:
    with closing(Child(fork_server, tell, "nothing that is known")) as child:
        assert child.status() == 1
    with closing(Child(fork_server, end, 0)) as child:
        assert child.status() == 0


def test_a_server_that_nobody_asked_ends_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    """A refused run leaves such a server; its answer, that it is ready, stays unread."""
    with closing(ForkServer()) as server:
        server.begin()
        while not server.ready:
            time.sleep(0.01)
        kill = server._process.kill
        server._process.kill = lambda: (time.sleep(0.1), kill())
    assert capfd.readouterr() == ("", "")
