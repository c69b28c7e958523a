"""The harness of crashes: a scenario is stopped at a chosen point, and others look at what is left.

The points: each store and system call of a replaced core, where a child is killed or a call fails (`Points`); each
instruction of this process (`at_instruction`) and any moment of it (`by_signal`), where a handler raises; any moment of
real processes (kills.py). Scenarios are in replay_scenarios.py, crash_points.py, kills.py and uses.py.
"""

import ctypes
import dis
import errno
import gc
import importlib.util
import itertools
import mmap
import os
import re
import signal
import socket
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

import numpy as np
from core import call_names

from marlcore.errors import MarlcoreError

Act = Callable[[], object]


def fork(work: Callable[..., int | None], *arguments: Any) -> int:
    """A child that does this work, and nothing more; it exits with what `work` returns, or 1 where it raises."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = work(*arguments) or 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())  # at once: who waits for its first line may kill this child then
    finally:
        os._exit(code)


def reap(pid: int) -> int:
    """Waits for a child; its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(pid: int) -> None:
    """Ends a child, which must not have ended otherwise."""
    os.kill(pid, signal.SIGKILL)
    assert reap(pid) == -signal.SIGKILL


def die(work: Callable[[], object]) -> None:
    """A child does this work, which returns what it keeps open, and is killed."""
    ready, done = os.pipe()

    def victim() -> None:
        kept = work()
        os.write(done, b"x")
        assert kept is not None  # an empty replay is false
        signal.pause()

    pid = fork(victim)
    os.close(done)
    assert os.read(ready, 1) == b"x"
    os.close(ready)
    kill(pid)


def shared_numbers(rows: int, columns: int) -> np.ndarray:
    """int64 [rows, columns], zero, shared with children that are forked later."""
    size = -(-8 * rows * columns // mmap.PAGESIZE) * mmap.PAGESIZE
    return np.frombuffer(mmap.mmap(-1, size), np.int64, rows * columns).reshape(rows, columns)


# ---- points of a replaced core ----

ERRORS = {  # besides EIO
    "openat": ["EMFILE", "ENOMEM", "EINTR"], "fallocate": ["ENOSPC", "ENOMEM", "EINTR"], "mmap": ["ENOMEM", "EAGAIN"],
    "pwrite64": ["ENOSPC", "EINTR"], "linkat": ["ENOSPC"], "fcntl": ["ENOLCK", "EMFILE", "EINTR"], "futex": ["ENOMEM"],
}  # fmt: skip
ENDED, UNHARMED = 0, 3  # how victims exit: the error came, or there are fewer calls


def names() -> list[str]:
    """The segments that there are."""
    from marlcore.memory import survey  # only now: it loads the core

    return [path.name for path in survey.SHM_DIR.glob(f"{survey.PREFIX}*")]


class Points:
    """The points of a build of the core, which takes the place of marlcore's; see csrc/test/crash_points.h.

    A victim calls a scenario's `prepare`, `act`, which is stopped, and `release`; the survivor its `meet` with what
    `prepare` returned, `check` and `close`: see `replay_scenarios.Add`.
    """

    def __init__(self, core: str) -> None:
        spec = importlib.util.spec_from_file_location("marlcore._core", core)
        sys.modules["marlcore._core"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._library = ctypes.CDLL(core)
        self._library.mc_points_arm.argtypes = ctypes.c_int64, ctypes.c_int, ctypes.c_void_p
        self._kinds = {-1: "store", -2: "copy", **call_names()}
        self._passed = shared_numbers(1, 2)[0]  # points, and what the last one was

    def attack_each(self, make: Callable[[], Any], kills: bool) -> Counter[str]:
        """Kills: the points of each kind. Failures: how often each error of each system call led to which exception."""
        counts: Counter[str] = Counter()
        for at in itertools.count():
            errors = [""] if kills else ["EIO"]
            for error in errors:
                scenario = make()
                code, came = self._run_victim(scenario, at, getattr(errno, error, 0))
                kind = self._kinds[int(self._passed[1])]
                where = f"{error or 'SIGKILL'} at point {at}, {kind}"
                assert code in (-signal.SIGKILL if kills else ENDED, UNHARMED), f"{where}: the victim ended with {code}"
                self._finish(scenario, not kills or code == UNHARMED, where)
                if code == UNHARMED:
                    return counts
                counts[kind if kills else f"{kind}:{error}:{came}"] += 1
                if error == "EIO":
                    errors += ERRORS.get(kind, [])
        raise AssertionError

    def _run_victim(self, scenario: Any, at: int, error: int) -> tuple[int, str]:
        """The exit code and the words of a victim of point `at`."""
        ours, theirs = socket.socketpair()

        def victim() -> int:
            ours.close()
            return self._be_victim(scenario, at, error, theirs)

        with ours:
            pid = fork(victim)
            theirs.close()
            if path := ours.recv(4096).decode().strip():
                scenario.meet(path)
            ours.shutdown(socket.SHUT_WR)
            said = b"".join(iter(lambda: ours.recv(4096), b"")).decode()
        return reap(pid), said

    def _be_victim(self, scenario: Any, at: int, error: int, survivor: socket.socket) -> int:
        before, listed = sorted(os.listdir("/proc/self/fd")), names()
        survivor.send((scenario.prepare() + "\n").encode())
        survivor.recv(1)
        self._passed[:] = 0
        armed = self._library.mc_points_arm(at, error, self._passed.ctypes.data)
        assert armed == 0, os.strerror(-armed)
        came = "nothing"
        try:
            scenario.act()
        except (MarlcoreError, OSError) as raised:
            assert error and "\n" not in str(raised), raised
            came = type(raised).__name__
        self._library.mc_points_disarm()
        if not error or self._passed[0] <= at:
            return UNHARMED
        survivor.send(came.encode())
        if came != "nothing":
            gc.collect()
            scenario.act()
        scenario.release()
        gc.collect()
        now = sorted(os.listdir("/proc/self/fd"))
        assert now == before, f"descriptors: {before} before, now {now}"
        assert set(names()) <= set(listed), "an error left a segment behind"
        return ENDED

    def _finish(self, scenario: Any, done: bool, where: str) -> None:
        from marlcore.memory import survey

        try:
            scenario.check(done)
            scenario.close()
            gc.collect()
            survey.sweep()
            assert not names(), "a segment is left"
        except Exception as error:
            raise AssertionError(f"after {where}: {error!r}") from error


# ---- instructions and moments of this process ----

HANDLES = ".*CALL|RESUME|JUMP_(BACKWARD|ABSOLUTE)|RETURN|RERAISE|RAISE"  # the last three end a function's earlier call


class Interrupt(BaseException):
    """What the handler raises."""


def at_instruction(
    act: Act, number: int, inside: Callable[[str], bool], meanwhile: Act = int, *, signals: bool = False
) -> tuple[bool, int]:
    """Interrupts it before one bytecode instruction of the files that `inside` accepts.

    Returns whether it came so far, and how many instructions it came. `meanwhile` is what a program does in its
    handler, and again where it catches the exception, while the frames of what was interrupted live. `signals`: only
    before instructions where CPython may handle a signal: a function's first ones, and behind calls and jumps back.
    """
    seen, last = 0, dict[CodeType, int]()

    def meet(stop: Act, code: CodeType, offset: int) -> None:
        nonlocal seen
        before, last[code] = last.get(code), offset
        if signals and before is not None and not re.match(HANDLES, dis.opname[code.co_code[before]]):
            return
        seen += 1
        if seen == number:
            stop()
            meanwhile()
            raise Interrupt

    watching = _monitored if sys.version_info >= (3, 14) else _traced
    with watching(inside, meet):
        try:
            act()
        except Interrupt:
            meanwhile()
            return True, seen
    return False, seen


@contextmanager
def _traced(inside: Callable[[str], bool], meet: Callable[[Act, CodeType, int], None]) -> Iterator[None]:
    """Calls `meet` before each instruction of these files, with the call that ends this."""

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if not inside(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            meet(stop, frame.f_code, frame.f_lasti)
        return trace

    def stop() -> None:
        sys.settrace(None)

    sys._getframe().f_trace_opcodes = True  # without it Python 3.12.1 traces no instruction of the first call
    sys.settrace(trace)
    try:
        yield
    finally:
        stop()


@contextmanager
def _monitored(inside: Callable[[str], bool], meet: Callable[[Act, CodeType, int], None]) -> Iterator[None]:
    """Does the same where a function's first call is not traced by instruction, as on Python 3.14."""
    monitoring, thread = sys.monitoring, get_ident()
    tool, instruction = monitoring.DEBUGGER_ID, monitoring.events.INSTRUCTION

    def before(code: CodeType, offset: int) -> Any:
        if not inside(code.co_filename):
            return monitoring.DISABLE
        return meet(stop, code, offset) if get_ident() == thread else None

    def stop() -> None:
        monitoring.set_events(tool, 0)

    monitoring.use_tool_id(tool, __name__)
    monitoring.register_callback(tool, instruction, before)
    monitoring.restart_events()
    monitoring.set_events(tool, instruction)
    try:
        yield
    finally:
        stop()
        monitoring.free_tool_id(tool)


def by_signal(seconds: Callable[[], float], meanwhile: Act = int) -> Callable[[Act], bool]:
    """A call that interrupts another one by a timer's signal after `seconds()`; whether it came before the end."""
    armed = False

    def handle(*_: object) -> None:
        if armed:  # another thread may have been given the signal, and be late
            meanwhile()
            raise Interrupt

    def attack(act: Act) -> bool:
        nonlocal armed
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, seconds())
            act()
            armed = False
        except Interrupt:
            meanwhile()
            return True
        finally:
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        return False

    signal.signal(signal.SIGALRM, handle)
    return attack
