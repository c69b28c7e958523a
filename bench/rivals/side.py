"""A side of `python -m bench peers`, in a process of its own: MODULE SETTING FORM CORES WARM_S SECONDS.

`train(setting, tell, form)` of the module trains, and calls `tell` with its steps and updates so far, until that
returns False. Two lines begin with MARK, at the begin and at the end of the measured time.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module

from ..peers.setting import Setting

MARK = "marked: "
Tell = Callable[[float, float], bool]


class Marks:
    """Takes steps and updates so far; returns False from the second mark on.

    The time begins `warm_s` after the first update, or the first step of a side without updates.
    """

    def __init__(self, updating: bool, warm_s: float, seconds: float) -> None:
        self.updating, self.waits, self.due = updating, [seconds, warm_s], 0.0

    def __call__(self, steps: float, updates: float) -> bool:
        now = time.monotonic()
        if (updates if self.updating else steps) and not self.due:
            self.due = now + self.waits.pop()
        if not self.due or now < self.due:
            return True
        sys.__stdout__.write(f"\n{MARK}{json.dumps([now, steps, updates])}\n")
        sys.__stdout__.flush()
        self.due = now + self.waits.pop() if self.waits else now
        return bool(self.waits) or self.due > now


if __name__ == "__main__":
    module, setting, form, cores, *times = sys.argv[1:]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(setting).items()}
    work = Setting(**given)
    tell = Marks(work.updates_per_step > 0, *map(float, times))
    import_module(f".{module}", __package__).train(work, tell, form)
