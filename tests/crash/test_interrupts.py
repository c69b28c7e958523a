"""Exceptions that come between any two steps, as a signal's handler raises them, while things are made and closed.

After each, the program's own descriptors are open, none is lost, and the same use works. By chance, at 20,000 moments
of real time, in all uses or in those of some cases: python tests/long.py interrupts 20000 [replay prefetch ...]
"""

import contextlib
import faulthandler
import gc
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from core import SUPPORT, python
from processes import descriptors
from uses import CASES, Case, Prefetching
from victims import at_instruction, by_signal

import marlcore
from marlcore.memory import survey_segments
from marlcore.replay import prefetch_work

pytestmark = pytest.mark.long
PACKAGE = str(Path(marlcore.__file__).parent)
USES = [
    *(("replay", what) for what in ("attach", "create", "create a file", "replace writer 1", "write a vector", "save")),
    ("replay", "load save"), ("limited", "sampler"), ("queue", "replace reader 0"), ("store", "replace publisher"),
    ("telemetry", "tail for the first time"), ("telemetry", "replace reporter"),
]  # fmt: skip
IN_A_FINALIZER = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one may come there
OF_PREFETCH = [pytest.param("prefetch", what, marks=IN_A_FINALIZER) for what in ("sample", "update", "ask", "close")]
ALL_OF_IT = ("prefetch", "all")  # with its making, where a raising trace function makes Python 3.11 leak a frame
MOMENTS = 50  # of each use


def inside(file: str) -> bool:
    """Excludes guard.py: CPython handles no signal between a guard's mark and its `try`."""
    return file.startswith(PACKAGE) and not file.endswith("guard.py")


class Program:
    """A program that opens files of its own whenever it is interrupted."""

    def __init__(self) -> None:
        self.files: list[tuple[int, os.stat_result]] = []

    def open(self) -> None:
        for _ in range(3):
            fd = os.memfd_create("own")
            self.files.append((fd, os.fstat(fd)))

    def close(self) -> int:
        """Closes the files; returns how many of them were closed already."""
        lost = 0
        while self.files:
            fd, made = self.files.pop()
            try:
                assert os.path.samestat(os.fstat(fd), made)
                os.close(fd)
            except (OSError, AssertionError):
                lost += 1
        return lost


@contextlib.contextmanager
def opened(name: str, what: str, folder: Path) -> Iterator[tuple[Case, Callable[[], None]]]:
    """A case and a call that makes one use of it; the state that the use needs exists."""
    case = {**CASES, "prefetch": Prefetching}[name](folder)
    case.open()

    def act() -> None:
        with contextlib.suppress(TimeoutError):  # the queue is empty, or the lane full
            case.uses()[what]()

    for _ in range(2):
        case.uses()["save"]() if name == "replay" else None
        act()
        case.look()
    yield case, act
    case.shared.close()


def left(case: Case) -> tuple[int, set[str], set[str]]:
    """Descriptors, files beside what is shared, and segments that no process has."""
    gc.collect(1)
    orphans = {file.name for file in survey_segments() if not file.held}
    return len(descriptors()), {path.name for path in case.folder.iterdir()}, orphans


@pytest.mark.parametrize(("name", "what"), [*USES, *OF_PREFETCH])
def test_an_exception_before_any_instruction_is_harmless(name: str, what: str, tmp_path: Path) -> None:
    program, interrupted = Program(), 0
    with opened(name, what, tmp_path) as (case, act):
        before = left(case)
        _, instructions = at_instruction(act, -1, inside)
        step = 1 if name == "prefetch" else max(1, instructions // MOMENTS)
        for moment in range(1 + random.randrange(step), instructions + 1, step):
            interrupted += at_instruction(act, moment, inside, program.open)[0]
            gc.collect(1)
            assert program.close() == 0, f"instruction {moment} made it close a descriptor of the program"
            case.look()
            act()
            case.look()
            assert left(case) == before, f"instruction {moment} left something behind"
    assert interrupted > MOMENTS // 2 or what == "ask"  # which has fewer


def storm(case: Case, act: Callable[[], None], times: int, hang_s: float = 0.0) -> Counter[str]:
    """Interrupts the call at random moments of real time, and counts the outcomes; a hang ends the process."""
    program, counts = Program(), Counter[str]()
    began = time.perf_counter()
    for _ in range(20):
        act()
        case.look()
    longest = 1.2 * (time.perf_counter() - began) / 20
    before, handler = left(case), signal.getsignal(signal.SIGALRM)
    attack = by_signal(lambda: random.uniform(1e-6, longest), program.open)
    while counts["interrupted"] < times:
        if hang_s:
            faulthandler.dump_traceback_later(hang_s, exit=True)
        counts["tried"] += 1
        counts["interrupted"] += attack(act)
        case.look()
        counts["foreign descriptors closed"] += program.close()
        if counts["tried"] % 20 == 0:
            act()
            case.look()
            counts["left behind"] += left(case) != before
    if hang_s:
        faulthandler.cancel_dump_traceback_later()
    signal.signal(signal.SIGALRM, handler)
    return counts


@IN_A_FINALIZER
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of files of the standard library, which closes them
@pytest.mark.parametrize(("name", "what"), [*USES[:2], USES[3], USES[-1], ALL_OF_IT])
def test_signals_at_any_time_leave_nothing_and_take_nothing(name: str, what: str, tmp_path: Path) -> None:
    with opened(name, what, tmp_path) as (case, act):
        counts = storm(case, act, 200)
    assert counts["foreign descriptors closed"] == counts["left behind"] == 0


class ConditionBell:
    """A bell made of a condition variable."""

    def __init__(self) -> None:
        self._changed, self._rung = threading.Condition(), False

    def ring(self) -> None:
        with self._changed:
            self._rung = True
            self._changed.notify_all()

    def wait(self, seconds: float | None = None) -> None:
        with self._changed:
            if not self._rung:
                self._changed.wait(seconds)
            self._rung = False


def test_an_interrupt_breaks_a_prefetch_on_conditions() -> None:
    """The positive control: it hangs, or raises another error than the interrupt."""
    done = python(SUPPORT.parent / "long.py", "interrupts", 20_000, "prefetch", "ConditionBell")
    assert done.returncode == 1, done.stdout + done.stderr


def main(times: int, *names: str) -> None:
    gc.collect()
    gc.freeze()
    if broken := "ConditionBell" in names:
        prefetch_work.Bell = ConditionBell  # type: ignore[assignment, misc]
    chosen = [use for use in (*USES, ALL_OF_IT) if use[0] in (names or CASES)]
    for name, what in chosen:
        with tempfile.TemporaryDirectory() as folder, opened(name, what, Path(folder)) as (case, act):
            print(f"{name}, {what}: {dict(storm(case, act, times // len(chosen), hang_s=3.0 if broken else 30.0))}")
