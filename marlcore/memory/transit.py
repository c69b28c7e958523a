"""Tells pickles that go to another process from those that are kept, and from copies."""

import re
import sys

# The modules that pickle for other processes, in multiprocessing, torch, loky, cloudpickle and Ray. The innermost
# function in Python says which module is at work, since picklers are in C.
_SENDERS = re.compile(r"(.+\.)?(multiprocess(ing)?\.(reduction|queue)|loky\.backend\.reduction|cloudpickle)")


def is_sent() -> bool:
    """Whether the pickler that called the caller's `__reduce__` serves another process."""
    return _SENDERS.fullmatch(sys._getframe(2).f_globals.get("__name__", "")) is not None
