"""Interrupts: what a signal's handler raises, before any instruction or at any time; and every method of a Prefetch.

    python tests/support/interrupts.py TIMES [BELL]

interrupts a Prefetch, so many times by signals, then before each instruction. An interrupt may cost the batch that
`sample` was about to return. A fault is anything else: a batch that comes twice or that no interrupt explains, another
exception, a call that never returns, a thread that outlives `close`.
"""

import faulthandler
import gc
import itertools
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from marlcore import NotEnoughData, Prefetch
from marlcore.replay import prefetch, prefetch_work

Act = Callable[[], object]


class Interrupt(BaseException):
    """What the handler raises."""


def at_instruction(act: Act, number: int, inside: Callable[[str], bool], meanwhile: Act = int) -> tuple[bool, int]:
    """Interrupts it before one bytecode instruction of the files that `inside` accepts.

    Returns whether it came so far, and how many instructions it came. `meanwhile` is what a program does in its
    handler, and again where it catches the exception, while the frames of what was interrupted live.
    """
    seen = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal seen
        if not inside(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            seen += 1
            if seen == number:
                sys.settrace(None)
                meanwhile()
                raise Interrupt
        return trace

    sys._getframe().f_trace_opcodes = True  # without it Python 3.12.1 traces no instruction of the first call
    sys.settrace(trace)
    try:
        act()
    except Interrupt:
        meanwhile()
        return True, seen
    finally:
        sys.settrace(None)
    return False, seen


def by_signal(seconds: Callable[[], float], meanwhile: Act = int) -> Callable[[Act], bool]:
    """A call that interrupts another one by a timer's signal after so many seconds; whether it came before the end."""
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


HANG_S = {"Bell": 30.0, "ConditionBell": 3.0}
SHORT_OF_DATA = 7  # every so many attempts to draw


class Numbers:
    """A sampler whose batches are 1, 2, 3, and which is short of data now and then."""

    stats = None

    def __init__(self) -> None:
        self.number, self.attempts, self.inside = 0, 0, threading.Lock()

    def can_sample(self) -> bool:
        return True

    def sample(self, timeout: float | None = None) -> int:
        with self.inside:
            self.attempts += 1
            if self.attempts % SHORT_OF_DATA == 0:
                raise NotEnoughData("nothing is there")
            time.sleep(20e-6)
            self.number += 1
            return self.number

    def update_priorities(self, index: Any, priority: Any) -> None:
        assert not self.inside.locked(), "the sampler draws"


class ConditionBell:
    """The positive control: a bell made of a condition variable."""

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


class Consumer:
    def __init__(self, counts: Counter[str], hang_s: float) -> None:
        self.counts, self.hang_s, self.last, self.lost = counts, hang_s, 0, 0
        self.batches: Prefetch[Any] = Prefetch(Numbers(), depth=2)

    def sample(self) -> None:
        self.lost += 1  # at most, until it is here
        number = self.batches.sample(timeout=600.0)
        self.lost -= 1
        if not 0 < number - self.last <= 1 + self.lost:
            raise AssertionError(f"batch {number} came behind {self.last} with {self.lost} interrupted samples")
        self.last, self.lost = number, 0

    def update(self) -> None:
        self.batches.update_priorities([0], [1.0])

    def ask(self) -> None:
        assert self.batches.can_sample()

    def close(self) -> None:
        self.batches.close()

    def make(self) -> None:
        Prefetch(Numbers(), depth=1).close()

    @property
    def methods(self) -> list[Callable[[], None]]:
        return [self.sample] * 12 + [self.update] * 6 + [self.ask] * 4 + [self.close, self.make]

    def attacked(self, interrupted: bool, method: Callable[[], None]) -> bool:
        """Counts the interrupt, if it came in time, and checks that everything works afterwards."""
        self.counts["interrupts"] += interrupted
        self.counts[f"in {method.__name__}"] += interrupted
        if method == self.close:
            self.batches.close()
            self.__init__(self.counts, self.hang_s)  # type: ignore[misc]
        self.sample()
        self.update()
        faulthandler.dump_traceback_later(self.hang_s, exit=True)  # from now again
        return interrupted


ATTACKED = {prefetch.__file__, prefetch_work.__file__}


def wait_for_threads(most: int) -> None:
    """One of a Prefetch whose making was interrupted ends when the traceback has gone."""
    while sum(thread.name == "marlcore-prefetch" for thread in threading.enumerate()) > most:
        gc.collect()


def main(times: int, bell: str = "Bell") -> int:
    if bell == "ConditionBell":
        prefetch_work.Bell = ConditionBell  # type: ignore[assignment, misc]
        ATTACKED.update({threading.__file__, __file__})
    counts: Counter[str] = Counter()
    sys.unraisablehook = lambda raised: counts.update(["swallowed by Python in a weak reference's callback"])
    consumer, rng = Consumer(counts, HANG_S[bell]), random.Random(1)
    attack = by_signal(lambda: 1e-6 + 299e-6 * rng.random() ** 3)
    faulthandler.dump_traceback_later(HANG_S[bell], exit=True)
    while counts["interrupts"] < times:
        method = rng.choice(consumer.methods)
        consumer.attacked(attack(method), method)
    counts["signals"] = counts["interrupts"]
    wait_for_threads(1)
    for method in dict.fromkeys(consumer.methods):
        if method == consumer.make:
            continue  # a raising trace function makes Python 3.11 leak the frame that made the thread
        numbers = itertools.count(1)
        while consumer.attacked(at_instruction(method, next(numbers), ATTACKED.__contains__)[0], method):
            pass
    consumer.close()
    wait_for_threads(0)
    faulthandler.cancel_dump_traceback_later()
    print(*(f"{count} {name}" for name, count in counts.items()), sep=", ")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
