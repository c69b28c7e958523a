"""Victims that die at each point of a scenario in turn, or whose system calls fail, and those who go on after them.

    python tests/support/crash_points.py kill|fail SCENARIO CORE FOLDER [SABOTAGE]

runs the operation in a forked victim with a core that counts points (csrc/test/crash_points.h): once for each point,
until it comes to its end. After each victim the survivor, attached all along, reads; a successor writes on; nothing is
left. It reports, of "kill", the points of each kind, of "fail" how often each error of each system call led to what.
"""

import ctypes
import errno
import gc
import importlib.util
import itertools
import os
import signal
import socket
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from core import call_names, report
from victims import fork, reap, shared_numbers


def _load_core(path: str) -> ctypes.CDLL:
    """Puts a build of the core in the place of marlcore's; what arms its points."""
    spec = importlib.util.spec_from_file_location("marlcore._core", path)
    sys.modules["marlcore._core"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    library = ctypes.CDLL(path)
    library.mc_points_arm.argtypes = ctypes.c_int64, ctypes.c_int, ctypes.c_void_p
    return library


points = _load_core(sys.argv[3])

from processes import descriptors  # noqa: E402
from replay_scenarios import Add, Draw, names  # noqa: E402
from scenarios import SABOTAGE, SCENARIOS  # noqa: E402
from seams import replace  # noqa: E402

from marlcore import MarlcoreError  # noqa: E402
from marlcore.memory import survey  # noqa: E402

ERRORS = {  # besides EIO
    "openat": ["EMFILE", "ENOMEM", "EINTR"], "fallocate": ["ENOSPC", "ENOMEM", "EINTR"], "mmap": ["ENOMEM", "EAGAIN"],
    "pwrite64": ["ENOSPC", "EINTR"], "linkat": ["ENOSPC"], "fcntl": ["ENOLCK", "EMFILE", "EINTR"], "futex": ["ENOMEM"],
}  # fmt: skip
ENDED, UNHARMED = 0, 3  # how victims exit: the error came, or there are not so many calls
KINDS = {-1: "store", -2: "copy", **call_names()}
passed = shared_numbers(1, 2)[0]  # points, and what the last one was


def run_victim(scenario: Any, at: int, error: int) -> tuple[int, str]:
    """How a victim of point `at` exited, and what it said; the survivor has met it before."""
    ours, theirs = socket.socketpair()

    def victim() -> int:
        ours.close()
        return be_victim(scenario, at, error, theirs)

    with ours:
        pid = fork(victim)
        theirs.close()
        if path := ours.recv(4096).decode().strip():
            scenario.meet(path)
        ours.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: ours.recv(4096), b"")).decode()
    return reap(pid), said


def be_victim(scenario: Any, at: int, error: int, survivor: socket.socket) -> int:
    before, listed = descriptors(), names()
    survivor.send((scenario.prepare() + "\n").encode())
    survivor.recv(1)
    passed[:] = 0
    armed = points.mc_points_arm(at, error, passed.ctypes.data)
    assert armed == 0, os.strerror(-armed)
    came = "nothing"
    try:
        scenario.act()
    except (MarlcoreError, OSError) as raised:
        assert error and "\n" not in str(raised), raised
        came = type(raised).__name__
    points.mc_points_disarm()
    if not error or passed[0] <= at:
        return UNHARMED
    survivor.send(came.encode())
    if came != "nothing":
        gc.collect()
        scenario.act()
    scenario.release()
    gc.collect()
    assert descriptors() == before, f"descriptors: {before} before, now {descriptors()}"
    assert set(names()) <= set(listed), "an error left a segment behind"
    return ENDED


def attack_each_point(make: Any, folder: Path, kill: bool) -> Counter[str]:
    """Kills: the points of each kind. Failures: how often each error of each system call led to which exception."""
    counts: Counter[str] = Counter()
    for at in itertools.count():
        errors = [""] if kill else ["EIO"]
        for error in errors:
            scenario = make(folder)
            code, came = run_victim(scenario, at, getattr(errno, error, 0))
            kind = KINDS[int(passed[1])]
            where = f"{error or 'SIGKILL'} at point {at}, {kind}"
            assert code in (-signal.SIGKILL if kill else ENDED, UNHARMED), f"{where}: the victim ended with {code}"
            finish(scenario, not kill or code == UNHARMED, where)
            if code == UNHARMED:
                return counts
            counts[kind if kill else f"{kind}:{error}:{came}"] += 1
            if error == "EIO":
                errors += ERRORS.get(kind, [])
    raise AssertionError


def finish(scenario: Any, done: bool, where: str) -> None:
    try:
        scenario.check(done)
        scenario.close()
        gc.collect()
        survey.sweep()
        assert not names(), "a segment is left"
    except Exception as error:
        raise AssertionError(f"after {where}: {error!r}") from error


def main() -> None:
    how, name, _, folder, *sabotage = sys.argv[1:]
    replace("memory", SHM_DIR=Path(folder))  # where nobody else makes segments, or sweeps
    replace("memory", sweep=partial(survey.survey_segments, survey.SHM_DIR, remove=True))
    Add(survey.SHM_DIR).close()  # compiles or loads what drawing needs
    if name == "draw":
        first = Draw(survey.SHM_DIR)
        first.prepare()
        first.act()
        first.own.close()
        first.close()
    gc.collect()
    gc.freeze()  # which need not be looked through again and again
    for broken in sabotage:
        SABOTAGE[broken]()
    report(attack_each_point(SCENARIOS[name], Path(folder), how == "kill"))


if __name__ == "__main__":
    main()
